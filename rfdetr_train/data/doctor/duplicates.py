"""Pictures that are there twice: in one split they count double, in two they make the score a lie.

Equal files are found by their digests. Of the others those pairs are taken whose hashes differ in at most three of 64
bits and whose thumbnails agree. Such hashes share at least one of their four groups of 16 bits, so pictures are sorted
by each group in turn and compared with the next few hundred of an equal one, not with all.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations_with_replacement

import numpy as np

from rfdetr_train.data.doctor.examined import ExaminedSplit, neighbours
from rfdetr_train.data.doctor.finding import EXAMPLES, Finding, Place
from rfdetr_train.data.doctor.measure import Measured

MOST_BITS = 3
MOST_COMPARED = 300  # with each picture, of one group of bits
MOST_DIFFERENCE = 4.0  # of 255, mean over the thumbnails once they have the same brightness
LEAST_CONTRAST = 4.0  # of 255, standard deviation: flat pictures are all alike

Pair = tuple[tuple[str, int], tuple[str, int]]
"""Two pictures, each by split and index."""


def check_duplicates(splits: Mapping[str, ExaminedSplit]) -> Iterator[Finding]:
    """Equal and nearly equal pictures, within each split and across any two."""
    where = [(name, i) for name, split in splits.items() for i in split.readable]
    pictures = [picture for name, i in where if isinstance(picture := splits[name].pictures[i], Measured)]
    equal, near = _equal(pictures), _near(pictures)
    for a, b in combinations_with_replacement(splits, 2):
        for kind, pairs in (("duplicate", equal), ("similar", near)):
            found = [(where[i], where[j]) for i, j in pairs if {where[i][0], where[j][0]} == {a, b}]
            if found:
                yield _finding(splits, kind, a, b, found)


def _equal(pictures: list[Measured]) -> list[tuple[int, int]]:
    """Pairs of each picture with every earlier one of the same digest; a crowd of copies only with the first."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for index, picture in enumerate(pictures):
        groups[picture.digest].append(index)
    return [(a, b) for group in groups.values() for n, b in enumerate(group) for a in group[:n][:MOST_COMPARED]]


def _near(pictures: list[Measured]) -> list[tuple[int, int]]:
    if not pictures:
        return []
    hashes = np.array([picture.hash for picture in pictures], dtype=np.uint64)
    digests = np.unique([picture.digest.hex() for picture in pictures], return_inverse=True)[1]
    thumbnails = np.stack([picture.thumbnail for picture in pictures]).reshape(len(pictures), -1).astype(np.float32)
    thumbnails -= thumbnails.mean(axis=1, keepdims=True)
    candidates = np.flatnonzero(thumbnails.std(axis=1) >= LEAST_CONTRAST)
    pairs: set[tuple[int, int]] = set()
    for shift in (0, 16, 32, 48):
        group = (hashes[candidates] >> np.uint64(shift)) & np.uint64(0xFFFF)
        order = candidates[np.lexsort((hashes[candidates], group))]
        for first, second in neighbours(np.sort(group), MOST_COMPARED):
            a, b = order[first], order[second]
            differing = (hashes[a] ^ hashes[b])[:, None].view(np.uint8)
            close = (np.unpackbits(differing, axis=1).sum(axis=1) <= MOST_BITS) & (digests[a] != digests[b])
            a, b = a[close], b[close]
            alike = np.abs(thumbnails[a] - thumbnails[b]).mean(axis=1) <= MOST_DIFFERENCE
            pairs |= set(zip(np.minimum(a, b)[alike].tolist(), np.maximum(a, b)[alike].tolist(), strict=True))
    return sorted(pairs)


def _finding(splits: Mapping[str, ExaminedSplit], kind: str, a: str, b: str, pairs: list[Pair]) -> Finding:
    across = a != b
    if kind == "duplicate":
        severity = "error" if across else "warning"
        what = f"pictures that are in {a} too" if across else "pictures that are there once more"
    else:
        severity = "warning" if across else "note"
        what = f"pictures that look like one in {a}" if across else "pictures that look like another"
    remedy = f"remove them from one: the score on {b} is of pictures that were learnt" if across else "keep one of each"
    copies = {pair[1] for pair in pairs}
    places = dict.fromkeys(picture for pair in pairs for picture in pair)
    return Finding(
        kind=f"{kind}_pictures",
        severity=severity,
        split=b,
        what=what,
        count=len(copies),
        examples=[" = ".join(f"{s}/{splits[s].raw.file_names[i]}" for s, i in pair) for pair in pairs[:EXAMPLES]],
        remedy=remedy if kind == "duplicate" else f"look at them; {remedy}",
        places=[Place(s, i, splits[s].boxes_of(i)) for s, i in places][:EXAMPLES],
    )
