"""One split as its files tell it, in the same columns for every format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rfdetr_train.boxes import xyxy_to_xywh
from rfdetr_train.errors import listed


class Category(NamedTuple):
    """A row of a category table."""

    category_id: int
    name: str
    supercategory: str | None = None


@dataclass(frozen=True)
class RawSplit:
    """N pictures and M boxes, nothing of them judged yet."""

    source: Path
    """The file or folder that messages name."""
    folder: Path
    """Folder that the file names start from."""
    file_names: list[str]
    image_ids: np.ndarray
    """int64 (N,)."""
    sizes_px: np.ndarray
    """int64 (N, 2), (height, width)."""
    categories: list[Category]
    names_decide: bool
    """The format knows classes by their names, and the ids are only this split's; else ids decide."""
    box_image_ids: np.ndarray
    """int64 (M,), some perhaps of no picture."""
    category_ids: np.ndarray
    """int64 (M,)."""
    boxes_xywh: np.ndarray
    """float64 (M, 4) in pixels, anywhere and of any size."""
    areas: np.ndarray
    """float64 (M,) in square pixels, NaN where the file gives none."""
    crowd: np.ndarray
    """bool (M,): a region that counts in evaluation but is no training target."""
    describe: Callable[[Sequence[int]], str]
    """Names boxes, given as rows of the arrays, so that their owner finds them in the files."""
    box_ids: np.ndarray | None = None
    """int64 (M,), the file's own; nothing goes by them."""

    @cached_property
    def owners(self) -> np.ndarray:
        """int64 (M,), the picture of each box; -1 where it is of none."""
        index_of_id = {image_id: index for index, image_id in enumerate(self.image_ids.tolist())}
        return np.array([index_of_id.get(i, -1) for i in self.box_image_ids.tolist()], dtype=np.int64)


class NamedBox(NamedTuple):
    """A box of a format that tells classes by name and pictures by file name."""

    place: tuple[Path, int]
    """File and line."""
    name: str
    """Of its class."""
    numbers: tuple[float, ...]
    """Its four, as the format has them."""
    crowd: bool = False


def split_of_named_boxes(
    source: Path,
    folder: Path,
    file_names: list[str],
    sizes_px: np.ndarray,
    boxes: Sequence[Sequence[NamedBox]],
    to_xywh: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda corners, _: xyxy_to_xywh(corners),
    categories: list[Category] | None = None,
) -> RawSplit:
    """The split of such boxes, given by picture.

    A picture's id is its place among the file names, from 1. So is a category's id among the names in their order,
    unless `categories` has others. `to_xywh` turns the numbers (M, 4), in pictures of (height, width) (M, 2), into xywh
    in pixels; without it they are corners in pixels.
    """
    flat = [box for of_picture in boxes for box in of_picture]
    owners = np.repeat(np.arange(len(file_names)), [len(of_picture) for of_picture in boxes])
    if categories is None:
        categories = [Category(place, name) for place, name in enumerate(sorted({box.name for box in flat}), start=1)]
    id_of_name = {category.name: category.category_id for category in categories}
    return RawSplit(
        source=source,
        folder=folder,
        file_names=file_names,
        image_ids=np.arange(1, len(file_names) + 1),
        sizes_px=sizes_px,
        categories=categories,
        names_decide=True,
        box_image_ids=owners + 1,
        category_ids=np.array([id_of_name[box.name] for box in flat], dtype=np.int64),
        boxes_xywh=to_xywh(np.array([box.numbers for box in flat], dtype=np.float64).reshape(-1, 4), sizes_px[owners]),
        areas=np.full(len(flat), np.nan),
        crowd=np.array([box.crowd for box in flat], dtype=bool),
        describe=lambda rows: listed("{}:{}".format(*flat[row].place) for row in rows),
    )
