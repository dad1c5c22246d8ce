"""Pictures made of several, read off their pixels."""

import numpy as np
import pytest
import torch

from rfdetr_train.data.canvas import Canvas
from rfdetr_train.data.composites import copy_paste, mixup, mosaic


def plain(value, size=(60, 80), boxes=()):
    """One grey, labels are the grey."""
    boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return Canvas(torch.full((3, *size), value, dtype=torch.uint8), boxes, torch.full((len(boxes),), value))


def rng(seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("size", [(64, 64), (40, 90)])
def test_a_mosaics_pictures_meet_in_one_point(size):
    """Each fills a rectangle from its own corner of the view, and the whole view is covered."""
    height, width = size
    for seed in range(20):
        four = [plain(value, boxes=[(0, 0, 80, 60)]) for value in (10, 20, 30, 40)]
        result = mosaic(four, size, rng(seed), 0.0)
        grey = result.image[0]
        row, column = int((grey[:, 0] == 10).sum()), int((grey[0] == 10).sum())
        expected = torch.full(size, 10)
        expected[:row, column:], expected[row:, :column], expected[row:, column:] = 20, 30, 40
        assert torch.equal(grey.int(), expected.int())
        assert 0.1 * height - 1 <= row <= 0.9 * height + 1
        assert 0.1 * width - 1 <= column <= 0.9 * width + 1
        boxes = [[0, 0, column, row], [column, 0, width, row], [0, row, column, height], [column, row, width, height]]
        assert result.labels.tolist() == [10, 20, 30, 40]
        assert result.boxes_xyxy.tolist() == boxes


def test_mixup_adds_shares_of_colours_and_all_boxes():
    shares = []
    for seed in range(100):
        mixed = mixup(plain(0, boxes=[(1, 2, 3, 4)]), plain(200, boxes=[(5, 6, 7, 8)]), rng(seed))
        assert mixed.image.dtype == torch.uint8
        assert len(mixed.image.unique()) == 1
        assert mixed.boxes_xyxy.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
        assert mixed.labels.tolist() == [0, 200]
        shares.append(mixed.image[0, 0, 0].item() / 200)
    assert min(shares) == pytest.approx(0.3, abs=0.02)
    assert max(shares) == pytest.approx(0.5, abs=0.02)


def test_what_is_pasted_is_what_its_box_shows_elsewhere():
    """The other picture's pixels say where they come from; nothing of the first picture's boxes is covered."""
    y, x = torch.meshgrid(torch.arange(60), torch.arange(80), indexing="ij")
    other = plain(1, boxes=[(10, 20, 25, 31), (15.5, 25.5, 30.5, 40.5), (60, 5, 70, 12)])
    other = other._replace(image=torch.stack([x, y, torch.full_like(x, 255)]).to(torch.uint8))
    counts = set()
    for seed in range(40):
        first = plain(0, boxes=[(30, 20, 60, 50)])
        result = copy_paste(first, other, rng(seed), 0.0)
        new = result.image[2] == 255
        counts.add(len(result.labels) - 1)
        assert not new[20:50, 30:60].any()
        assert result.labels.tolist() == [0] + [1] * (len(result.labels) - 1)
        covered = torch.zeros_like(new)
        for x1, y1, x2, y2 in result.boxes_xyxy[1:].tolist():
            part = result.image[:, round(y1) : round(y2), round(x1) : round(x2)]
            assert (part[2] == 255).all()
            assert (part[0, 0].diff() == 1).all()
            covered[int(y1) : int(np.ceil(y2)), int(x1) : int(np.ceil(x2))] = True
        assert torch.equal(covered, new)
    assert counts >= {1, 2, 3}


def test_nothing_is_pasted_where_there_is_no_place_or_nothing_to_paste():
    full = plain(0, boxes=[(0, 0, 80, 60)])
    assert copy_paste(full, plain(1, boxes=[(10, 10, 20, 20)]), rng(0), 0.0).labels.tolist() == [0]
    assert copy_paste(full, plain(1), rng(0), 0.0).labels.tolist() == [0]
    assert copy_paste(plain(0), plain(1, boxes=[(0, 0, 80, 60)]), rng(0), 0.0).labels.tolist() == [1]
