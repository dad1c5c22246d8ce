"""Pictures that cannot be read, are of another size, belong to nobody, or are there twice.

One that is twice in a split counts double, one in two splits makes the score a lie. Equal files are found by their
digests. Of the others those pairs are taken whose hashes differ in at most three of 64 bits and whose thumbnails agree.
Such hashes share at least one of their four groups of 16 bits, so pictures are sorted by each group in turn and
compared with the next fifty of an equal one, not with all.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

from rfdetr_train.data.doctor.examined import EXAMPLES, SEVERITIES, ExaminedSplit, Finding, Measured, Place, neighbours
from rfdetr_train.data.reader import files_below
from rfdetr_train.errors import UserError

SAME_ASPECT = 0.01  # relative: rounding of a scaled picture
MOST_BITS = 3
MOST_COMPARED = 50  # with each picture, of one group of bits
MOST_DIFFERENCE = 4.0  # of 255, mean over the thumbnails once they have the same brightness
LEAST_CONTRAST = 4.0  # of 255, standard deviation: flat pictures are all alike


def check_pictures(split: ExaminedSplit, on_error: str) -> Iterator[Finding]:
    """Pictures unreadable, turned, of another shape or size than annotated, without boxes."""
    broken = {
        i: str(p).removeprefix(f"{split.path(i)}: ") for i, p in enumerate(split.pictures) if isinstance(p, UserError)
    }
    severity = "error" if on_error == "error" else "warning"
    remedy = "mend or remove them, or leave them out with data.on_error=skip"
    yield from split.of_pictures("unreadable_pictures", severity, "pictures that cannot be read", broken, remedy)
    yield from _other_sizes(split)
    empty = {i: "" for i in split.readable if len(split.rows) and not split.boxes_per_picture[i]}  # else: negatives
    remedy = "nothing, if there is nothing to find in them; data.background says how many an epoch draws"
    yield from split.of_pictures("empty_pictures", "note", "pictures without boxes", empty, remedy)


def _other_sizes(split: ExaminedSplit) -> Iterator[Finding]:
    found: dict[str, dict[int, str]] = {"turned": {}, "reshaped": {}, "scaled": {}}
    for index, (size_px, *_) in split.readable.items():
        annotated = tuple(split.raw.sizes_px[index].tolist())
        if size_px != annotated:
            word = f"annotated {annotated[1]}x{annotated[0]}, is {size_px[1]}x{size_px[0]}"
            same = abs(annotated[0] * size_px[1] / (annotated[1] * size_px[0]) - 1) < SAME_ASPECT
            difference = "turned" if annotated == size_px[::-1] else "scaled" if same else "reshaped"
            found[difference][index] = word
    for kind, severity, what, remedy in (
        ("turned", "error", "pictures annotated in another orientation than they have upright by EXIF",
         "annotate them as a viewer shows them, or remove the EXIF orientation: their boxes lie elsewhere"),
        ("reshaped", "warning", "pictures of another shape than annotated",
         "look at their boxes, which are stretched to the picture: wrong, if it was cropped"),
        ("scaled", "note", "pictures of another size than annotated, of the same shape",
         "nothing: boxes are scaled to the picture"),
    ):  # fmt: skip
        yield from split.of_pictures(f"{kind}_pictures", severity, what, found[kind], remedy)


def check_files(splits: Mapping[str, ExaminedSplit]) -> Iterator[Finding]:
    """Pictures in the folders of the splits that no split names."""
    named = {split.path(i) for split in splits.values() for i in range(len(split.pictures))}
    folders = {split.raw.folder for split in splits.values()}
    there: set[Path] = {file for folder in folders for file in files_below(folder)}
    strangers = sorted(map(str, there - named))
    if strangers:
        remedy = "annotate them, or move them elsewhere; those without objects can be data.negatives"
        what = "pictures in the folders that no annotation file names"
        yield Finding("unnamed_files", "warning", "", what, len(strangers), strangers[:EXAMPLES], remedy, [])


def check_duplicates(splits: Mapping[str, ExaminedSplit]) -> Iterator[Finding]:
    """Equal and nearly equal pictures, within each split and across any two."""
    where = [(name, i) for name, split in splits.items() for i in split.readable]
    pictures = [splits[name].readable[i] for name, i in where]
    owners = np.array([list(splits).index(name) for name, _ in where], dtype=np.int64)
    for kind, pairs in (("duplicate", _equal(pictures)), ("similar", _near(pictures))):
        for (a, first), (b, second) in combinations_with_replacement(enumerate(splits), 2):
            found = pairs[(owners[pairs] == (a, b)).all(axis=1)]
            if len(found):
                shown = [(where[i], where[j]) for i, j in found[:EXAMPLES].tolist()]
                yield _finding(splits, kind, first, second, len(np.unique(found[:, 1])), shown)


def _equal(pictures: Sequence[Measured]) -> np.ndarray:
    """int64 (pairs, 2), rising: pictures of one digest; of a crowd of copies each with the first few."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for index, picture in enumerate(pictures):
        groups[picture.digest].append(index)
    pairs = [(a, b) for group in groups.values() for n, b in enumerate(group) for a in group[: min(n, MOST_COMPARED)]]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _near(pictures: Sequence[Measured]) -> np.ndarray:
    """int64 (pairs, 2), rising: pictures of other digests that look alike."""
    pairs = [np.empty((0, 2), dtype=np.int64)]
    if not pictures:
        return pairs[0]
    hashes = np.array([picture.hash for picture in pictures], dtype=np.uint64)
    digests = np.unique([picture.digest.hex() for picture in pictures], return_inverse=True)[1]
    thumbnails = np.stack([picture.thumbnail for picture in pictures]).reshape(len(pictures), -1).astype(np.float32)
    thumbnails -= thumbnails.mean(axis=1, keepdims=True)
    candidates = np.flatnonzero(thumbnails.std(axis=1) >= LEAST_CONTRAST)
    for shift in (0, 16, 32, 48):
        group = (hashes[candidates] >> np.uint64(shift)) & np.uint64(0xFFFF)
        order = candidates[np.lexsort((hashes[candidates], group))]
        for first, second in neighbours(np.sort(group), MOST_COMPARED):
            a, b = order[first], order[second]
            differing = (hashes[a] ^ hashes[b])[:, None].view(np.uint8)
            close = (np.unpackbits(differing, axis=1).sum(axis=1) <= MOST_BITS) & (digests[a] != digests[b])
            a, b = a[close], b[close]
            alike = np.abs(thumbnails[a] - thumbnails[b]).mean(axis=1) <= MOST_DIFFERENCE
            pairs.append(np.sort(np.stack([a, b], axis=1)[alike], axis=1))
    return np.unique(np.concatenate(pairs), axis=0)


def _finding(splits: Mapping[str, ExaminedSplit], kind: str, a: str, b: str, count: int, pairs: list[tuple]) -> Finding:
    """About `count` pictures of split b that are like one of a; `pairs` are examples, (split, index) twice."""
    across, equal = a != b, kind == "duplicate"
    severity = SEVERITIES[(not across) + (not equal)]
    what = f"pictures that {'equal' if equal else 'look like'} one in {a if across else 'the same split'}"
    remedy = f"remove them from one: the score on {b} is of pictures that were learnt" if across else "keep one of each"
    remedy = remedy if equal else f"look at them; {remedy}"
    examples = [" = ".join(f"{s}/{splits[s].raw.file_names[i]}" for s, i in pair) for pair in pairs]
    shown = dict.fromkeys(picture for pair in pairs for picture in pair)
    places = [Place(s, i, splits[s].boxes_of(i)) for s, i in shown][:EXAMPLES]
    return Finding(f"{kind}_pictures", severity, b, what, count, examples, remedy, places)
