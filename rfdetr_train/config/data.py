"""Data sets and what is done to their pictures."""

from dataclasses import dataclass

from rfdetr_train.config.checks import MISSING, fraction, not_negative, one_of, positive
from rfdetr_train.errors import require


@dataclass
class DataConfig:
    """A data set and how it is read."""

    name: str = MISSING
    """shapes or coco."""
    root: str = MISSING
    """Folder of the data set; relative to the working folder."""
    num_workers: int = 2
    """Processes that read and transform pictures; 0 reads in the main process. The numbers do not depend on it."""
    on_error: str = "error"
    """What an unreadable picture does before training: error refuses the run; skip leaves it out and says so."""
    max_megapixels: float = 150.0
    """A picture with more pixels is unreadable: files of a few kilobytes can ask for gigabytes of memory."""
    cache: str = "none"
    """Decode training pictures once, before the first step: ram keeps them in memory that the workers share, disk in a
    file under data.cache_dir that later runs find; none decodes in every epoch. The numbers do not depend on it."""
    cache_dir: str = "~/.cache/rfdetr_train/pictures"
    """Folder of data.cache=disk."""

    def __post_init__(self) -> None:
        not_negative("data", self, "num_workers")
        one_of("data.on_error", self.on_error, "error", "skip")
        positive("data", self, "max_megapixels")
        one_of("data.cache", self.cache, "none", "ram", "disk")
        require(bool(self.cache_dir), "data.cache_dir", repr(self.cache_dir), "give a folder")


@dataclass
class CocoDataConfig(DataConfig):
    """COCO JSON: `{train,valid,test}/_annotations.coco.json` beside the pictures, or `annotations/*.json` + folders."""

    name: str = "coco"


@dataclass
class ShapesDataConfig(DataConfig):
    """The demo set: coloured shapes, written once with a seed as JPEG files and a COCO file."""

    name: str = "shapes"
    root: str = "data/shapes"
    train_images: int = 80
    """Pictures in the train split."""
    valid_images: int = 20
    """Pictures in the valid split."""
    image_size_px: int = 256
    """Side of a picture."""
    shapes_seed: int = 0
    """Seed of the pictures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("data", self, "train_images", "valid_images")
        require(0 <= self.shapes_seed < 2**63, "data.shapes_seed", self.shapes_seed, "give a number from 0 to 2^63 - 1")
        require(self.image_size_px >= 32, "data.image_size_px", self.image_size_px, "give 32 or more")


@dataclass
class AugmentationConfig:
    """Random changes of a training picture: functions of (seed, epoch, index) alone, the scale of (seed, step)."""

    name: str = MISSING
    """Which recipe, as in `augmentation=reference`."""
    horizontal_flip: float = 0.0
    """Probability of a left-right flip."""
    resize_crop: float = 0.0
    """Probability of resize - random crop - resize instead of a plain resize."""
    multi_scale: bool = False
    """Draw the resolution of each step around model.resolution, in steps of patch_size * num_windows."""

    def __post_init__(self) -> None:
        fraction("augmentation.horizontal_flip", self.horizontal_flip)
        fraction("augmentation.resize_crop", self.resize_crop)
