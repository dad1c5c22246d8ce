"""Tiles cover every pixel and overlap enough; one object seen by two tiles is one detection."""

import itertools

import numpy as np
import pytest
import torch

from rfdetr_train.engine.inference import join_tiles, tile_corners


@pytest.mark.parametrize(("height", "width", "tile_px", "overlap"), [
    (3000, 4000, 640, 0.2), (640, 641, 640, 0.2), (100, 5000, 640, 0.0), (1281, 640, 640, 0.5),
])  # fmt: skip
def test_tiles_cover_the_picture(height, width, tile_px, overlap):
    corners = tile_corners(height, width, tile_px, overlap)
    covered = np.zeros((height, width), dtype=bool)
    for top, left in corners:
        assert 0 <= top <= max(0, height - tile_px)
        assert 0 <= left <= max(0, width - tile_px)
        covered[top : top + tile_px, left : left + tile_px] = True
    assert covered.all()
    for starts in (sorted({top for top, _ in corners}), sorted({left for _, left in corners})):
        assert all(b - a <= tile_px * (1 - overlap) + 1 for a, b in itertools.pairwise(starts))


def test_a_small_picture_is_one_tile():
    assert tile_corners(200, 300, 640, 0.2) == [(0, 0)]


def test_join_shifts_and_takes_the_better_of_two():
    def found(boxes, scores, labels):
        return {"boxes_xyxy": torch.tensor(boxes), "scores": torch.tensor(scores), "labels": torch.tensor(labels)}

    left = found([[80.0, 10.0, 100.0, 30.0], [0.0, 0.0, 9.0, 9.0]], [0.6, 0.3], [1, 0])
    right = found([[0.0, 10.0, 20.0, 30.0], [0.0, 10.0, 20.0, 30.0]], [0.9, 0.5], [1, 2])  # at 80 in the picture
    joined = join_tiles([left, right], [(0, 0), (5, 80)], limit=10)
    assert joined["scores"].tolist() == pytest.approx([0.9, 0.5, 0.3])  # 0.6 is the same object, cut off
    assert joined["labels"].tolist() == [1, 2, 0]
    assert joined["boxes_xyxy"][0].tolist() == [80.0, 15.0, 100.0, 35.0]
    assert len(join_tiles([left, right], [(0, 0), (5, 80)], limit=2)["scores"]) == 2
