"""The data of a training run: read, checked, and turned into batches."""

import logging
from pathlib import Path

from rfdetr_train import distributed
from rfdetr_train.checkpoint.environment import versions
from rfdetr_train.config import TrainConfig
from rfdetr_train.criterion import find_class_weights
from rfdetr_train.data.canvas import Placement
from rfdetr_train.data.dataset import read_dataset, with_negatives
from rfdetr_train.data.image_check import check_images
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.data.picture_cache import PictureCache, open_cache
from rfdetr_train.data.plan import count_steps, draws_of_epoch, draws_per_picture
from rfdetr_train.data.sample import Dataset, Split
from rfdetr_train.data.stages import build_transforms
from rfdetr_train.data.transforms import source_side_px, training_scales
from rfdetr_train.engine.course import RunLength
from rfdetr_train.loggers.progress import Counter

log = logging.getLogger(__name__)


def load_data(config: TrainConfig) -> Dataset:
    """Read the data set and look at every picture once, before anything expensive is built."""
    build_transforms(config.augmentation.extra)  # what it refuses is refused before pictures are looked at
    with Counter("reading sizes of pictures") as counter:
        dataset = read_dataset(config.data, progress=counter.show)
    names = dataset.label_map.names
    find_class_weights(config.loss.class_weights, names, [1] * len(names))  # so is a name that no class has
    if config.data.negatives is not None:
        dataset = with_negatives(dataset, config.data.negatives)
    with Counter("checking pictures") as counter:
        dataset = check_images(dataset, config.data.on_error, counter.show, config.data.max_megapixels)
    log.info("JPEG pictures are decoded by %s", versions()["jpeg_decoder"])
    log.info("%s: %d classes (%s)", dataset.root, len(names), ", ".join(names[:20]))
    for name, split in dataset.splits.items():
        dropped = ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in dataset.dropped[name].items()) or "nothing"
        log.info("%s: %d pictures, %d boxes, dropped: %s", name, len(split), len(split.labels), dropped)
    if not len(dataset.splits["valid"].labels):
        log.warning("the valid split has no boxes: there will be no AP, and so no best checkpoint to choose")
    return dataset


def training_sides(config: TrainConfig) -> list[int]:
    """The sides in pixels that the input of a step may have; its heights, where it is no square."""
    model = config.model
    if not config.augmentation.multi_scale:
        return [model.resolution]
    place = Placement.of(config.data.resize, model)
    sides = training_scales(model.resolution, model.stride)
    return [side for side in sides if model.num_tokens(*place.view_px(side)) >= model.num_queries]


def build_loader(config: TrainConfig, dataset: Dataset, pin_memory: bool) -> TrainLoader:
    """The train split in micro-batches."""
    split, trainer, augmentation = dataset.splits["train"], config.trainer, config.augmentation
    assert isinstance(trainer.batch_size, int)
    sides, draws = training_sides(config), draws_per_picture(split, config.data)
    place = Placement.of(config.data.resize, config.model)
    batch_size = trainer.batch_size * distributed.size()
    steps_per_epoch = count_steps(draws_of_epoch(len(split), draws), batch_size, trainer.accumulation_steps)
    num_epochs = RunLength(steps_per_epoch, trainer.epochs, trainer.max_steps).num_epochs
    if augmentation.in_epoch(num_epochs - 1, num_epochs) != augmentation:
        calm_from = augmentation.calm_from(num_epochs)
        log.info("augmentation=%s: no strong stages from epoch %d on (off_last_epochs)", augmentation.name, calm_from)
    return TrainLoader(
        split,
        augmentation,
        sides,
        batch_size=batch_size,
        accumulation_steps=trainer.accumulation_steps,
        seed=config.seed,
        num_workers=config.data.num_workers,
        num_epochs=num_epochs,
        pin_memory=pin_memory,
        cache=build_cache(config, split, source_side_px(max(place.view_px(max(sides))), augmentation)),
        draws_per_picture=draws,
        placement=place,
        share=distributed.own_share,
    )


def build_cache(config: TrainConfig, split: Split, at_least_px: int | None) -> PictureCache | None:
    """The decoded pictures of `split`, where data.cache says that they are kept."""
    if config.data.cache == "none":
        return None
    with distributed.one_after_the_first(), Counter("decoding pictures") as counter:
        return open_cache(split, at_least_px, config.data.cache, Path(config.data.cache_dir), counter.show)
