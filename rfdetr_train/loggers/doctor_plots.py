"""A data set in figures, from the plain values of `doctor.json`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rfdetr_train.loggers.figure import PALETTE, Figure, drawable, new_figure, style_axes, take_literally

CLASSES_DRAWN = 30  # the most frequent ones


def histogram(statistics: Mapping[str, Any], name: str, title: str, across: str) -> Figure | None:
    """Shares of each split in the bins of a histogram."""
    edges, counts = statistics["histograms"][name]["edges"], statistics["histograms"][name]["counts"]
    used = [place for place in range(len(edges)) if any(row[place] for row in counts.values())]
    if not used:
        return None
    places = range(used[0], used[-1] + 1)
    labels = [_bin(edges, place, whole=name == "boxes_per_picture") for place in places]
    shares = {split: [row[place] / max(sum(row), 1) for place in places] for split, row in counts.items()}
    return _bars(title, labels, shares, across, "share of the split")


def _bin(edges: Sequence[float], place: int, whole: bool) -> str:
    """`8–12`; of whole numbers `8–11`, and `8` for one."""
    first = f"{edges[place]:g}"
    if place == len(edges) - 1:
        return f"{first}+"
    last = f"{edges[place + 1] - whole:g}"
    return first if first == last else f"{first}–{last}"


def classes(statistics: Mapping[str, Any]) -> Figure | None:
    """Boxes of each class, as shares of each split."""
    counts = statistics["classes"]
    names = sorted((name for name in counts if any(counts[name].values())), key=lambda n: -sum(counts[n].values()))
    if not names:
        return None
    totals = {split: max(sum(row[split] for row in counts.values()), 1) for split in counts[names[0]]}
    shares = {split: [counts[n][split] / total for n in names[:CLASSES_DRAWN]] for split, total in totals.items()}
    labels = [drawable(name, number) for number, name in enumerate(names[:CLASSES_DRAWN])]
    hidden = f", the {CLASSES_DRAWN} most frequent of {len(names)}" * (len(names) > CLASSES_DRAWN)
    return _bars(f"Classes{hidden}", labels, shares, "", "share of the split's boxes")


def _bars(title: str, labels: list[str], heights: Mapping[str, list[float]], across: str, up: str) -> Figure:
    """A group of bars at each label, one for each split."""
    figure = new_figure(640, 380)
    axes = figure.subplots()
    width = 0.8 / len(heights)
    for number, (split, of_split) in enumerate(heights.items()):
        places = np.arange(len(labels)) + (number - (len(heights) - 1) / 2) * width
        axes.bar(places, of_split, width, color=PALETTE[number], label=split)
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    take_literally(axes.get_xticklabels())
    style_axes(axes, title, across, up)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(heights), frameon=False, fontsize=9)
    return figure


FIGURES = {
    "classes": classes,
    "box_sides": partial(histogram, name="box_sides_px", title="Box sizes as the model sees them",
                         across="root of the area at the model's input, px"),
    "boxes_per_picture": partial(histogram, name="boxes_per_picture", title="Boxes per picture", across="boxes"),
    "box_aspects": partial(histogram, name="box_aspects", title="Shapes of boxes", across="width / height"),
    "picture_aspects": partial(histogram, name="picture_aspects", title="Shapes of pictures", across="width / height"),
}  # fmt: skip
"""What is drawn of a data set."""
