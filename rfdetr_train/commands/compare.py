"""`python -m rfdetr_train compare RUN RUN ...`: what differs between runs, and what came of it."""

from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from rfdetr_train.errors import UserError
from rfdetr_train.loggers.console import print_table, write_line
from rfdetr_train.loggers.figure import save_figure
from rfdetr_train.loggers.files import EVALUATION_NAME, METRICS_NAME, SHOWN_METRICS, flatten, read_json, read_metrics
from rfdetr_train.loggers.plots import compared_runs


def compare(arguments: list[str]) -> None:
    """Show tables of keys, metrics and classes that differ, and draw the curves of all runs in one picture."""
    folders = {str(argument): Path(argument).expanduser().resolve() for argument in arguments}
    if len(folders) < 2:
        raise UserError("compare: name two run folders or more, python -m rfdetr_train compare RUN RUN")
    names = _short_names(list(folders.values()))
    configs = [_read_config(folder) for folder in folders.values()]
    evaluations = [_read_evaluation(folder) for folder in folders.values()]
    if len({tuple(row["name"] for row in evaluation.get("per_class", [])) for evaluation in evaluations}) > 1:
        write_line("WARNING these runs were scored on other classes: their metrics do not compare", "yellow")
    show_keys(names, configs)
    show_metrics(names, evaluations)
    show_classes(names, evaluations)
    rows = {name: read_metrics(folder / METRICS_NAME) for name, folder in zip(names, folders.values(), strict=True)
            if (folder / METRICS_NAME).is_file()}  # fmt: skip
    figure = compared_runs(rows)
    if figure is not None:
        picture = Path(f"comparison-{datetime.now():%Y-%m-%d-%H-%M-%S}.png").resolve()
        save_figure(figure, picture)
        write_line(f"curves: {picture}")


def show_keys(names: list[str], configs: list[dict[str, Any]]) -> None:
    """The config keys in which the runs differ."""
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]
    rows = [[key.replace("/", "."), *(config.get(key, "-") for config in configs)] for key in differing]
    print_table("differing keys" if rows else "no key differs", ["key", *names], rows)


def show_metrics(names: list[str], evaluations: list[dict[str, Any]]) -> None:
    """The best evaluation of each run, and what it gained over the first run's."""
    keys, rows = ["weights", "step", *SHOWN_METRICS], []
    for name, evaluation in zip(names, evaluations, strict=True):
        gains = [_difference(evaluation.get(key), evaluations[0].get(key)) for key in SHOWN_METRICS[:2]]
        rows.append([name, *map(evaluation.get, keys), *gains])
    print_table("best evaluation", ["run", *keys, *(f"{key} gained" for key in SHOWN_METRICS[:2])], rows)


def show_classes(names: list[str], evaluations: list[dict[str, Any]]) -> None:
    """AP of each class in each run, and the difference to the first."""
    by_class = [{row["name"]: row["AP"] for row in evaluation.get("per_class", [])} for evaluation in evaluations]
    classes = dict.fromkeys(name for aps in by_class for name in aps)
    rows = []
    for name in classes:
        first, *others = (aps.get(name) for aps in by_class)
        rows.append([name, first, *others, *(_difference(other, first) for other in others)])
    print_table("AP by class", ["class", *names, *(f"{name} - {names[0]}" for name in names[1:])], rows)


def _difference(value: float | None, reference: float | None) -> float | None:
    return None if value is None or reference is None else value - reference


def _short_names(folders: list[Path]) -> list[str]:
    """The last parts of the paths, as many as tell them apart."""
    for parts in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"compare: {folders[0]} is named twice; name different run folders")


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder}: no config.yaml; name run folders")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    return flatten({key: value for key, value in values.items() if key != "defaults"})


def _read_evaluation(folder: Path) -> dict[str, Any]:
    path = folder / EVALUATION_NAME
    if not path.is_file() and not (folder / METRICS_NAME).is_file():
        raise UserError(f"{folder}: neither {EVALUATION_NAME} nor {METRICS_NAME} is there; name folders of runs")
    return read_json(path)
