"""Data sets."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Optional

from rfdetr_train.config.checks import MISSING, fraction, not_negative, one_of, positive
from rfdetr_train.errors import UserError, require

FORMATS = ("coco", "yolo", "voc", "csv")


@dataclass
class DataConfig:
    """A data set and how it is read."""

    name: str = MISSING
    """shapes, coco, yolo, voc, csv or auto, as in `data=coco`."""
    root: str = MISSING
    """Folder of the data set; relative to the working folder."""
    format: str = "auto"
    """coco, yolo, voc or csv; auto (with data=auto) finds it out from the files and says so."""
    classes: Optional[list[Any]] = None
    """Which classes to learn: `[cat, dog]` keeps these, `[person, {pet: [cat, dog]}]` joins two of them under a name.
    Boxes of other classes are dropped, their pictures stay. A joined class has the lowest of its ids. null: all."""
    valid_fraction: Optional[float] = None
    """Where there is no valid split: the share of the train split's pictures that is cut off as one."""
    split_seed: int = 0
    """Seed of that cut."""
    allow_outside_root: bool = False
    """Follow annotation files to pictures outside data.root."""
    num_workers: int = 2
    """Processes that read and transform pictures; 0 reads in the main process. The numbers do not depend on it."""
    on_error: str = "error"
    """What an unreadable picture does before training: error refuses the run; skip decodes every picture once, leaves
    those out that cannot be, and says so."""
    resize: str = "stretch"
    """How a picture is brought to the size of the input: stretch gives it both sides of the input, as the published
    weights expect; letterbox keeps its aspect ratio and pads below and to the right. A checkpoint knows which."""
    negatives: Optional[str] = None
    """Folder of pictures without objects, sub-folders included, that join the train split; null: none."""
    background: float = 1.0
    """Share of the train pictures without boxes that an epoch draws, others in each epoch; 1 draws all, 0 none."""
    repeat_threshold: Optional[float] = None
    """Share t of the train pictures below which a class is rare: a picture with a class that f of them hold is drawn
    max(1, sqrt(t / f)) times an epoch (LVIS, arXiv 1908.03195); null draws every picture once."""
    max_megapixels: float = 150.0
    """A picture with more pixels is unreadable: files of a few kilobytes can ask for gigabytes of memory."""
    cache: str = "none"
    """Decode training pictures once, before the first step: ram keeps them in memory that the workers share, disk in a
    file under data.cache_dir that later runs find; none decodes in every epoch. The numbers do not depend on it."""
    cache_dir: str = "~/.cache/rfdetr_train/pictures"
    """Folder of data.cache=disk."""

    def __post_init__(self) -> None:
        not_negative("data", self, "num_workers", "split_seed")
        one_of("data.resize", self.resize, "stretch", "letterbox")
        fraction("data.background", self.background)
        unseen = self.negatives is not None and self.background == 0.0
        require(not unseen, "data.negatives", self.negatives, "never seen with data.background=0; raise it")
        positive("data", self, "repeat_threshold")
        fraction("data.repeat_threshold", self.repeat_threshold or 0.0)
        one_of("data.on_error", self.on_error, "error", "skip")
        positive("data", self, "max_megapixels")
        one_of("data.cache", self.cache, "none", "ram", "disk")
        require(bool(self.cache_dir), "data.cache_dir", repr(self.cache_dir), "give a folder")
        one_of("data", self.name, *FORMATS, "auto", "shapes")
        one_of("data.format", self.format, *FORMATS, *(["auto"] if self.name == "auto" else []))
        own = self.name in ("auto", "shapes", self.format)
        require(own, "data.format", self.format, f"contradicts data={self.name}; give one of them")
        cut = self.valid_fraction
        require(cut is None or 0 < cut < 1, "data.valid_fraction", cut, "give a number between 0 and 1")
        ok = cut is not None or not self.split_seed
        require(ok, "data.split_seed", self.split_seed, "does nothing without data.valid_fraction; leave it out")
        self._check_classes()

    def _check_classes(self) -> None:
        names = [name for _, group in self._class_groups() for name in (group if isinstance(group, list) else [None])]
        if self.classes is not None and not (names and all(isinstance(name, (str, int, float)) for name in names)):
            raise UserError(
                f"data.classes={self.classes}: give names, and lists of names to join: [cat, {{b: [c, d]}}]"
            )
        twice = [name for name, count in Counter(map(str, names)).items() if count > 1]
        require(not twice, "data.classes", self.classes, f"names {', '.join(twice)} twice; give each name once")

    def _class_groups(self) -> list[tuple[Any, Any]]:
        """Each class with the names of its categories."""
        groups = [entry if isinstance(entry, dict) else {entry: [entry]} for entry in self.classes or []]
        return [pair for group in groups for pair in group.items()]

    @property
    def class_of_name(self) -> dict[str, str] | None:
        """The class of each category that `classes` keeps, by the category's name; None where all are kept."""
        pairs = {str(name): str(class_name) for class_name, names in self._class_groups() for name in names}
        return None if self.classes is None else pairs


@dataclass
class ShapesDataConfig(DataConfig):
    """The demo set: coloured shapes, written once with a seed as JPEG files and a COCO file."""

    name: str = "shapes"
    root: str = "data/shapes"
    format: str = "coco"
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
