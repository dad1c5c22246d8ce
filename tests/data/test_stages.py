"""Each stage against a closed form, torchvision, or a picture whose pixels say where they come from."""

import math
import random

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from rfdetr_train.config import AugmentationConfig
from rfdetr_train.data.canvas import GROUND_RGB, Canvas, ground
from rfdetr_train.data.stages import (
    _turn_about_grey,
    affine,
    apply_transforms,
    build_transforms,
    copy_paste,
    iou_crop,
    mixup,
    mosaic,
    photometric,
    quarter_turn,
    zoom_out,
)
from rfdetr_train.errors import UserError


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


def canvas():
    image = torch.randint(0, 256, (3, 30, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Canvas(image, torch.tensor([[1.0, 2.0, 11.0, 22.0], [30.0, 10.0, 40.0, 30.0]]), torch.tensor([4, 5]))


def apply(*transforms, seed=0, min_visible=0.0):
    return apply_transforms(transforms, canvas(), np.random.default_rng(seed), min_visible)


def noise(sample):
    """Draws from all three global generators."""
    drawn = torch.tensor([random.randrange(256), np.random.randint(256), int(torch.randint(256, ()))])
    return sample | {"image": type(sample["image"])(torch.zeros_like(sample["image"]) + drawn.view(3, 1, 1).byte())}


def test_built_from_paths_and_nested_ones():
    flip = {"_target_": "torchvision.transforms.v2.RandomHorizontalFlip", "p": 1.0}
    chance = {"_target_": "torchvision.transforms.v2.RandomApply", "transforms": [flip], "p": 1.0}
    blur = {"_target_": "torchvision.transforms.v2.GaussianBlur", "kernel_size": [3, 3], "sigma": [0.1, 2.0]}
    transforms = build_transforms([chance, blur])
    flipped = apply(transforms[0])
    assert torch.equal(flipped.image, canvas().image.flip(-1))
    assert flipped.boxes_xyxy.tolist() == [[29, 2, 39, 22], [0, 10, 10, 30]]
    assert isinstance(transforms[1], v2.GaussianBlur)
    assert not torch.equal(apply(transforms[1]).image, canvas().image)


def test_boxes_are_cut_and_dropped_with_the_picture():
    def shift(sample):
        moved = {"angle": 0.0, "translate": [-6, 0], "scale": 1.0, "shear": [0.0, 0.0]}
        return sample | {key: v2.functional.affine(sample[key], **moved) for key in ("image", "boxes")}

    part = apply(shift)
    assert part.boxes_xyxy.tolist() == [[0, 2, 5, 22], [24, 10, 34, 30]]
    assert part.labels.tolist() == [4, 5]
    assert apply(shift, min_visible=0.6).labels.tolist() == [5]


def test_another_box_format_is_read():
    assert apply(v2.ConvertBoundingBoxFormat("CXCYWH")).boxes_xyxy.tolist() == canvas().boxes_xyxy.tolist()


def test_random_numbers_are_the_samples_and_nobody_else_notices():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first, second, other = apply(noise, seed=0), apply(noise, seed=0), apply(noise, seed=1)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    assert torch.equal(first.image, second.image)
    for channel in range(3):
        assert first.image[channel, 0, 0] != other.image[channel, 0, 0]


def test_the_picture_that_came_in_is_left_alone():
    def blacken(sample):
        sample["image"].zero_()
        return sample

    source = canvas()
    assert not apply_transforms([blacken], source, np.random.default_rng(0), 0.0).image.any()
    assert torch.equal(source.image, canvas().image)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"_target_": "GaussianBlur"}, ["augmentation.extra[0]._target_=GaussianBlur", "dotted path"]),
        ({"_target_": "torchvision.transforms.v2.Blur"}, ["torchvision.transforms.v2.Blur", "cannot be imported"]),
        ({"_target_": "torchvision.transforms.v2.GausianBlur"}, ["did you mean GaussianBlur?"]),
        ({"_target_": "torchvision.transforms.v2.GaussianBlur"}, ["extra[0]", "refuses its arguments", "kernel_size"]),
        ({"_target_": "fractions.Fraction"}, ["extra[0]", "fractions.Fraction", "called"]),
    ],
)
def test_refused_before_work_starts(entry, words):
    with pytest.raises(UserError) as refusal:
        build_transforms([entry])
    assert [word for word in words if word not in str(refusal.value)] == []


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (v2.ToDtype(torch.float32, scale=True), ["ToDtype", "torch.float32", "uint8"]),
        (v2.Grayscale(), ["Grayscale", "(1, 30, 40)"]),
        (v2.RandomCrop(100), ["RandomCrop", "100"]),
        (lambda s: s | {"labels": s["labels"][:1]}, ["2 BoundingBoxes with 1 labels"]),
        (lambda s: None, ["NoneType"]),
        (v2.Resize([32, 32]), ["Resize", "(30, 40)", "(32, 32)", "model.resolution"]),
    ],
)
def test_a_transform_that_fails_is_named(transform, words):
    with pytest.raises(UserError, match=r"augmentation\.extra") as refusal:
        apply(transform)
    assert [word for word in words if word not in str(refusal.value)] == []
