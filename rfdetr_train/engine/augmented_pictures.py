"""Training pictures as an augmentation makes them, to be looked at before a run."""

from collections.abc import Sequence
from contextlib import closing

import torch

from rfdetr_train.boxes import cxcywh_to_xyxy
from rfdetr_train.config import AugmentationConfig
from rfdetr_train.data.canvas import STRETCH, Placement
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.data.sample import Batch, Split
from rfdetr_train.loggers.sheet import Picture


def augmented_pictures(
    split: Split,
    augmentation: AugmentationConfig,
    sides_px: Sequence[int],
    *,
    num_pictures: int,
    seed: int = 0,
    placement: Placement = STRETCH,
) -> list[Picture]:
    """The first num_pictures that a run of this seed would train on, for `loggers.sheet.draw_sheet`.

    `sides_px` as `TrainLoader`'s scales: all pictures have one of these sides.
    """
    loader = TrainLoader(
        split,
        augmentation,
        sides_px,
        batch_size=num_pictures,
        accumulation_steps=1,
        seed=seed,
        num_workers=0,
        placement=placement,
    )
    with loader, closing(loader.epoch(0)) as steps:
        (batch,) = next(steps)
    return pictures_of(batch)


def pictures_of(batch: Batch) -> list[Picture]:
    """A training batch as the network sees it, with its targets."""
    pictures = []
    for image, target, (h, w) in zip(batch.images, batch.targets, batch.frames_in_view_px(), strict=True):
        boxes_xyxy = cxcywh_to_xyxy(target["boxes_cxcywh"]) * torch.tensor([w, h, w, h])
        pictures.append(Picture(image, boxes_xyxy, target["labels"], [], [], []))
    return pictures
