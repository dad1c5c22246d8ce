"""Each stage against a closed form, torchvision, or a picture whose pixels say where they come from."""

import math

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from rfdetr_train.config import AugmentationConfig
from rfdetr_train.data.canvas import GROUND_RGB, Canvas, ground
from rfdetr_train.data.stages import _turn_about_grey, affine, iou_crop, photometric, quarter_turn, zoom_out


def coordinates(height=150, width=200, boxes=((20, 10, 60, 90), (100, 100, 180, 140))):
    """A picture that holds x in red and y in green, in blue 250."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    image = torch.stack([x, y, torch.full_like(x, 250)]).to(torch.uint8)
    return Canvas(image, boxes, torch.arange(len(boxes)))


class Drawn:
    """An rng whose `uniform` has drawn these numbers."""

    def __init__(self, *numbers):
        self.numbers = np.array(numbers)

    def uniform(self, *_):
        return self.numbers


class WithFloor:
    """An rng of which `choice` has drawn this floor."""

    def __init__(self, seed, floor):
        self.choice = lambda _: floor
        rng = np.random.default_rng(seed)
        self.uniform, self.random = rng.uniform, rng.random


@pytest.mark.parametrize("seed", range(4))
def test_a_quarter_turn_is_numpys(seed):
    """Corners move as pixels do: to the left (x, y) -> (y, W - x), to the right (x, y) -> (H - y, x)."""
    canvas = coordinates(boxes=[(20, 10, 60, 90)])
    turned = quarter_turn(canvas, np.random.default_rng(seed))
    lefts = np.random.default_rng(seed).random() < 0.5
    assert np.array_equal(turned.image.numpy(), np.rot90(canvas.image.numpy(), 1 if lefts else 3, (1, 2)))
    expected = [10, 200 - 60, 90, 200 - 20] if lefts else [150 - 90, 20, 150 - 10, 60]
    assert turned.boxes_xyxy[0].tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("floor", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9])
def test_an_iou_crop_reaches_its_floor(floor):
    """The window is read off the pixels; IoU of integer boxes by hand."""
    cut = 0
    for seed in range(40):
        canvas = coordinates()
        part = iou_crop(canvas, WithFloor(seed, floor), 0.0)
        height, width = part.size_px
        if (height, width) == (150, 200):
            continue
        cut += 1
        left, top = part.image[:2, 0, 0].tolist()
        assert part.image[:2, -1, -1].tolist() == [left + width - 1, top + height - 1]
        assert height >= 0.3 * 150
        assert width >= 0.3 * 200
        assert 0.49 < (height / 150) / (width / 200) < 2.04  # sides are whole pixels
        ious = []
        for x1, y1, x2, y2 in canvas.boxes_xyxy.tolist():
            across = max(0, min(x2, left + width) - max(x1, left))
            down = max(0, min(y2, top + height) - max(y1, top))
            ious.append(across * down / ((x2 - x1) * (y2 - y1) + height * width - across * down))
        assert max(ious) > floor
    assert cut == 0 if floor == 0.9 else cut > 20 if floor < 0.5 else True


def test_an_iou_crop_without_boxes():
    part = iou_crop(coordinates(boxes=[]), np.random.default_rng(0), 0.0)
    assert part.size_px != (150, 200)
    assert part.boxes_xyxy.shape == (0, 4)


def test_a_tiny_picture_can_be_cut():
    canvas = coordinates(2, 1, [(0, 0, 1, 1)])
    for seed in range(10):
        assert min(iou_crop(canvas, np.random.default_rng(seed), 0.0).size_px) >= 1


def test_zoom_out_by_up_to_its_most():
    shares = []
    for seed in range(60):
        canvas = coordinates(boxes=[(0, 0, 200, 150)])
        small = zoom_out(canvas, np.random.default_rng(seed), 2.5)
        assert small.size_px == (150, 200)
        x1, y1, x2, y2 = small.boxes_xyxy[0].int().tolist()
        outside = small.image.clone().int() - torch.tensor(GROUND_RGB).view(3, 1, 1)
        outside[:, y1:y2, x1:x2] = 0
        assert not outside.any()
        assert (small.image[2, y1:y2, x1:x2] == 250).all()
        shares.append((x2 - x1) / 200)
    assert min(shares) == pytest.approx(1 / 2.5, abs=0.03)
    assert max(shares) == pytest.approx(1.0, abs=0.05)


def test_affine_by_hand():
    """No turn, half the size, 20 pixels to the right: x -> 100 + (x - 100) / 2 + 20, y -> 75 + (y - 75) / 2."""
    recipe = AugmentationConfig(name="x", affine_degrees=0.0, affine_scale=1.0, affine_translate=0.1)
    moved = affine(coordinates(), Drawn(0.0, -1.0, 1.0, 0.0), recipe)
    assert moved.boxes_xyxy[0].tolist() == pytest.approx([80, 42.5, 100, 82.5], abs=1e-3)
    assert moved.image[:2, 75, 120].tolist() == pytest.approx([100.5, 75.5], abs=1)
    assert moved.image[:, 5, 5].tolist() == list(GROUND_RGB)


def test_affine_has_no_seam():
    """Ground stays ground: nothing darker shows where the picture ends."""
    moved = affine(ground((40, 60)), np.random.default_rng(0), AugmentationConfig(name="x", affine_degrees=30.0))
    assert torch.equal(moved.image, ground((40, 60)).image)


@pytest.mark.parametrize(
    ("drawn", "theirs"),
    [
        ((1, 0, 0, 0), lambda image: functional.adjust_contrast(image, 1.5)),
        ((0, -1, 0, 0), lambda image: functional.adjust_saturation(image, 1 / 1.5)),
        ((0, 0, 1, 0), lambda image: functional.adjust_brightness(image, 1.125)),
        ((0, 0, 0, 0), lambda image: image),
    ],
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_photometric_is_torchvisions(drawn, theirs, channels_last):
    """Strength 0.5; torchvision rounds down, and its grey to whole levels."""
    image = torch.randint(0, 256, (3, 30, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    if channels_last:
        image = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    ours = photometric(ground((1, 1))._replace(image=image), Drawn(*drawn), 0.5).image
    assert ours.dtype == torch.uint8
    assert (ours.int() - theirs(image).int()).abs().max() <= 2


def test_hue_turns_about_grey():
    """A third of a circle takes red to green, green to blue and blue to red; a turn keeps greys and lengths."""
    third = _turn_about_grey(2 * math.pi / 3)
    assert torch.allclose(third @ torch.eye(3), torch.eye(3)[[2, 0, 1]], atol=1e-6)
    some = _turn_about_grey(0.3).double()
    assert torch.allclose(some @ some.T, torch.eye(3).double(), atol=1e-6)
    assert torch.allclose(some @ torch.ones(3).double(), torch.ones(3).double(), atol=1e-6)
