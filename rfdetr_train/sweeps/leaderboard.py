"""The jobs of a sweep, best first: on the terminal, as a table for a spreadsheet, and as a page with plots."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rfdetr_train.atomic_file import replacing
from rfdetr_train.loggers.console import print_table
from rfdetr_train.loggers.figure import as_svg, save_figure
from rfdetr_train.loggers.files import SUMMARY_NAME, csv_text
from rfdetr_train.loggers.page import write_page
from rfdetr_train.loggers.sweep_plots import Scored, draw_sweep
from rfdetr_train.sweeps.folder import DONE, Job

SHOWN_JOBS = 10  # on the terminal before the end


def write_leaderboard(sweep_dir: Path, jobs: Sequence[Job], num_jobs: int, show: bool) -> None:
    """Write leaderboard.csv and .html, and plots once `num_jobs` have ended; `show` prints the best jobs."""
    ended = sum(job.status in (*DONE, "failed") for job in jobs)
    settings = differing_overrides(jobs)
    rows = [_row(sweep_dir, job, values) for job, values in zip(jobs, settings, strict=True)]
    rows.sort(key=lambda row: (row["AP"] is None, -(row["AP"] or 0.0), row["job"]))
    columns, status = list(rows[0]) if rows else [], f"{ended} of {num_jobs} jobs ended"
    with replacing(sweep_dir / "leaderboard.csv") as file:
        file.write(csv_text(columns, rows).encode("utf-8", "backslashreplace"))
    scored = [
        Scored(job.number, values, job.AP, job.status == "pruned")
        for job, values in zip(jobs, settings, strict=True)
        if job.AP is not None
    ]
    figure = draw_sweep(scored) if len(scored) > 1 and ended >= num_jobs else None
    if figure is not None:
        save_figure(figure, sweep_dir / "plots" / "sweep.png")
    page = {"name": sweep_dir.name, "status": status, "columns": columns, "rows": rows}
    write_page(sweep_dir / "leaderboard.html", "sweep.html.jinja", **page, figure=figure and as_svg(figure))
    if show:
        shown = rows if ended >= num_jobs else rows[:SHOWN_JOBS]
        print_table(f"{sweep_dir}: {status}", columns, [list(row.values()) for row in shown])


def differing_overrides(jobs: Sequence[Job]) -> list[dict[str, str]]:
    """For each job the overrides in which the jobs differ; "" for one that it lacks."""
    settings = [dict(override.partition("=")[::2] for override in job.overrides) for job in jobs]
    keys = dict.fromkeys(key for values in settings for key in values)
    differing = [key for key in keys if len({values.get(key) for values in settings}) > 1]
    return [{key: values.get(key, "") for key in differing} for values in settings]


def _row(sweep_dir: Path, job: Job, values: dict[str, str]) -> dict[str, Any]:
    path = sweep_dir / (job.folder or "none yet") / SUMMARY_NAME
    summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {
        "job": job.number,
        "status": job.status,
        "AP": job.AP,
        "AP50": (summary.get("best") or {}).get("AP50"),
        **values,
        "seconds": summary.get("duration_s"),
        "memory GiB": summary.get("memory_gib"),
        "groups": summary.get("model", {}).get("optimizer_groups"),
        "path": job.folder,
    }
