"""Pictures that cannot be read, are of another size, or belong to nobody."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from rfdetr_train.data.doctor.examined import ExaminedSplit
from rfdetr_train.data.doctor.finding import EXAMPLES, Finding
from rfdetr_train.data.doctor.measure import Measured
from rfdetr_train.data.reader import files_below
from rfdetr_train.errors import UserError

SAME_ASPECT = 0.01  # relative: rounding of a scaled picture


def check_pictures(split: ExaminedSplit, on_error: str) -> Iterator[Finding]:
    """Pictures unreadable, turned, of another shape or size than annotated, without boxes."""
    broken = {
        i: str(p).removeprefix(f"{split.path(i)}: ") for i, p in enumerate(split.pictures) if isinstance(p, UserError)
    }
    yield from split.of_pictures(
        "unreadable_pictures",
        "error" if on_error == "error" else "warning",
        "pictures that cannot be read",
        broken,
        "mend or remove them, or leave them out with data.on_error=skip",
    )
    yield from _other_sizes(split)
    empty = [i for i in split.readable if len(split.rows) and not split.boxes_per_picture[i]]  # else it is of negatives
    remedy = "nothing, if there is nothing to find in them; data.background says how many an epoch draws"
    yield from split.of_pictures("empty_pictures", "note", "pictures without boxes", empty, remedy)


def _other_sizes(split: ExaminedSplit) -> Iterator[Finding]:
    found: dict[str, dict[int, str]] = {"turned": {}, "reshaped": {}, "scaled": {}}
    for index, picture in enumerate(split.pictures):
        annotated = tuple(split.raw.sizes_px[index].tolist())
        if isinstance(picture, Measured) and picture.size_px != annotated:
            word = f"annotated {annotated[1]}x{annotated[0]}, is {picture.size_px[1]}x{picture.size_px[0]}"
            found[_difference(annotated, picture.size_px)][index] = word
    for kind, severity, what, remedy in (
        ("turned", "error", "pictures annotated in another orientation than they have upright by EXIF",
         "annotate them as a viewer shows them, or remove the EXIF orientation: their boxes lie elsewhere"),
        ("reshaped", "warning", "pictures of another shape than annotated",
         "look at their boxes, which are stretched to the picture: wrong, if it was cropped"),
        ("scaled", "note", "pictures of another size than annotated, of the same shape",
         "nothing: boxes are scaled to the picture"),
    ):  # fmt: skip
        yield from split.of_pictures(f"{kind}_pictures", severity, what, found[kind], remedy)


def _difference(annotated: tuple[int, ...], actual: tuple[int, int]) -> str:
    if annotated == actual[::-1]:
        return "turned"
    same = abs(annotated[0] * actual[1] / (annotated[1] * actual[0]) - 1) < SAME_ASPECT
    return "scaled" if same else "reshaped"


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
