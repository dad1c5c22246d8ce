"""Boxes of segmentations."""

import numpy as np
import pytest
from pycocotools import mask

from rfdetr_train.data.coco_boxes import box_of_segmentation
from rfdetr_train.errors import UserError


@pytest.mark.parametrize("seed", range(30))
def test_run_lengths_of_random_masks(seed):
    """Encoded by pycocotools; the extent is that of the drawn pixels."""
    rng = np.random.default_rng(seed)
    height, width = (int(side) for side in rng.integers(1, 40, size=2))
    drawn = (rng.random((height, width)) < rng.choice([0.01, 0.3, 0.9])).astype(np.uint8)
    compressed = mask.encode(np.asfortranarray(drawn))["counts"].decode()
    flat = drawn.T.ravel()
    changes = np.flatnonzero(np.diff(flat, prepend=0))
    plain = np.diff([0, *changes.tolist(), len(flat)]).tolist()
    rows, columns = np.nonzero(drawn)
    corners = [columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1] if len(rows) else [0] * 4
    for counts in (compressed, plain):
        for size_px in ((height, width), None):
            assert box_of_segmentation({"size": [height, width], "counts": counts}, size_px) == corners


def test_polygons_are_exact():
    polygons = [[10.5, 10, 40, 10, 40, 30], [[5, 50], [6, 60.25], [7, 55]]]
    assert box_of_segmentation(polygons, (100, 100)) == [5, 10, 35, 50.25]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ("`", "breaks off"),  # the flag for another character, and none: pycocotools would read on in foreign memory
        ("0" * 5 + "o", "breaks off"),
        ("é", "no character of a compressed run-length code"),
        ("1", "do not add up"),
        ("", "do not add up"),
        ([50, -1, 51], "do not add up"),
        ([10**30], "too large"),
        ([[100]] * 2, "do not add up"),
        (["x"], "invalid literal"),
        (None, "do not add up|must be"),
    ],
)
def test_broken_run_lengths(counts, message):
    with pytest.raises(UserError, match=f"the segmentation cannot be read: .*({message})"):
        box_of_segmentation({"size": [10, 10], "counts": counts}, (10, 10))


@pytest.mark.parametrize("size", [[10], [0, 10], [10, 0], ["a", "b"], [-10, -10], None, [None, 3], [9, 10]])
def test_broken_sizes(size):
    for size_px in (None, (10, 10)):
        if (size, size_px) != ([9, 10], None):
            with pytest.raises(UserError, match="the segmentation cannot be read"):
                box_of_segmentation({"size": size, "counts": [100]}, size_px)


@pytest.mark.parametrize(
    "polygons", [[[1, 2, float("inf"), 4]], [[1e308, 0, -1e308, 1]], [[10**400, 1]], "abc", 3, [[]], []]
)
def test_broken_polygons(polygons):
    with pytest.raises(UserError, match="the segmentation cannot be read"):
        box_of_segmentation(polygons, (10, 10))
