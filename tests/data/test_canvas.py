"""Cutting and laying pictures on each other, by hand."""

import numpy as np
import pytest
import torch

from rfdetr_train.data.canvas import GROUND_RGB, Canvas, canvas_of, cropped, fitted, ground, pasted, visible


def canvas(boxes=((2, 1, 6, 5),), size=(10, 8), colour=200):
    """Of size (height, width), labels counted from 0."""
    boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return Canvas(torch.full((3, *size), colour, dtype=torch.uint8), boxes, torch.arange(len(boxes)))


def test_boxes_come_into_the_pixels_of_the_picture():
    image = torch.zeros(3, 20, 60, dtype=torch.uint8)
    boxes = np.array([[1, 2, 3, 4]], np.float32)
    assert canvas_of((image, boxes, np.array([7]), (10, 20))).boxes_xyxy.tolist() == [[3, 4, 9, 8]]


def test_fitted_stretches():
    assert fitted(canvas(), (20, 4)).boxes_xyxy.tolist() == [[1, 2, 3, 10]]
    assert fitted(canvas(), (20, 4)).size_px == (20, 4)


@pytest.mark.parametrize(
    ("min_visible", "left"), [(0.0, [0, 1, 2]), (0.25, [0, 1, 2]), (0.3, [0, 1]), (0.51, [0]), (1, [0])]
)
def test_a_box_keeps_its_visible_part(min_visible, left):
    """Whole, a half, a quarter, nothing but an edge, and outside."""
    boxes = [(1, 1, 3, 3), (-2, 0, 2, 4), (6, 8, 10, 12), (8, 0, 9, 5), (-4, -4, -1, -1)]
    seen = visible(canvas(boxes), min_visible)
    assert seen.labels.tolist() == left
    assert seen.boxes_xyxy.tolist() == [[1, 1, 3, 3], [0, 0, 2, 4], [6, 8, 8, 10]][: len(left)]


def test_cropped():
    part = cropped(canvas(), 3, 4, 6, 3, 0.0)
    assert part.size_px == (6, 3)
    assert part.boxes_xyxy.tolist() == [[0, 0, 2, 2]]
    assert cropped(canvas(), 3, 4, 6, 3, 0.3).labels.tolist() == []  # a quarter is left


def test_ground_is_imagenets_mean():
    """0 for the network: (0.485, 0.456, 0.406) of 255, to half a level."""
    assert np.abs(np.array(GROUND_RGB) - np.array([0.485, 0.456, 0.406]) * 255).max() <= 0.5
    assert (ground((3, 5)).image == torch.tensor(GROUND_RGB).view(3, 1, 1)).all()
    assert ground((3, 5)).size_px == (3, 5)


@pytest.mark.parametrize(
    ("top", "left", "place", "box"),
    [
        (1, 2, (slice(1, 5), slice(2, 5)), [3, 2, 5, 4]),
        (-1, -2, (slice(0, 3), slice(0, 1)), [0, 0, 1, 2]),
        (8, 6, (slice(8, 10), slice(6, 8)), [7, 9, 8, 10]),
    ],
)
def test_pasted_is_cut_where_it_sticks_out(top, left, place, box):
    below, piece = canvas(), canvas([(1, 1, 3, 3)], (4, 3), 90)
    before = below.image.clone()
    result = pasted(below, piece, top, left)
    expected = before.clone()
    expected[:, place[0], place[1]] = 90
    assert torch.equal(result.image, expected)
    assert torch.equal(below.image, before), "a cache may own what is pasted on"
    assert result.boxes_xyxy.tolist() == [[2, 1, 6, 5], box]
    assert result.labels.tolist() == [0, 0]
