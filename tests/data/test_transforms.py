"""Boxes stay on their objects; pixels are those of an independent resize."""

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional
from weak_stages import WEAK_STAGES

from rfdetr_train.cli import compose_config, conf_dir
from rfdetr_train.cli_help import option_names
from rfdetr_train.config import STRONG_STAGES, AugmentationConfig
from rfdetr_train.data.canvas import Canvas
from rfdetr_train.data.transforms import evaluation_view, normalise, source_side_px, training_scales, training_view

NONE = AugmentationConfig(name="none")
REFERENCE = AugmentationConfig(name="reference", horizontal_flip=0.5, resize_crop=0.5, multi_scale=True)
CROP_ONLY = AugmentationConfig(name="crop", resize_crop=1.0)
FLIP_ONLY = AugmentationConfig(name="flip", horizontal_flip=1.0)
SIZES = [(640, 480), (200, 300), (1200, 300)]


def painted(width=640, height=480, seed=0):
    """A black picture with up to three rectangles: label 0 in red, 1 in green, 2 in blue; boxes xyxy."""
    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3), dtype=np.uint8)
    boxes = []
    for label in range(3):
        left, top = (label % 2) * width // 2, (label // 2) * height // 2
        x1, x2 = left + rng.integers(0, width // 8), left + rng.integers(width // 4, width // 2 - 4)
        y1, y2 = top + rng.integers(0, height // 8), top + rng.integers(height // 4, height // 2 - 4)
        image[y1:y2, x1:x2, label] = 250
        boxes.append((x1, y1, x2, y2))
    image = torch.from_numpy(image).permute(2, 0, 1)
    return Canvas.of(image, np.array(boxes, dtype=np.float32), np.arange(3), (height, width))


def empty(image):
    """A picture without boxes."""
    return Canvas.of(image, np.zeros((0, 4), np.float32), np.zeros(0, np.int64), tuple(image.shape[1:]))


def other_pictures(seed):
    """A function that gives one painted picture after the other, every third of them without objects."""
    numbers = itertools.count(1000 * seed)

    def another():
        number = next(numbers)
        width, height = SIZES[number % 3]
        canvas = painted(width, height, number)
        return empty(canvas.image * 0) if number % 3 == 0 else canvas

    return another


def view_of(augmentation, size, seed, side=224):
    width, height = size
    rng = np.random.default_rng(seed)
    return training_view(painted(width, height, seed), side, augmentation, rng, other_pictures(seed))


def assert_boxes_hold_their_colours(view, tilted=False):
    """Every pixel of a colour is in a box of its label, and every box has the colour at each of its four sides.

    All to 2 pixels; a line of one pixel is the blur of an object that was cut off just beside it. Of a tilted picture
    only boxes away from the border are so tight: the border cuts corners off the others' objects.
    """
    side = view.image.shape[-1]
    cx, cy, w, h = (view.boxes_cxcywh.double() * side).unbind(dim=1)
    boxes = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], dim=1)
    assert boxes.numel() == 0 or (boxes.min() > -1e-3 and boxes.max() < side + 1e-3)
    above_grey = view.image.int() - view.image.int().amin(dim=0)  # the ground is nearly grey, mixed colours are not
    for label in range(3):
        mine = boxes[view.labels == label].tolist()
        seen = above_grey[label] > 40
        uncovered = seen.clone()
        for x1, y1, x2, y2 in mine:
            uncovered[max(round(y1) - 2, 0) : round(y2) + 2, max(round(x1) - 2, 0) : round(x2) + 2] = False
        uncovered = uncovered[2:-2, 2:-2]
        uncovered = uncovered[1:, 1:] & uncovered[1:, :-1] & uncovered[:-1, 1:] & uncovered[:-1, :-1]
        assert not uncovered.any(), f"label {label} has {int(uncovered.sum())} pixels outside of its boxes"
        for x1, y1, x2, y2 in mine:
            inside = min(x1, y1, side - x2, side - y2) > 2
            if min(x2 - x1, y2 - y1) < 4 or (tilted and not inside):
                continue
            part = seen[max(round(y1), 0) : round(y2), max(round(x1), 0) : round(x2)]
            for strip in (part[:2], part[-2:], part[:, :2], part[:, -2:]):
                assert strip.any(), f"a box of label {label} is wider than its object"


def group(name):
    """What conf/augmentation/ says, but for what hides objects from this test."""
    augmentation = compose_config("train", [f"augmentation={name}"]).augmentation
    return replace(augmentation, photometric=0.0, min_visible=0.0, min_box_px=0.0)


STAGES = [stage for stage in (*WEAK_STAGES, *STRONG_STAGES) if stage != "photometric"]
ALL = replace(NONE, **dict.fromkeys(STAGES, 0.5))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("augmentation", [*STAGES, ALL, *map(group, option_names(conf_dir())["augmentation"])],
                         ids=lambda a: getattr(a, "name", a))  # fmt: skip
def test_boxes_hold_their_objects_after_every_transform(augmentation, size):
    if isinstance(augmentation, str):
        augmentation = replace(NONE, **{augmentation: 1.0})
    for seed in range(12):
        view = view_of(augmentation, size, seed)
        assert view.image.shape == (3, 224, 224)
        assert view.image.dtype == torch.uint8
        assert view.boxes_cxcywh.dtype == torch.float32
        assert view.labels.dtype == torch.int64
        assert_boxes_hold_their_colours(view, tilted=augmentation.affine > 0)


def test_the_reference_recipe_by_hand():
    """Its random numbers in their order, the functions of torchvision, and nothing else."""
    for seed in range(12):
        image, boxes, labels = painted(seed=seed)
        boxes, labels = boxes.numpy(), labels.numpy()
        rng = np.random.default_rng(seed)
        flip, crop = rng.random() < 0.5, rng.random() < 0.5
        if crop:
            image = functional.resize(image, [short := int(rng.choice((400, 500, 600)))], antialias=True)
            boxes = boxes * ([image.shape[2] / 640, image.shape[1] / 480] * 2)
            side = int(rng.integers(min(384, short), short, endpoint=True))
            top = int(rng.integers(0, short - side, endpoint=True))
            left = int(rng.integers(0, image.shape[-1] - side, endpoint=True))
            image = image[:, top : top + side, left : left + side]
            boxes = (boxes - [left, top, left, top]).clip(0, side)
        height, width = image.shape[1:]
        image = functional.resize(image, [224, 224], antialias=True)
        boxes = boxes / [width, height, width, height]
        kept = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        boxes, labels = boxes[kept], labels[kept]
        if flip:
            image, boxes = image.flip(-1), np.stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]], 1)
        view = view_of(REFERENCE, (640, 480), seed)
        assert torch.equal(view.image, image)
        assert view.labels.tolist() == labels.tolist()
        expected = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=1)
        assert np.abs(view.boxes_cxcywh.numpy() - expected).max(initial=0) < 1e-5


@pytest.mark.parametrize(
    ("key", "values", "stages"),
    [
        ("zoom_out_most", (2.0, 3.0), ["zoom_out"]),
        ("affine_degrees", (5.0, 10.0), ["affine"]),
        ("affine_scale", (0.25, 0.5), ["affine"]),
        ("affine_translate", (0.1, 0.2), ["affine"]),
        ("photometric_strength", (0.5, 0.9), ["photometric"]),
        ("min_visible", (0.0, 1.0), ["resize_crop"]),
        ("min_box_px", (0.0, 80.0), []),
        *((stage, (0.0, 1.0), []) for stage in (*WEAK_STAGES, *STRONG_STAGES)),
    ],
)
def test_every_key_changes_views(key, values, stages):
    base = replace(NONE, **dict.fromkeys(stages, 1.0))
    first, second = (
        [view_of(replace(base, **{key: value}), (640, 480), seed) for seed in range(4)] for value in values
    )
    assert any(
        not torch.equal(a.image, b.image) or a.boxes_cxcywh.shape != b.boxes_cxcywh.shape
        for a, b in zip(first, second, strict=True)
    )
    tested = {"name", "multi_scale", "off_last_epochs", "extra", *(STRONG_STAGES + WEAK_STAGES)} | {
        "zoom_out_most", "affine_degrees", "affine_scale", "affine_translate", "photometric_strength",
        "min_visible", "min_box_px",
    }  # fmt: skip
    assert {item.name for item in fields(AugmentationConfig)} == tested


def test_min_visible_is_a_share_of_the_box():
    """A box of which a crop leaves less than half is dropped by 0.5; at 0 every visible part keeps its box."""
    half = replace(CROP_ONLY, min_visible=0.5)
    dropped = 0
    for seed in range(30):
        everything, large = (view_of(augmentation, (640, 480), seed) for augmentation in (CROP_ONLY, half))
        missing = set(everything.labels.tolist()) - set(large.labels.tolist())
        dropped += len(missing)
        plain = painted(640, 480, seed)[1]
        for label in range(3):
            if label in large.labels:
                x1, y1, x2, y2 = plain[label]
                most = (x2 - x1) * (y2 - y1) / (640 * 480)
                w, h = large.boxes_cxcywh[large.labels == label][0, 2:].tolist()
                assert w * h >= 0.5 * most  # the crop only makes objects larger
    assert dropped > 0


def test_photometric_leaves_boxes_alone():
    for seed in range(4):
        plain, coloured = (view_of(replace(NONE, photometric=p), (640, 480), seed) for p in (0.0, 1.0))
        assert torch.equal(plain.boxes_cxcywh, coloured.boxes_cxcywh)
        assert torch.equal(plain.labels, coloured.labels)
        assert not torch.equal(plain.image, coloured.image)


def test_a_stage_that_is_off_draws_nothing():
    """So a recipe's flips and crops stay the same ones when photometric joins them."""
    for seed in range(8):
        without, coloured = (view_of(replace(REFERENCE, photometric=p), (640, 480), seed) for p in (0.0, 1.0))
        assert torch.equal(without.boxes_cxcywh, coloured.boxes_cxcywh)


def test_a_flip_mirrors_boxes_by_hand():
    plain = evaluation_view(painted(), 384)
    flipped = training_view(painted(), 384, FLIP_ONLY, np.random.default_rng(0))
    assert torch.equal(flipped.image, plain.image.flip(-1))
    cx, *others = flipped.boxes_cxcywh.unbind(dim=1)
    torch.testing.assert_close(cx, 1 - plain.boxes_cxcywh[:, 0], atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.stack(others, 1), plain.boxes_cxcywh[:, 1:], atol=1e-6, rtol=0)


def test_a_picture_upside_down():
    """Resized before and after, the pixels agree but for rounding."""
    plain = evaluation_view(painted(), 384)
    recipe = AugmentationConfig(name="upside down", vertical_flip=1.0)
    turned = training_view(painted(), 384, recipe, np.random.default_rng(0))
    assert (turned.image.int() - plain.image.flip(-2).int()).abs().max() <= 1
    expected = plain.boxes_cxcywh * torch.tensor([1, -1, 1, 1]) + torch.tensor([0, 1, 0, 0])
    torch.testing.assert_close(turned.boxes_cxcywh, expected, atol=1e-6, rtol=0)


def test_evaluation_boxes_by_hand():
    canvas = painted()
    view = evaluation_view(canvas, 384)
    x1, y1, x2, y2 = canvas.boxes_xyxy.double().numpy().T
    expected = np.stack([(x1 + x2) / 1280, (y1 + y2) / 960, (x2 - x1) / 640, (y2 - y1) / 480], axis=1)
    assert np.abs(view.boxes_cxcywh.numpy() - expected).max() < 1e-6


@pytest.mark.parametrize("side", [224, 384, 704])
def test_evaluation_pixels_are_pillows(side):
    """Pillow rounds in another order: few values differ, by a level or two."""
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8))
    picture = coarse.resize((640, 480), Image.Resampling.BICUBIC)
    image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    view = evaluation_view(empty(image), side)
    expected = np.asarray(picture.resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    difference = np.abs(view.image.numpy().astype(int) - expected)
    assert difference.max() <= 2
    assert (difference > 0).mean() < 0.05


def test_boxes_are_scaled_to_a_picture_of_another_size():
    """Annotated on a copy of half the size."""
    whole = painted()
    image, boxes, labels = whole
    view = evaluation_view(Canvas.of(image, boxes.numpy() / 2, labels.numpy(), (240, 320)), 384)
    assert_boxes_hold_their_colours(view)
    torch.testing.assert_close(view.boxes_cxcywh, evaluation_view(whole, 384).boxes_cxcywh)


@pytest.mark.parametrize("stage", [*WEAK_STAGES, *STRONG_STAGES])
def test_no_boxes_are_fine(stage):
    nothing = empty(painted().image)
    augmentation = replace(NONE, **{stage: 1.0})
    for seed in range(4):
        view = training_view(nothing, 96, augmentation, np.random.default_rng(seed), lambda: nothing)
        assert view.boxes_cxcywh.shape == (0, 4)
        assert view.labels.shape == (0,)


def test_crops_show_between_a_third_and_all_of_the_shorter_side():
    """384 to 600 of 400, 500 or 600 pixels: 0.64 to 1 of the shorter side, measured by a grating's scale."""
    ramp = torch.arange(480, dtype=torch.float32).view(1, 480, 1).expand(3, 480, 640) / 480 * 250
    shares = []
    for seed in range(200):
        view = training_view(empty(ramp.to(torch.uint8)), 96, CROP_ONLY, np.random.default_rng(seed))
        rows = view.image[0].float().mean(dim=1)
        shares.append((rows[-1] - rows[0]).item() / 250)
    assert min(shares) == pytest.approx(0.64, abs=0.03)
    assert max(shares) == pytest.approx(1.0, abs=0.03)


def test_probabilities():
    plain = evaluation_view(painted(120, 90), 48).image
    views = [training_view(painted(120, 90), 48, REFERENCE, np.random.default_rng(seed)).image for seed in range(200)]
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


def test_a_crop_wants_the_pixels_of_its_smallest_window():
    assert source_side_px(384, FLIP_ONLY) == 384
    assert source_side_px(384, REFERENCE) == 600
    assert source_side_px(384, AugmentationConfig(name="iou", iou_crop=0.1)) == 1280  # 0.3 of it are 384
