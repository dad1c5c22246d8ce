"""Curves of a run, drawn from the rows of metrics.jsonl: losses, average precision, learning rates, gradient norm."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rfdetr_train.loggers.figure import PALETTE, Axes, Figure, new_figure, save_figure, style_axes

POINTS_OF_A_LINE = 2000  # more than a picture has columns
LINES_IN_LEGEND = 28
SMOOTHING_FRACTION = 0.02  # of the run's points, in the mean that is drawn over the noise

AP_STYLES = {"AP": "-", "AP50": "--", "AP75": ":"}
COLOUR_OF_WEIGHTS = {"raw": PALETTE[0], "ema": PALETTE[1]}


Rows = Sequence[Mapping[str, Any]]


class Curve(NamedTuple):
    """One line: steps (n,) rising, values (n,) with NaN where there is none."""

    label: str
    steps: np.ndarray
    values: np.ndarray


def write_plots(rows: Rows, plots_dir: Path | str) -> list[Path]:
    """Write a PNG for each of `FIGURES` that has a number to show."""
    figures = {Path(plots_dir, f"{name}.png"): draw(rows) for name, draw in FIGURES.items()}
    written = {path: figure for path, figure in figures.items() if figure is not None}
    for path, figure in written.items():
        save_figure(figure, path)
    return list(written)


def losses(rows: Rows) -> Figure | None:
    """The total loss above, its unweighted parts below; None without a finite value."""
    rows = _of_split(rows, "train")
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith("loss_"))
    parts = [_of_key(rows, key, key.removeprefix("loss_")) for key in keys]
    figure = _panels(("Training loss", "loss", [_of_key(rows, "loss", "total")]), ("Its parts", "loss", parts))
    for axes in figure.axes if figure else ():
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def gradient_norm(rows: Rows) -> Figure | None:
    """The norm of the gradient before it was clipped."""
    norm = _of_key(_of_split(rows, "train"), "grad_norm", "gradient norm")
    return _panels(("Gradient norm before clipping", "norm", [norm]))


def learning_rates(rows: Rows) -> Figure | None:
    """The rate of every group, equal ones as one line, from the highest (yellow) to the lowest (violet)."""
    from matplotlib import colormaps

    curves = _known(_joined(_rates(_of_split(rows, "train"))))
    curves.sort(key=lambda curve: -float(np.nanmax(curve.values)))
    if not curves:
        return None
    labelled = curves[:LINES_IN_LEGEND]
    figure = new_figure(1200, max(480, 120 + 19 * len(labelled)))
    axes = figure.subplots()
    for curve, colour in zip(curves, colormaps["plasma"](np.linspace(0.85, 0.0, len(curves))), strict=True):
        _draw(axes, curve, color=colour, linewidth=1.6, label=curve.label)
    _finish(axes, "Learning rates of the parameter groups", "learning rate", curves, log=True)
    axes.set_xlabel("step")
    hidden = len(curves) - len(labelled)
    handles = axes.get_lines()[: len(labelled)]
    title = "largest rate, groups" + (f" (and {hidden} lower ones)" if hidden else "")
    figure.legend(handles=handles, loc="outside right upper", fontsize=8, frameon=False, title=title, title_fontsize=8)
    return figure


def average_precision(rows: Rows) -> Figure | None:
    """AP, AP50 and AP75 of raw and averaged weights, the best AP marked."""
    rows = _of_split(rows, "valid")
    figure = new_figure(1000, 480)
    axes = figure.subplots()
    shown = []
    for weights in dict.fromkeys(str(row.get("weights", "raw")) for row in rows):
        of_weights = [row for row in rows if str(row.get("weights", "raw")) == weights]
        colour = COLOUR_OF_WEIGHTS.get(weights, PALETTE[2])
        for key, style in AP_STYLES.items():
            curve = _of_key(of_weights, key, f"{key} ({weights})")
            if _known([curve]):
                width = 1.8 if key == "AP" else 1.2
                _draw(axes, curve, color=colour, linestyle=style, linewidth=width, label=curve.label)
                shown.append(curve)
    if not shown:
        return None
    _finish(axes, "Average precision on the valid split", "average precision", shown, log=False)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("step")
    _mark_best(axes, [curve for curve in shown if curve.label.startswith("AP (")])
    figure.legend(loc="outside right upper", frameon=False)
    return figure


FIGURES = {function.__name__: function for function in (losses, average_precision, gradient_norm, learning_rates)}
"""What is drawn of a run's rows."""


def compared_runs(runs: Mapping[str, Rows]) -> Figure | None:
    """AP and training loss of several runs by name; of each evaluation the better weights."""
    scores = [_best_of_weights(_of_split(rows, "valid"), name) for name, rows in runs.items()]
    costs = [_of_key(_of_split(rows, "train"), "loss", name) for name, rows in runs.items()]
    figure = _panels(("Average precision", "AP", scores), ("Training loss", "loss", costs), width_px=1200)
    if figure is not None:
        entries = figure.axes[0].get_legend_handles_labels()
        figure.legend(*entries, loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _panels(*panels: tuple[str, str, list[Curve]], width_px: int = 1000) -> Figure | None:
    """A panel for each (title, quantity, curves) that has a value, over one axis of steps; AP is not smoothed.

    A curve has the colour of its place, in every panel.
    """
    panels = tuple(panel for panel in panels if _known(panel[2]))
    if not panels:
        return None
    figure = new_figure(width_px, 380 * len(panels))
    all_axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (title, quantity, curves) in zip(all_axes, panels, strict=True):
        for place, curve in enumerate(curves):
            if _known([curve]):
                _draw_smoothed(axes, curve, PALETTE[place % len(PALETTE)], SMOOTHING_FRACTION * (quantity != "AP"))
        _finish(axes, title, quantity, _known(curves), log=quantity != "AP")
    all_axes[-1].set_xlabel("step")
    return figure


def _best_of_weights(rows: Rows, label: str) -> Curve:
    best: dict[float, float] = {}
    for row in rows:
        if row.get("AP") is not None:
            best[row["step"]] = max(row["AP"], best.get(row["step"], 0.0))
    return Curve(label, np.array(list(best), dtype=float), np.array(list(best.values()), dtype=float))


def _of_split(rows: Rows, split: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row.get("split") == split]


def downsampled(curve: Curve, limit: int = POINTS_OF_A_LINE) -> Curve:
    """At most about `limit` points, the lowest and the highest of every stretch, so that no spike is lost."""
    count = len(curve.steps)
    if count <= limit:
        return curve
    kept = []
    for stretch in np.array_split(np.arange(count), limit // 2):
        values = curve.values[stretch]
        known = stretch[np.isfinite(values)]
        if len(known):
            kept += sorted({known[curve.values[known].argmin()], known[curve.values[known].argmax()]})
    return Curve(curve.label, curve.steps[kept], curve.values[kept])


def _curve(rows: Rows, label: str, value: Callable[[Mapping[str, Any]], float | None]) -> Curve:
    """NaN where a row has no value."""
    steps, values = [row["step"] for row in rows], [value(row) for row in rows]
    return Curve(label, np.array(steps, dtype=float), np.array(values, dtype=float))


def _of_key(rows: Rows, key: str, label: str) -> Curve:
    return _curve(rows, label, lambda row: row.get(key))


def _rates(rows: Rows) -> list[Curve]:
    """One curve for each group name; groups that join later begin later."""
    names = dict.fromkeys(name for row in rows for name in row.get("lr") or {})
    return [_curve(rows, name, lambda row, name=name: (row.get("lr") or {}).get(name)) for name in names]  # type: ignore[misc]


def _joined(curves: list[Curve]) -> list[Curve]:
    """Equal curves as one, labelled with its largest value and its members' names."""
    members: dict[bytes, list[Curve]] = {}
    for curve in curves:
        members.setdefault(curve.values.tobytes(), []).append(curve)
    return [same[0]._replace(label=_label([c.label for c in same], same[0].values)) for same in members.values()]


def _label(names: list[str], values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    largest = f"{known.max():.2e}" if known.size else "n/a"
    if len(names) > 2:
        return f"{largest}  {_cut(names[0])} and {len(names) - 1} more"
    return f"{largest}  " + ", ".join(_cut(name) for name in names)


def _cut(name: str, longest: int = 44) -> str:
    """Both ends of a parameter's name: the place and the kind."""
    return name if len(name) <= longest else f"{name[:20]}…{name[21 - longest :]}"


def _known(curves: list[Curve]) -> list[Curve]:
    return [curve for curve in curves if np.isfinite(curve.values).any()]


def _draw(axes: Axes, curve: Curve, **style: Any) -> None:
    """A line; with points where it is short, since one point alone draws no line."""
    few = np.isfinite(curve.values).sum() <= 40
    line = downsampled(curve)
    axes.plot(line.steps, line.values, marker="o" if few else None, markersize=3.5, **style)


def _draw_smoothed(axes: Axes, curve: Curve, colour: str, fraction: float) -> None:
    """The values pale, and over them their running mean over a `fraction` of them; alone where that is one value."""
    known = np.isfinite(curve.values)
    steps, values = curve.steps[known], curve.values[known]
    window = int(len(values) * fraction)
    if window > 1:
        _draw(axes, Curve("", steps, values), color=colour, linewidth=0.8, alpha=0.3)
        values = np.convolve(values, np.full(window, 1 / window), mode="valid")
        steps = steps[(window - 1) // 2 :][: len(values)]
    _draw(axes, Curve(curve.label, steps, values), color=colour, linewidth=1.8, label=curve.label)


def _mark_best(axes: Axes, curves: list[Curve]) -> None:
    if not curves:
        return
    best = max(curves, key=lambda curve: float(np.nanmax(curve.values)))
    at = int(np.nanargmax(best.values))
    point = (best.steps[at], best.values[at])
    axes.plot(
        *point, marker="*", markersize=13, color="#111", linestyle="none", label=f"best {best.label} {point[1]:.4f}"
    )


def _finish(axes: Axes, title: str, quantity: str, curves: list[Curve], log: bool) -> None:
    """Title, names of the axes, whole steps, and a logarithmic scale where the values span more than a factor of 3."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    style_axes(axes, title, "", quantity)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    first, last = axes.dataLim.intervalx
    if first == last:  # matplotlib would show a thousandth of a step
        axes.set_xlim(first - 1, last + 1)
    values = np.concatenate([curve.values for curve in curves])
    positive = values[np.isfinite(values) & (values > 0)]
    if log and positive.size and positive.max() > 3 * positive.min():
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
