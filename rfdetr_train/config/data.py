"""Data sets."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, Optional

from rfdetr_train.config.checks import FOLDER, MISSING, NOT_NEGATIVE, POSITIVE, SHARE, Section, one_of
from rfdetr_train.errors import UserError, require

FORMATS = ("coco", "yolo", "voc", "csv")


@dataclass
class DataConfig(Section, place="data"):
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
    split_seed: Annotated[int, NOT_NEGATIVE] = 0
    """Seed of that cut."""
    allow_outside_root: bool = False
    """Follow annotation files to pictures outside data.root."""
    num_workers: Annotated[int, NOT_NEGATIVE] = 2
    """Processes that read and transform pictures; 0 reads in the main process. The numbers do not depend on it."""
    on_error: Annotated[str, one_of("error", "skip")] = "error"
    """What an unreadable picture does: error refuses the run, or ends it; skip decodes every picture once before
    training and leaves those out that cannot be, one that breaks later gives way to the next, and each is said."""
    resize: Annotated[str, one_of("stretch", "letterbox")] = "stretch"
    """How a picture is brought to the size of the input: stretch gives it both sides of the input, as the published
    weights expect; letterbox keeps its aspect ratio and pads below and to the right. A checkpoint knows which."""
    negatives: Optional[str] = None
    """Folder of pictures without objects, sub-folders included, that join the train split; null: none."""
    background: Annotated[float, SHARE] = 1.0
    """Share of the train pictures without boxes that an epoch draws, others in each epoch; 1 draws all, 0 none."""
    repeat_threshold: Annotated[Optional[float], POSITIVE, SHARE] = None
    """Share t of the train pictures below which a class is rare: a picture with a class that f of them hold is drawn
    max(1, sqrt(t / f)) times an epoch (LVIS, arXiv 1908.03195); null draws every picture once."""
    max_megapixels: Annotated[float, POSITIVE] = 150.0
    """A picture with more pixels is unreadable: files of a few kilobytes can ask for gigabytes of memory."""
    cache: Annotated[str, one_of("none", "ram", "disk")] = "none"
    """Decode training pictures once, before the first step: ram keeps them in memory that the workers share, disk in a
    file under data.cache_dir that later runs find; none decodes in every epoch. The numbers do not depend on it."""
    cache_dir: Annotated[str, FOLDER] = "~/.cache/rfdetr_train/pictures"
    """Folder of data.cache=disk."""

    def _check(self) -> None:
        unseen = self.negatives is not None and self.background == 0.0
        require(not unseen, "data.negatives", self.negatives, "never seen with data.background=0; raise it")
        known, formats = (*FORMATS, "auto", "shapes"), (*FORMATS, *(["auto"] if self.name == "auto" else []))
        require(self.name in known, "data", self.name, f"choose one of {', '.join(known)}")
        require(self.format in formats, "data.format", self.format, f"choose one of {', '.join(formats)}")
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
    train_images: Annotated[int, POSITIVE] = 80
    """Pictures in the train split."""
    valid_images: Annotated[int, POSITIVE] = 20
    """Pictures in the valid split."""
    image_size_px: int = 256
    """Side of a picture."""
    shapes_seed: int = 0
    """Seed of the pictures."""

    def _check(self) -> None:
        super()._check()
        require(0 <= self.shapes_seed < 2**63, "data.shapes_seed", self.shapes_seed, "give a number from 0 to 2^63 - 1")
        require(self.image_size_px >= 32, "data.image_size_px", self.image_size_px, "give 32 or more")
