"""What a sweep found, as figures: its jobs side by side, what each override explains, its course."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rfdetr_train.loggers.figure import GRID_COLOUR, PALETTE, Axes, Figure, drawable, families, new_figure, style_axes

GROUPS = 4  # into which the numbers of an override are cut; as many values are written beside an axis


class Scored(NamedTuple):
    """A job with an AP; `settings` are the overrides in which the jobs differ, the same keys in each."""

    number: int
    settings: dict[str, str]
    ap: float
    pruned: bool


def importance(jobs: Sequence[Scored]) -> dict[str, tuple[float, float]]:
    """The share of the variance of AP that each override explains by itself, and what chance would, largest first.

    share = sum over groups g of n_g (mean_g - mean)^2 / sum over jobs of (AP - mean)^2, the correlation ratio, 0 to 1.
    A group is the jobs of one value; numbers with more than four values are cut by rank into four. A meaningless
    override explains (groups - 1) / (jobs - 1) on average. Pruned jobs are left out. Empty below three jobs, or where
    every AP is the same.
    """
    jobs = [job for job in jobs if not job.pruned]
    aps = np.array([job.ap for job in jobs])
    if len(jobs) < 3 or np.ptp(aps) < 1e-9:
        return {}
    shares = {}
    for key in jobs[0].settings:
        groups, values = _places([job.settings[key] for job in jobs])
        if len(values) > GROUPS and _order(values[-1])[0] == 0:
            groups = groups * GROUPS // len(values)
        means = [aps[groups == group].mean() for group in groups]
        shares[key] = float(np.var(means) / np.var(aps)), (len(np.unique(groups)) - 1) / (len(jobs) - 1)
    return dict(sorted(shares.items(), key=lambda item: -item[1][0]))


def _places(values: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """The place of each value among the different ones, and these: numbers by size, then words."""
    different = sorted(set(values), key=_order)
    return np.array([different.index(value) for value in values]), different


def _order(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value


def draw_sweep(jobs: Sequence[Scored]) -> Figure:
    """A picture of all jobs, of what each override explains, and of the course of the sweep."""
    figure = new_figure(1200, 880)
    panels = figure.subplot_mosaic([["jobs", "jobs"], ["importance", "course"]])
    for axes, draw, title in (
        (panels["jobs"], _draw_jobs, "Every job"),
        (panels["importance"], _draw_importance, "Share of AP's variance explained"),
        (panels["course"], _draw_course, "Course of the sweep"),
    ):
        style_axes(axes, title, "", "")  # its directions are named by who draws
        draw(axes, jobs)
    return figure


def _draw_jobs(axes: Axes, jobs: Sequence[Scored]) -> None:
    """A line for each job through its overrides, values in order, to its AP, from low (violet) to high (yellow)."""
    from matplotlib import colormaps

    aps = np.array([job.ap for job in jobs])
    lines, marks = [(aps - aps.min()) / max(np.ptp(aps), 1e-9)], [[f"{aps.min():.3f}", f"{aps.max():.3f}"]]
    for key in reversed(jobs[0].settings):
        places, values = _places([job.settings[key] for job in jobs])
        lines.insert(0, places / max(1, len(values) - 1))
        marks.insert(0, values if len(values) <= GROUPS or _order(values[-1])[0] else [values[0], values[-1]])
    for row in np.argsort(aps):
        axes.plot([line[row] for line in lines], color=colormaps["plasma"](0.25 + 0.65 * lines[-1][row]), linewidth=1.4)
    for column, values in enumerate(marks):
        axes.axvline(column, color=GRID_COLOUR, zorder=0)
        for height, word in zip(np.linspace(0, 1, len(values)), map(_shown, values), strict=True):
            axes.text(column + 0.03, height, word, fontsize=8, parse_math=False, family=families(word))
    axes.set(yticks=[], xlim=(-0.1, len(lines) - 0.6))
    _name_ticks(axes, [*jobs[0].settings, "AP"])


def _draw_importance(axes: Axes, jobs: Sequence[Scored]) -> None:
    """A bar for each override, and a tick where chance alone would end it."""
    shares = importance(jobs)
    if not shares:
        axes.text(0.5, 0.5, "fewer than three jobs to compare, or all of one AP", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    axes.bar(range(len(shares)), [explained for explained, _ in shares.values()], color=PALETTE[0], width=0.6)
    chance = [chance for _, chance in shares.values()]
    axes.plot(range(len(shares)), chance, "_", color=PALETTE[1], markersize=24, label="by chance alone")
    axes.set(ylim=(0, 1), ylabel="sum of squares between groups / total")
    axes.legend(frameon=False)
    _name_ticks(axes, list(shares))


def _draw_course(axes: Axes, jobs: Sequence[Scored]) -> None:
    """AP of every job in order, pruned ones hollow, and the best so far."""
    numbers, aps = [job.number for job in jobs], [job.ap for job in jobs]
    colours = ["none" if job.pruned else PALETTE[0] for job in jobs]
    axes.scatter(numbers, aps, facecolors=colours, edgecolors=PALETTE[0], label="job (hollow: pruned)")
    axes.step(numbers, np.maximum.accumulate(aps), where="post", color=PALETTE[1], label="best so far")
    axes.set(xlabel="job", ylabel="AP")
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False)


def _shown(text: str) -> str:
    return drawable(text, 0, longest=28)


def _name_ticks(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), map(_shown, names), rotation=15, ha="right", parse_math=False)
