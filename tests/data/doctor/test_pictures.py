"""Copies are found among many pictures without comparing all of them, and unlike pictures are not taken for copies."""

import numpy as np
import pytest
from PIL import Image

from rfdetr_train.data.doctor.examined import Measured, measure, neighbours
from rfdetr_train.data.doctor.pictures import MOST_BITS, _near


def test_neighbours_are_all_pairs_of_equal_keys() -> None:
    keys = np.array([1, 1, 1, 2, 3, 3])
    pairs = {pair for first, second in neighbours(keys) for pair in zip(first.tolist(), second.tolist(), strict=True)}
    assert pairs == {(0, 1), (1, 2), (0, 2), (4, 5)}
    assert len([pair for first, _ in neighbours(keys, most=1) for pair in first]) == 3


@pytest.mark.parametrize("bits", [MOST_BITS, MOST_BITS + 1])
def test_hashes_are_near_up_to_three_bits_wherever_these_lie(bits: int) -> None:
    rng = np.random.default_rng(0)
    thumbnail = rng.integers(0, 256, (16, 16), dtype=np.uint8)
    for _ in range(50):
        flipped = sum(1 << int(bit) for bit in rng.choice(64, bits, replace=False))
        value = int(rng.integers(2**63))
        pair = [Measured((9, 9), bytes([n]), h, thumbnail) for n, h in enumerate((value, value ^ flipped))]
        assert _near(pair).tolist() == [[0, 1]] * (bits <= MOST_BITS)


def test_flat_pictures_and_other_thumbnails_are_not_alike() -> None:
    flat = np.full((16, 16), 90, dtype=np.uint8)
    assert _near([Measured((9, 9), bytes([n]), 0, flat) for n in range(2)]).tolist() == []
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert _near([Measured((9, 9), b"a", 0, ramp), Measured((9, 9), b"b", 0, ramp.T)]).tolist() == []
    assert _near([]).tolist() == []


def test_the_hash_by_eye(tmp_path) -> None:
    """Falling brightness to the right sets every bit, rising none."""
    ramp = np.tile(np.arange(0, 180, 20, dtype=np.uint8), (8, 1))
    for name, pixels, bits in (("rising.png", ramp, 0), ("falling.png", ramp[:, ::-1], 2**64 - 1)):
        Image.fromarray(pixels).save(tmp_path / name)
        assert measure(tmp_path / name, 150).hash == bits
