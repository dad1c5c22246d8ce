"""A split as the checks see it, what its files say beside what its pictures are; and what they find, in words."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from rfdetr_train.data.image_file import check_image, read_image
from rfdetr_train.data.raw_split import RawSplit
from rfdetr_train.errors import UserError

SEVERITIES = ("error", "warning", "note")
"""The worst first: what training refuses or what falsifies its result; what makes it worse; what is good to know."""
EXAMPLES = 20
_DECODED_AT_LEAST_PX = 64
_THUMBNAIL_PX = 16


class Place(NamedTuple):
    """A picture that shows a finding."""

    split: str
    picture: int
    """Its index in the split."""
    rows: list[int]
    """The boxes that it is about, rows of the raw split."""


@dataclass(frozen=True)
class Finding:
    """One kind of fault in one split, or in several together, in words that its owner can act on."""

    kind: str
    """A short name, as duplicate_boxes."""
    severity: str
    split: str
    """Its name; empty for what is about all of them."""
    what: str
    count: int
    examples: list[str]
    """At most EXAMPLES, as the owner finds them in the files."""
    remedy: str
    places: list[Place]
    """Where a picture shows it, at most EXAMPLES."""


def ranked(findings: list[Finding]) -> list[Finding]:
    """The worst first; what file names hold besides characters is written as \\udc80, which every report can take."""
    printable = [
        replace(f, examples=[text.encode("utf-8", "backslashreplace").decode() for text in f.examples])
        for f in findings
    ]
    return sorted(printable, key=lambda finding: SEVERITIES.index(finding.severity))


class Measured(NamedTuple):
    """A readable picture."""

    size_px: tuple[int, int]
    """(height, width), upright by EXIF."""
    digest: bytes
    """Of the file."""
    hash: int
    """64 bits: is a pixel brighter than its right neighbour, in 8 rows of 9 grey pixels? Copies that were scaled or
    compressed anew differ in few of them."""
    thumbnail: np.ndarray
    """uint8 (16, 16), grey."""


def measure(path: Path, max_megapixels: float) -> Measured:
    """Measure a picture. Raises: UserError if it cannot be read."""
    size_px = check_image(path, max_megapixels)
    pixels = read_image(path, max_megapixels, at_least_px=_DECODED_AT_LEAST_PX)
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    grey = Image.fromarray(pixels.permute(1, 2, 0).numpy()).convert("L")
    rows = np.asarray(grey.resize((9, 8), Image.Resampling.BOX))
    bits = np.packbits(rows[:, :-1] > rows[:, 1:])
    thumbnail = np.asarray(grey.resize((_THUMBNAIL_PX, _THUMBNAIL_PX), Image.Resampling.BOX))
    return Measured(size_px, digest, int.from_bytes(bits.tobytes(), "big"), thumbnail)


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
    def readable(self) -> dict[int, Measured]:
        """The pictures that can be read, by their index."""
        return {index: picture for index, picture in enumerate(self.pictures) if isinstance(picture, Measured)}

    @cached_property
    def rows(self) -> np.ndarray:
        """int64 (K,), rows of the boxes of readable pictures and wanted classes, no crowds, in order of pictures."""
        wanted = np.isin(self.raw.owners, list(self.readable)) & ~self.raw.crowd
        rows = np.flatnonzero(wanted & np.array([bool(name) for name in self.names], dtype=bool))
        return rows[np.argsort(self.raw.owners[rows], kind="stable")]

    @cached_property
    def boxes_per_picture(self) -> np.ndarray:
        """int64 (N,), of the boxes looked at."""
        return np.bincount(self.raw.owners[self.rows], minlength=len(self.pictures))

    def boxes_of(self, picture: int) -> list[int]:
        """The rows looked at of a picture."""
        first, last = np.searchsorted(self.raw.owners[self.rows], [picture, picture + 1])
        return self.rows[first:last].tolist()

    def of_boxes(
        self, kind: str, severity: str, what: str, rows: np.ndarray, remedy: str, count: int | None = None
    ) -> Iterator[Finding]:
        """A finding about boxes, if there are any; `count` where it is not that of the rows."""
        if not len(rows):
            return
        owners = self.raw.owners
        ordered = sorted(rows.tolist(), key=lambda row: (owners[row], row))
        groups = [(int(p), list(group)) for p, group in groupby(ordered, key=lambda row: owners[row])][:EXAMPLES]
        names = [self.raw.file_names[picture] if picture >= 0 else "no picture" for picture, _ in groups]
        examples = [f"{name}: {self.raw.describe(group)}" for name, (_, group) in zip(names, groups, strict=True)]
        places = [Place(self.name, picture, group) for picture, group in groups if picture >= 0]
        yield Finding(kind, severity, self.name, what, len(rows) if count is None else count, examples, remedy, places)

    def of_pictures(
        self, kind: str, severity: str, what: str, found: Mapping[int, str], remedy: str
    ) -> Iterator[Finding]:
        """A finding about pictures, if there are any, perhaps with a word on each."""
        if found:
            examples = [f"{self.raw.file_names[i]}{': ' * bool(word)}{word}" for i, word in found.items()]
            places = [Place(self.name, i, self.boxes_of(i)) for i in found if i in self.readable]
            yield Finding(kind, severity, self.name, what, len(found), examples[:EXAMPLES], remedy, places[:EXAMPLES])

    def of_ids(self, kind: str, severity: str, what: str, ids: list[str], remedy: str) -> Iterator[Finding]:
        """A finding about ids or names in the files, if there are any."""
        if ids:
            yield Finding(kind, severity, self.name, what, len(ids), ids[:EXAMPLES], remedy, [])


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
