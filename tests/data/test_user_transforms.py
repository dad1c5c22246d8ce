"""The user's own transforms: boxes go with them, their random numbers are the sample's, their mistakes are named."""

import random

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from rfdetr_train.data.canvas import Canvas
from rfdetr_train.data.user_transforms import apply_transforms, build_transforms
from rfdetr_train.errors import UserError


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
