"""A training run's parts for the benchmarks, built as `commands/train.py` builds them, with initial weights."""

from typing import Any, NamedTuple

import torch

from rfdetr_train.cli import compose_config
from rfdetr_train.config import TrainConfig
from rfdetr_train.criterion import Criterion
from rfdetr_train.data.sample import Batch
from rfdetr_train.engine.averaging import NoAverage, build_average
from rfdetr_train.engine.optimization import freeze_and_group, prepare_to_train
from rfdetr_train.engine.precision import Precision, choose_device
from rfdetr_train.engine.step import TrainStep
from rfdetr_train.matcher import match
from rfdetr_train.models.rfdetr import RFDETR, build_model

NUM_CLASSES, NUM_TARGETS = 90, 8


class Parts(NamedTuple):
    config: TrainConfig
    model: RFDETR
    criterion: Criterion
    step: TrainStep
    average: NoAverage


def build_parts(overrides: list[str], num_classes: int = NUM_CLASSES) -> Parts:
    """The parts under the config of a command line."""
    config: Any = compose_config("train", overrides)
    torch.manual_seed(config.seed)
    precision = Precision(config.trainer.precision, choose_device(config.trainer.device))
    model = prepare_to_train(build_model(config.model, num_classes), config.trainer, precision.device)
    criterion = Criterion(config.model.num_queries, match)
    _, optimizer = freeze_and_group(config, model, precision.device)
    step = TrainStep(model, criterion, optimizer, precision, config.trainer.clip_norm)
    return Parts(config, model, criterion, step, build_average(config.ema, model))


def random_batch(batch: int, height_px: int, width_px: int, seed: int = 0) -> Batch:
    """Noise with `NUM_TARGETS` boxes in each picture."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (batch, 3, height_px, width_px), generator=generator, dtype=torch.uint8)
    targets = []
    for image_id in range(batch):
        centre = torch.rand(NUM_TARGETS, 2, generator=generator) * 0.6 + 0.2
        size = torch.rand(NUM_TARGETS, 2, generator=generator) * 0.3 + 0.05
        labels = torch.randint(NUM_CLASSES, (NUM_TARGETS,), generator=generator)
        boxes_cxcywh = torch.cat((centre, size), dim=1)
        targets.append(
            {"boxes_cxcywh": boxes_cxcywh, "labels": labels, "image_id": image_id, "size_px": (height_px, width_px)}
        )
    return Batch(images, targets)
