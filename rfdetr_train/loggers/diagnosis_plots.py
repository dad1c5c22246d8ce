"""What an evaluation found, as figures: curves, confusions, calibration, kinds of errors.

They take the plain values of `evaluation.json`, under `diagnosis` there.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rfdetr_train.loggers.figure import PALETTE, Axes, Figure, drawable, new_figure, style_axes, take_literally

CLASSES_DRAWN = 8  # as curves of their own, the most frequent ones
CLASSES_WITH_NUMBERS = 16  # in the cells of a confusion matrix
UNIT_SQUARE = {"xlim": (0, 1), "ylim": (0, 1.05)}


def curves(diagnosis: Mapping[str, Any]) -> Figure:
    """Precision over recall on the left, F1 over the score threshold on the right; the best threshold marked."""
    everything, *classes = diagnosis["curves"]
    shown = sorted((c for c in classes if c["scores"]), key=lambda c: -c["num_boxes"])[:CLASSES_DRAWN]
    figure = new_figure(1200, 460)
    left, right = figure.subplots(1, 2)
    for number, curve in enumerate(shown):
        _draw_curve(left, right, curve, number, color=PALETTE[number % len(PALETTE)], linewidth=1.2)
    if everything["scores"]:
        _draw_curve(left, right, everything, None, color="black", linewidth=2.4)
        best = everything["best"]
        right.plot(best["threshold"], best["f1"], marker="*", markersize=13, color="#e8590c", linestyle="none",
                   label=f"F1 {best['f1']:.3f} at {best['threshold']:.3f}")  # fmt: skip
    style_axes(left, "Precision and recall at IoU 0.5", "recall", "precision", **UNIT_SQUARE)
    style_axes(right, "F1 by score threshold", "score threshold", "F1", **UNIT_SQUARE)
    legend = figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9)
    take_literally(legend.get_texts())
    return figure


def confusion(diagnosis: Mapping[str, Any]) -> Figure:
    """Rows truth, columns prediction; the colour is the share of a row."""
    matrix = np.array(diagnosis["confusion"]["matrix"], dtype=float)
    names = [drawable(name, number) for number, name in enumerate(diagnosis["confusion"]["names"])]
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = min(1100, 260 + 46 * len(names))
    figure = new_figure(side + 60, side)
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    places = range(len(names))
    axes.set_xticks(places, names, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(places, names, fontsize=8)
    take_literally((*axes.get_xticklabels(), *axes.get_yticklabels()))
    if len(names) <= CLASSES_WITH_NUMBERS:
        for (row, column), count in np.ndenumerate(matrix):
            ink = "white" if shares[row, column] > 0.5 else "#1c1e21"
            axes.text(column, row, f"{count:.0f}", ha="center", va="center", fontsize=8, color=ink)
    threshold = diagnosis["confusion"]["threshold"]
    axes.set_title(f"Confusions, score ≥ {threshold:.3f}", loc="left", fontweight="bold")
    axes.set(xlabel="prediction", ylabel="truth")
    return figure


def calibration(diagnosis: Mapping[str, Any]) -> Figure:
    """The precision of detections by their score, and how many there are."""
    bins = [row for row in diagnosis["calibration"]["bins"] if row["count"]]
    figure = new_figure(560, 420)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle=":", label="a score that is a probability")
    axes.bar([(row["low"] + row["high"]) / 2 for row in bins], [row["precision"] for row in bins], width=0.09,
             color=PALETTE[0], alpha=0.8, label="precision of such detections")  # fmt: skip
    for row in bins:
        axes.text((row["low"] + row["high"]) / 2, row["precision"] + 0.01, str(row["count"]), ha="center", fontsize=7)
    error = diagnosis["calibration"]["expected_error"]
    style_axes(axes, f"Calibration, mean error {error:.3f}", "score", "precision", **UNIT_SQUARE)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def errors(diagnosis: Mapping[str, Any]) -> Figure:
    """The AP50 that each kind of error costs."""
    kinds = list(diagnosis["errors"])
    lost = [diagnosis["errors"][kind]["AP50_lost"] for kind in kinds]
    figure = new_figure(640, 420)
    axes = figure.subplots()
    axes.barh(kinds, lost, color=[PALETTE[i % len(PALETTE)] for i in range(len(kinds))])
    for place, kind in enumerate(kinds):
        axes.text(lost[place], place, f"  ({diagnosis['errors'][kind]['count']})", va="center", fontsize=8)
    axes.invert_yaxis()
    style_axes(axes, "Errors and the AP50 they cost", "AP50 gained by mending all (how many)", "")
    axes.margins(x=0.15)
    return figure


FIGURES = {"curves": curves, "confusion": confusion, "errors": errors, "calibration": calibration}
"""What is drawn of a diagnosis."""


def _draw_curve(left: Axes, right: Axes, curve: Mapping[str, Any], number: int | None, **style: Any) -> None:
    precision, recall = np.array(curve["precision"]), np.array(curve["recall"])
    label = "all classes" if number is None else drawable(curve["name"], number)
    left.plot(recall, precision, label=label, **style)
    with np.errstate(invalid="ignore"):
        right.plot(curve["scores"], 2 * precision * recall / (precision + recall), label=label, **style)
