"""Transforms of the user's own, under random numbers that are the sample's.

They draw from the global generators of torch, numpy and Python, which nothing else may notice.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from rfdetr_train.data.canvas import Canvas, visible
from rfdetr_train.dotted_path import build
from rfdetr_train.errors import UserError

Transform = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes and gives `{"image": tv_tensors.Image, "boxes": tv_tensors.BoundingBoxes, "labels": tensor}`."""


def build_transforms(entries: Sequence[dict[str, Any]]) -> list[Transform]:
    """The transforms that `augmentation.extra` names. Raises: UserError for a path or arguments that will not do."""
    transforms = build(list(entries), "augmentation.extra")
    for index, (transform, entry) in enumerate(zip(transforms, entries, strict=True)):
        if not callable(transform):
            raise UserError(
                f"augmentation.extra[{index}]._target_={entry['_target_']}: makes nothing that can be called"
            )
    return transforms


def apply_transforms(
    transforms: Sequence[Transform], canvas: Canvas, rng: np.random.Generator, min_visible: float
) -> Canvas:
    """The canvas after all transforms; boxes as `canvas.visible` leaves them.

    Raises: UserError that names a transform which fails, changes the size of the picture, or gives no uint8 picture
    with a label for each box.
    """
    image = tv_tensors.Image(canvas.image.clone())
    sample = {"image": image, "boxes": canvas.tv_boxes(), "labels": canvas.labels}
    with _global_generators_seeded(int(rng.integers(2**32))):
        for transform in transforms:
            try:
                sample = transform(sample)
                _check(sample, canvas.size_px)
            except Exception as error:
                raise UserError(f"augmentation.extra: {transform} fails: {type(error).__name__}: {error}") from error
    boxes = functional.convert_bounding_box_format(sample["boxes"], new_format="XYXY").as_subclass(torch.Tensor)
    return visible(Canvas(sample["image"].as_subclass(torch.Tensor), boxes, sample["labels"]), min_visible)


def _check(sample: dict[str, Any], size_px: tuple[int, int]) -> None:
    image, boxes, labels = sample["image"], sample["boxes"], sample["labels"]
    if image.dtype != torch.uint8 or image.shape[0] != 3:
        raise ValueError(f"its picture is {image.dtype} {tuple(image.shape)}, and should stay uint8 (3, height, width)")
    if image.shape[1:] != size_px:
        raise ValueError(f"it makes a picture of {size_px} {tuple(image.shape[1:])}; model.resolution sets the size")
    if not isinstance(boxes, tv_tensors.BoundingBoxes) or len(boxes) != len(labels):
        raise ValueError(f"it gives {len(boxes)} {type(boxes).__name__} with {len(labels)} labels")


@contextmanager
def _global_generators_seeded(seed: int) -> Iterator[None]:
    """Within, the global generators start at `seed` (below 2^32); behind, they go on as if nothing had been drawn."""
    before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach CUDA's generators too
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.default_generator.set_state(before[2])
