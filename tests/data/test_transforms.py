"""Boxes stay on their objects; pixels are those of an independent resize."""

import numpy as np
import pytest
import torch
from PIL import Image

from rfdetr_train.config import AugmentationConfig
from rfdetr_train.data.transforms import evaluation_view, normalise, training_scales, training_view

COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250), (250, 250, 10)]
REFERENCE = AugmentationConfig(name="reference", horizontal_flip=0.5, resize_crop=0.5, multi_scale=True)
CROP_ONLY = AugmentationConfig(name="crop", resize_crop=1.0)
FLIP_ONLY = AugmentationConfig(name="flip", horizontal_flip=1.0)


def painted(width=640, height=480, seed=0):
    """A black picture with four rectangles, one a quarter, their boxes xyxy, labels 0 to 3 by colour."""
    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3), dtype=np.uint8)
    boxes = []
    for label, colour in enumerate(COLOURS):
        left, top = (label % 2) * width // 2, (label // 2) * height // 2
        x1, x2 = left + rng.integers(0, width // 8), left + rng.integers(width // 4, width // 2 - 4)
        y1, y2 = top + rng.integers(0, height // 8), top + rng.integers(height // 4, height // 2 - 4)
        image[y1:y2, x1:x2] = colour
        boxes.append((x1, y1, x2, y2))
    return torch.from_numpy(image).permute(2, 0, 1), np.array(boxes, dtype=np.float32), np.arange(4)


def extent(image, colour):
    """xyxy of the pixels of a colour, or None."""
    near = (image.int() - torch.tensor(colour).view(3, 1, 1)).abs().amax(dim=0) < 120
    if not near.any():
        return None
    rows, columns = (near.any(dim=dim).nonzero().flatten() for dim in (1, 0))
    return [columns[0].item(), rows[0].item(), columns[-1].item() + 1, rows[-1].item() + 1]


def assert_boxes_hold_their_colours(view):
    side = view.image.shape[-1]
    cx, cy, w, h = (view.boxes_cxcywh * side).unbind(dim=1)
    boxes = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], dim=1)
    for label, colour in enumerate(COLOURS):
        found = extent(view.image, colour)
        mine = boxes[view.labels == label].tolist()
        if found is not None:
            assert len(mine) == 1, f"label {label} is in the picture but has no box"
            assert mine[0] == pytest.approx(found, abs=2.0)
        else:
            assert all(min(x2 - x1, y2 - y1) < 2 for x1, y1, x2, y2 in mine)


@pytest.mark.parametrize("size", [(640, 480), (100, 150), (1200, 300)])
@pytest.mark.parametrize("augmentation", [REFERENCE, CROP_ONLY, FLIP_ONLY])
def test_boxes_hold_their_objects_after_every_transform(augmentation, size):
    for seed in range(15):
        image, boxes, labels = painted(*size, seed)
        rng = np.random.default_rng(seed)
        view = training_view(image, boxes, labels, size[::-1], 224, augmentation, rng)
        assert view.image.shape == (3, 224, 224)
        assert view.image.dtype == torch.uint8
        assert view.boxes_cxcywh.dtype == torch.float32
        assert_boxes_hold_their_colours(view)


def test_a_flip_mirrors_boxes_by_hand():
    image, boxes, labels = painted()
    plain = evaluation_view(image, boxes, labels, (480, 640), 384)
    flipped = training_view(image, boxes, labels, (480, 640), 384, FLIP_ONLY, np.random.default_rng(0))
    assert torch.equal(flipped.image, plain.image.flip(-1))
    cx, *others = flipped.boxes_cxcywh.unbind(dim=1)
    torch.testing.assert_close(cx, 1 - plain.boxes_cxcywh[:, 0], atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.stack(others, 1), plain.boxes_cxcywh[:, 1:], atol=1e-6, rtol=0)


def test_evaluation_boxes_by_hand():
    image, boxes, labels = painted()
    view = evaluation_view(image, boxes, labels, (480, 640), 384)
    x1, y1, x2, y2 = boxes.astype(np.float64).T
    expected = np.stack([(x1 + x2) / 1280, (y1 + y2) / 960, (x2 - x1) / 640, (y2 - y1) / 480], axis=1)
    assert np.abs(view.boxes_cxcywh.numpy() - expected).max() < 1e-6


@pytest.mark.parametrize("side", [224, 384, 704])
def test_evaluation_pixels_are_pillows(side):
    """Pillow rounds in another order: few values differ, by a level or two."""
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8))
    picture = coarse.resize((640, 480), Image.Resampling.BICUBIC)
    image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    view = evaluation_view(image, np.zeros((0, 4), np.float32), np.zeros(0, np.int64), (480, 640), side)
    expected = np.asarray(picture.resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    difference = np.abs(view.image.numpy().astype(int) - expected)
    assert difference.max() <= 2
    assert (difference > 0).mean() < 0.05


def test_boxes_are_scaled_to_a_picture_of_another_size():
    """Annotated on a copy of half the size."""
    image, boxes, labels = painted()
    view = evaluation_view(image, boxes / 2, labels, (240, 320), 384)
    assert_boxes_hold_their_colours(view)
    whole = evaluation_view(image, boxes, labels, (480, 640), 384)
    torch.testing.assert_close(view.boxes_cxcywh, whole.boxes_cxcywh)


@pytest.mark.parametrize("augmentation", [REFERENCE, CROP_ONLY])
def test_no_boxes_are_fine(augmentation):
    image = painted()[0]
    empty = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    for seed in range(4):
        view = training_view(image, *empty, (480, 640), 96, augmentation, np.random.default_rng(seed))
        assert view.boxes_cxcywh.shape == (0, 4)
        assert view.labels.shape == (0,)


def test_crops_show_between_a_third_and_all_of_the_shorter_side():
    """384 to 600 of 400, 500 or 600 pixels: 0.64 to 1 of the shorter side, measured by a grating's scale."""
    ramp = torch.arange(480, dtype=torch.float32).view(1, 480, 1).expand(3, 480, 640) / 480 * 250
    shares = []
    for seed in range(200):
        empty = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
        rng = np.random.default_rng(seed)
        view = training_view(ramp.to(torch.uint8), *empty, (480, 640), 96, CROP_ONLY, rng)
        rows = view.image[0].float().mean(dim=1)
        shares.append((rows[-1] - rows[0]).item() / 250)
    assert min(shares) == pytest.approx(0.64, abs=0.03)
    assert max(shares) == pytest.approx(1.0, abs=0.03)


def test_probabilities():
    image, boxes, labels = painted(120, 90)
    plain = evaluation_view(image, boxes, labels, (90, 120), 48).image
    views = [
        training_view(image, boxes, labels, (90, 120), 48, REFERENCE, np.random.default_rng(seed)).image
        for seed in range(200)
    ]
    unchanged = sum(torch.equal(view, plain) for view in views)
    flipped = sum(torch.equal(view, plain.flip(-1)) for view in views)
    for count in (unchanged, flipped):  # a quarter each
        assert abs(count - 50) < 4 * (200 * 0.25 * 0.75) ** 0.5


def test_normalise_by_hand():
    images = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean = np.array([0.485, 0.456, 0.406]).reshape(3, 1, 1)
    std = np.array([0.229, 0.224, 0.225]).reshape(3, 1, 1)
    expected = (images.numpy().astype(np.float64) / 255 - mean) / std
    result = normalise(images)
    assert result.dtype == torch.float32
    assert np.abs(result.numpy() - expected).max() < 1e-6


def test_one_channel_is_the_luminance_by_hand():
    pixel = torch.tensor([255, 102, 51], dtype=torch.uint8).view(1, 3, 1, 1)  # 1.0, 0.4, 0.2
    luminance = 0.299 * 1.0 + 0.587 * 0.4 + 0.114 * 0.2
    mean, std = (0.485 + 0.456 + 0.406) / 3, (0.229 + 0.224 + 0.225) / 3
    result = normalise(pixel, input_channels=1)
    assert result.shape == (1, 1, 1, 1)
    assert result.item() == pytest.approx((luminance - mean) / std, abs=1e-6)


@pytest.mark.parametrize(
    ("resolution", "patch", "windows", "expected"),
    [
        (384, 16, 2, [224, 256, 288, 320, 352, 384, 416, 448, 480, 512, 544]),
        (704, 16, 2, [544, 576, 608, 640, 672, 704, 736, 768, 800, 832, 864]),
        (560, 14, 4, [280, 336, 392, 448, 504, 560, 616, 672, 728, 784, 840]),
        (128, 8, 2, [48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208]),
        (64, 16, 2, [64, 96, 128, 160, 192, 224]),
    ],
)
def test_training_scales_are_the_references(resolution, patch, windows, expected):
    """The lists that rfdetr 1.11.2 draws from with its default expanded_scales."""
    assert training_scales(resolution, patch * windows) == expected
