"""Cutting and laying pictures on each other, by hand."""

import dataclasses

import numpy as np
import pytest
import torch

from rfdetr_train.config import AugmentationConfig
from rfdetr_train.data.canvas import GROUND_RGB, Canvas, Placement, cropped, fitted, ground, pasted, visible
from rfdetr_train.data.sample import Batch
from rfdetr_train.data.transforms import evaluation_view, model_inputs, training_view


def canvas(boxes=((2, 1, 6, 5),), size=(10, 8), colour=200):
    """Of size (height, width), labels counted from 0."""
    boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return Canvas(torch.full((3, *size), colour, dtype=torch.uint8), boxes, torch.arange(len(boxes)))


def test_boxes_come_into_the_pixels_of_the_picture():
    image = torch.zeros(3, 20, 60, dtype=torch.uint8)
    boxes = np.array([[1, 2, 3, 4]], np.float32)
    assert Canvas.of(image, boxes, np.array([7]), (10, 20)).boxes_xyxy.tolist() == [[3, 4, 9, 8]]


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


LETTERBOX = Placement(letterbox=True, stride_px=32)
EVERYTHING = AugmentationConfig(
    name="everything", horizontal_flip=0.5, resize_crop=0.3, mosaic=0.3, copy_paste=0.3, zoom_out=0.2
)


def source(height: int, width: int):
    """A white picture with one black box at [20, 10, 60, 30]."""
    image = torch.full((3, height, width), 255, dtype=torch.uint8)
    image[:, 10:30, 20:60] = 0
    return Canvas.of(image, np.array([[20, 10, 60, 30]], dtype=np.float32), np.array([3]), (height, width))


@pytest.mark.parametrize(
    ("picture", "place", "view", "in_view", "frame"),
    [
        ((480, 640), LETTERBOX, (384, 384), (288, 384), (288, 384)),
        ((333, 517), LETTERBOX, (384, 384), (247, 384), (256, 384)),  # 333 * 384 / 517 = 247.3
        ((1000, 3), LETTERBOX, (384, 384), (384, 1), (384, 32)),
        ((10, 10), LETTERBOX, (384, 384), (384, 384), (384, 384)),
        ((480, 640), Placement(True, 32, 640 / 384), (384, 640), (384, 512), (384, 512)),
        ((333, 517), Placement(False, 32, 640 / 384), (384, 640), (384, 640), (384, 640)),
        ((333, 517), Placement(), (384, 384), (384, 384), (384, 384)),
    ],
)
def test_sizes_by_hand(picture, place, view, in_view, frame):
    assert place.view_px(384) == view
    assert place.picture_px(picture, view) == in_view
    assert place.frame_px(in_view) == frame


def test_the_widths_of_other_scales_are_whole_strides():
    wide = Placement(stride_px=32, aspect=640 / 384)
    assert [wide.view_px(side) for side in (224, 256, 544)] == [(224, 384), (256, 416), (544, 896)]


def test_the_input_of_a_model(small_config):
    model = dataclasses.replace(small_config(), resolution_width=96)
    assert Placement.of("letterbox", model) == Placement(True, 16, 1.5)
    assert model.size_px == Placement.of("stretch", model).view_px(64) == (64, 96)


def test_a_letterboxed_picture_lies_in_the_upper_left_of_plain_ground():
    view = evaluation_view(source(90, 200), 256, LETTERBOX)
    assert view.image.shape == (3, 256, 256)
    assert (view.picture_px, view.frame_px) == ((115, 256), (128, 256))
    alone = evaluation_view(source(90, 200), 115, Placement(aspect=256 / 115)).image
    assert torch.equal(view.image[:, :115], alone)
    assert torch.equal(view.image[:, 115:], torch.tensor(GROUND_RGB).view(3, 1, 1).expand(3, 141, 256).byte())
    x, y = 256 / 200 / 256, 115 / 90 / 128  # of an annotated pixel, in fractions of the frame
    torch.testing.assert_close(view.boxes_cxcywh, torch.tensor([[40 * x, 20 * y, 40 * x, 20 * y]]))


@pytest.mark.parametrize("place", [LETTERBOX, Placement(True, 32, 1.5), Placement(False, 32, 1.5)])
def test_training_views_keep_boxes_on_their_objects(place):
    height, width = view_px = place.view_px(128)
    another = lambda: source(160, 90)  # noqa: E731
    for seed in range(60):
        rng = np.random.default_rng(seed)
        view = training_view(source(90, 200), 128, EVERYTHING, rng, another, placement=place)
        assert view.image.shape == (3, *view_px)
        frame_height, frame_width = view.frame_px
        assert (frame_height <= height, frame_width <= width) == (True, True)
        for cx, cy, w, h in view.boxes_cxcywh.tolist():
            pixels = view.image[0, int(cy * frame_height), int(cx * frame_width)]
            assert pixels < 60 or min(w * frame_width, h * frame_height) < 4
        assert (view.boxes_cxcywh >= 0).all()


def test_a_picture_that_shines_through_is_letterboxed_too():
    mixup = AugmentationConfig(name="mixup", mixup=1.0)
    another = lambda: source(160, 90)  # noqa: E731
    view = training_view(source(90, 200), 128, mixup, np.random.default_rng(0), another, placement=LETTERBOX)
    assert view.image.shape == (3, 128, 128)
    assert len(view.labels) == 2
    assert (view.image[:, :58, 40:] >= 185).float().mean() > 0.8  # white and ground; the other picture is 33 wide


def test_a_flip_turns_the_picture_and_not_its_padding():
    flip = AugmentationConfig(name="flip", horizontal_flip=1.0)
    plain = evaluation_view(source(200, 90), 128, LETTERBOX)
    flipped = training_view(source(200, 90), 128, flip, np.random.default_rng(0), placement=LETTERBOX)
    width = plain.picture_px[1]
    assert torch.equal(flipped.image[..., :width], plain.image[..., :width].flip(-1))
    assert torch.equal(flipped.image[..., width:], plain.image[..., width:])
    assert flipped.boxes_cxcywh[0, 0].item() == pytest.approx(width / 64 - plain.boxes_cxcywh[0, 0].item(), abs=1e-6)


def batch_of(*frames_px):
    targets = [{"size_px": (90, 200), "picture_px": (f[0] - 3, f[1]), "frame_px": f} for f in frames_px]
    return Batch(torch.zeros(len(frames_px), 3, 64, 96, dtype=torch.uint8), targets)


def test_the_padding_of_a_batch():
    padding = batch_of((64, 96), (32, 96), (64, 32)).padding()
    assert padding is not None
    assert not padding[0].any()
    assert torch.equal(padding[1, :, 0], torch.arange(64) >= 32)
    assert torch.equal(padding[1], padding[1, :, :1].expand(64, 96))
    assert torch.equal(padding[2], (torch.arange(96) >= 32).expand(64, 96))
    assert batch_of((64, 96), (64, 96)).padding() is None
    assert len(model_inputs(batch_of((64, 96)))) == 1
    assert len(model_inputs(batch_of((64, 64)))) == 2


def test_frames_in_annotated_pixels():
    """A picture of 90 x 200 takes 29 of the frame's 32 rows."""
    torch.testing.assert_close(batch_of((32, 96)).frames_px(), torch.tensor([[90 * 32 / 29, 200.0]]))
    assert Batch(torch.zeros(1, 3, 64, 96), [{"size_px": (90, 200)}]).frames_px().tolist() == [[90.0, 200.0]]


def test_ground_is_nothing_to_the_network():
    image = evaluation_view(source(40, 200), 128, LETTERBOX).image
    (inputs,) = model_inputs(Batch(image[None], [{}]))
    assert inputs[:, :, 26:].abs().max() < 0.01
