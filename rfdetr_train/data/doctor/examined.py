"""A split as the checks see it: what its files say, beside what its pictures are."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

import numpy as np

from rfdetr_train.data.doctor.finding import EXAMPLES, Finding, Place
from rfdetr_train.data.doctor.measure import Measured
from rfdetr_train.data.raw_split import RawSplit
from rfdetr_train.errors import UserError


@dataclass(frozen=True)
class ExaminedSplit:
    """N pictures and M boxes; K of the boxes are looked at."""

    name: str
    raw: RawSplit
    pictures: Sequence[Measured | UserError]
    """(N,)."""
    class_of_name: Mapping[str, str] | None = None
    """As data.classes says, see `DataConfig.class_of_name`."""

    def path(self, picture: int) -> Path:
        """Where a picture lies."""
        return self.raw.folder / self.raw.file_names[picture]

    @cached_property
    def names(self) -> list[str]:
        """(M,), the class of each box; empty for one that data.classes leaves out."""
        known = {c.category_id: c.name for c in self.raw.categories}
        names = [known.get(category_id, f"id {category_id}") for category_id in self.raw.category_ids.tolist()]
        kept = self.class_of_name
        return names if kept is None else [kept.get(name, name if name in kept.values() else "") for name in names]

    @cached_property
    def rows(self) -> np.ndarray:
        """int64 (K,), rows of the boxes of readable pictures and wanted classes, no crowds, in order of pictures."""
        readable = np.array([isinstance(picture, Measured) for picture in self.pictures] + [False])  # -1 is the last
        wanted = readable[self.raw.owners] & np.array([bool(name) for name in self.names], dtype=bool) & ~self.raw.crowd
        rows = np.flatnonzero(wanted)
        return rows[np.argsort(self.raw.owners[rows], kind="stable")]

    @cached_property
    def boxes_per_picture(self) -> np.ndarray:
        """int64 (N,), of the boxes looked at."""
        return np.bincount(self.raw.owners[self.rows], minlength=len(self.pictures))

    @cached_property
    def readable(self) -> list[int]:
        """The pictures that can be read."""
        return [index for index, picture in enumerate(self.pictures) if isinstance(picture, Measured)]

    def of_boxes(
        self, kind: str, severity: str, what: str, rows: np.ndarray, remedy: str, count: int | None = None
    ) -> Iterator[Finding]:
        """A finding about boxes, if there are any; `count` where it is not that of the rows."""
        if len(rows):
            ordered = sorted(rows.tolist(), key=lambda row: (self.raw.owners[row], row))
            groups = [
                (picture, list(group)) for picture, group in groupby(ordered, key=lambda row: self.raw.owners[row])
            ]
            places = [Place(self.name, int(picture), group) for picture, group in groups[:EXAMPLES] if picture >= 0]
            examples = [
                f"{self.raw.file_names[picture] if picture >= 0 else 'no picture'}: {self.raw.describe(group)}"
                for picture, group in groups[:EXAMPLES]
            ]
            yield Finding(
                kind, severity, self.name, what, len(rows) if count is None else count, examples, remedy, places
            )

    def of_pictures(
        self, kind: str, severity: str, what: str, found: Mapping[int, str] | Iterable[int], remedy: str
    ) -> Iterator[Finding]:
        """A finding about pictures, if there are any, perhaps with a word on each."""
        details = dict(found) if isinstance(found, Mapping) else dict.fromkeys(found, "")
        if details:
            examples = [f"{self.raw.file_names[i]}{': ' * bool(word)}{word}" for i, word in details.items()]
            places = [
                Place(self.name, int(i), self.boxes_of(i)) for i in details if isinstance(self.pictures[i], Measured)
            ]
            yield Finding(kind, severity, self.name, what, len(details), examples[:EXAMPLES], remedy, places[:EXAMPLES])

    def boxes_of(self, picture: int) -> list[int]:
        """The rows looked at of a picture."""
        first, last = np.searchsorted(self.raw.owners[self.rows], [picture, picture + 1])
        return self.rows[first:last].tolist()


def neighbours(keys: np.ndarray, most: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of equal keys among sorted ones, as places (first, second); those with a common distance at once.

    `most`: the largest distance, so that a million equal keys do not make a billion pairs.
    """
    starts = np.arange(len(keys))
    for distance in range(1, min(len(keys), most or len(keys)) + 1):
        starts = starts[starts + distance < len(keys)]
        starts = starts[keys[starts] == keys[starts + distance]]  # what ends here has no longer pairs either
        if not len(starts):
            return
        yield starts, starts + distance
