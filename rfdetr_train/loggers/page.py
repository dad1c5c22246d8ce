"""Pages that open offline, templates, figures and pictures all in one file; and report.html, the page of a run."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rfdetr_train.atomic_file import replacing
from rfdetr_train.errors import UserError
from rfdetr_train.loggers import diagnosis_plots, plots
from rfdetr_train.loggers.figure import as_svg
from rfdetr_train.loggers.files import (
    EVALUATION_NAME,
    METRICS_NAME,
    SHOWN_METRICS,
    SUMMARY_NAME,
    read_json,
    read_metrics,
)

REPORT_NAME = "report.html"
SHEETS = {
    "train_batch": "A training batch as the network sees it",
    "*_samples": "The first pictures that were scored",
    "*_worst": "The worst pictures, by F1 at IoU 0.5",
    "*_best": "The best ones",
}
JPEG_QUALITY = 82  # of sheets; as PNG they would be most of a page


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Write the page that `template`, a file beside this one, makes of the values; all of them are escaped."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("rfdetr_train.loggers", "."), autoescape=True, trim_blocks=True)
    environment.filters["number"] = _number
    text = environment.get_template(template).render(**values)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "xmlcharrefreplace"))
    return path


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if isinstance(value, int) else "n/a"


def as_figures(draw: Mapping[str, Any], source: Any) -> dict[str, str]:
    """SVG of each function's figure of `source`; those that have nothing to show are left out."""
    figures = {name: function(source) for name, function in draw.items()}
    return {name: as_svg(figure) for name, figure in figures.items() if figure is not None}


def as_jpeg(path: Path) -> str:
    """The picture as a data address."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").save(buffer, "JPEG", quality=JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/report.html` anew, whether the run is over or goes on.

    Raises UserError for a folder that holds neither metrics nor an evaluation.
    """
    rows = read_metrics(run_dir / METRICS_NAME)
    evaluation = read_json(run_dir / EVALUATION_NAME)
    if not rows and not evaluation:
        raise UserError(f"{run_dir}: no run to report: neither {METRICS_NAME} nor {EVALUATION_NAME} is there")
    summary = read_json(run_dir / SUMMARY_NAME)
    config_file = run_dir / "config.yaml"
    diagnosis = evaluation.get("diagnosis")
    return write_page(
        run_dir / REPORT_NAME,
        "report.html.jinja",
        name=run_dir.name,
        status=summary.get("status") or ("running" if rows else "evaluated"),
        facts=_facts(summary, rows, evaluation),
        tiles={key: evaluation[key] for key in SHOWN_METRICS if key in evaluation},
        curves=as_figures(plots.FIGURES, rows),
        findings=as_figures(diagnosis_plots.FIGURES, diagnosis) if diagnosis else {},
        classes=classes_with_best(evaluation),
        sheets={title: as_jpeg(path) for name, title in SHEETS.items()
                for path in sorted((run_dir / "plots").glob(f"{name}.png"))},
        config=config_file.read_text(encoding="utf-8") if config_file.is_file() else "",
        environment=summary.get("versions") or evaluation.get("versions", {}),
    )  # fmt: skip


def _facts(summary: Mapping[str, Any], rows: list[dict], evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """What stands above everything else, as far as it is known."""
    data, model = summary.get("data", {}), summary.get("model", {})
    best = summary.get("best") or evaluation
    facts: dict[str, Any] = {"Started from": summary.get("weights"), "Notes": summary.get("notes")}
    if summary:
        millions = model["parameters"] / 1e6
        facts["Model"] = f"{model['name']}, {model['resolution']} px, {millions:.1f} M parameters"
        facts["Data"] = f"{data['root']}: {data['train']} train, {data['valid']} valid, {len(data['classes'])} classes"
        facts["Time"] = f"{_duration(summary['duration_s'])} on {summary['device']}, {summary['precision']}"
    for title, key in (("Checkpoint", "checkpoint"), ("Weights", "weights"), ("Split", "split"), ("Data", "data_root")):
        if not summary and not rows and evaluation.get(key):
            facts[title] = evaluation[key]
    if rows:
        facts["Trained"] = f"{rows[-1]['step']} steps, {rows[-1]['epoch'] + 1} epochs"
    if best.get("step"):
        facts["Best"] = f"{best.get('weights')} weights after step {best['step']}"
    return {key: value for key, value in facts.items() if value}


def classes_with_best(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each class; where there is a diagnosis with the point of its best F1."""
    diagnosis = evaluation.get("diagnosis") or {}
    best = [curve["best"] or {} for curve in diagnosis.get("curves", [])[1:]]
    rows = evaluation.get("per_class", [])
    return [{**row, **at} for row, at in zip(rows, best or [{}] * len(rows), strict=True)]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
