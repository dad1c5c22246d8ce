"""`python -m rfdetr_train evaluate`: the score of a checkpoint on a split."""

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

from rfdetr_train import distributed
from rfdetr_train.allocator import keep_freed_memory
from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.environment import versions
from rfdetr_train.config import DataConfig, EvaluateConfig
from rfdetr_train.data.dataset import read_split
from rfdetr_train.data.image_check import check_images
from rfdetr_train.data.sample import Dataset, Split
from rfdetr_train.engine.precision import Precision, choose_device
from rfdetr_train.engine.run_plots import RunPlots
from rfdetr_train.engine.saved_run import SavedRun, TrainedModel, load_trained_model
from rfdetr_train.engine.signals import StopSignals
from rfdetr_train.engine.validator import Validation, Validator
from rfdetr_train.errors import UserError, require
from rfdetr_train.labels import LabelMap
from rfdetr_train.loggers.console import print_table
from rfdetr_train.loggers.files import EVALUATION_NAME, write_json
from rfdetr_train.loggers.page import classes_with_best
from rfdetr_train.loggers.progress import Counter, make_progress

log = logging.getLogger(__name__)


def evaluate(config: EvaluateConfig, run_dir: Path) -> float | None:
    """Score a checkpoint as `config` says, write the results into `run_dir` and return the AP."""
    trained = load_trained_model(config.checkpoint, config.weights)
    split = load_split(config, trained.saved, trained.label_map)
    precision = Precision(config.precision, choose_device(config.device, key="device"), key="precision")
    if precision.device.type == "cpu":
        keep_freed_memory()
    model = trained.model.to(precision.device)
    log.info("%s (%s weights) on %s of %s", trained.saved.path, trained.weights, split.name, split.folder)
    of_run = trained.saved.config.get("trainer", {}).get("precision", "not known")
    log.info("precision %s (of the run: %s)", precision.name, of_run)
    with StopSignals("finishing the batch; nothing is written") as signals, make_progress(config.progress) as progress:
        validator = Validator(
            split,
            model.config,
            trained.placement,
            precision,
            progress,
            batch_size=config.batch_size,
            num_workers=config.data.num_workers,
            max_dets=config.max_dets,
            backend=config.backend,
        )
        validation = validator(model, on_batch=signals.raise_if_noted_anywhere)
    if not distributed.is_main():
        return validation.metrics.overall["AP"]
    scores = validation.to_plain()
    write_results(run_dir, validation, {**circumstances(trained, validator), **scores})
    dropped = {reason: count for reason, count in split.dropped.items() if count}
    if dropped:
        log.warning("scored on what is left of %s, which truth.json holds; dropped: %s", split.name, dropped)
    plots = RunPlots(run_dir, split, enabled=True, num_samples=config.sample_images)
    plots.draw(validation, with_diagnosis=True)
    plots.write_report()
    show(validation.metrics.overall, scores)
    log.info("run folder: %s", run_dir)
    return scores["AP"]


def circumstances(trained: TrainedModel, validator: Validator) -> dict[str, Any]:
    """What was scored, on what and how: the head of evaluation.json."""
    split, evaluator = validator.split, validator.evaluator
    return {
        "checkpoint": str(trained.saved.path),
        "weights": trained.weights,
        "split": split.name,
        "data_root": str(split.folder),
        "precision": validator.precision.name,
        "processes": distributed.size(),
        "max_dets": evaluator.max_dets,
        "backend": evaluator.backend,
        "versions": versions(),
    }


def load_split(config: EvaluateConfig, saved: SavedRun, label_map: LabelMap) -> Split:
    """The split to score, each picture looked at once."""
    data = choose_data(config, saved)
    with Counter("reading sizes of pictures") as counter:
        try:
            split = read_split(data, config.split, label_map, counter.show)
        except UserError as error:
            raise UserError(f"{error} (the checkpoint has learnt {', '.join(label_map.names[:20])})") from error
    unchecked = Dataset(Path(data.root), {split.name: split}, label_map)
    with Counter("checking pictures") as counter:
        checked = check_images(unchecked, data.on_error, counter.show, data.max_megapixels)
    return checked.splits[split.name]


def choose_data(config: EvaluateConfig, saved: SavedRun) -> DataConfig:
    """The data set as the run read it; another one in its own format and splits, for the same classes."""
    with files.reading(config.checkpoint):
        return _choose_data(config, saved)


def _choose_data(config: EvaluateConfig, saved: SavedRun) -> DataConfig:
    own, root_of_run = config.data, saved.content.get("data_root")  # of a file of the reference nothing is known
    trained = saved.config.get("data", {})
    root = own.root or root_of_run
    if root is None:
        raise UserError(f"checkpoint={config.checkpoint}: does not name its data set; give data.root=PATH")
    require(isinstance(root, str), "data_root", repr(root), "damaged, no run has saved this; give data.root=PATH")
    known = {field.name for field in dataclasses.fields(DataConfig)}
    changes: dict[str, Any] = {"name": "auto", "root": root, "num_workers": own.num_workers}
    changes |= {"on_error": own.on_error, "max_megapixels": own.max_megapixels}
    if root_of_run is None or os.path.abspath(root) != os.path.abspath(root_of_run):
        changes |= {"format": own.format, "valid_fraction": None, "split_seed": 0}
    elif own.format != "auto":
        changes["format"] = own.format
    kept = {key: value for key, value in trained.items() if key in known}
    return DataConfig(**{**({"format": "coco"} if trained else {}), **kept, **changes})  # older runs knew only coco


def write_results(run_dir: Path, validation: Validation, evaluation: dict[str, Any]) -> None:
    """evaluation.json: all numbers; in COCO's formats results.json, the detections with the data set's own ids, and
    truth.json, what they were scored against."""
    write_json(run_dir / EVALUATION_NAME, evaluation)
    (run_dir / "results.json").write_text(json.dumps(validation.predictions.to_results()), encoding="utf-8")
    (run_dir / "truth.json").write_text(json.dumps(validation.evaluator.truth), encoding="utf-8")


def show(overall: dict[str, Any], scores: dict[str, Any]) -> None:
    """Tables of classes, with precision and recall where their F1 is best, of errors, and of all."""
    columns, keys = ["name", "num_boxes", "AP", "AP50", "AR100"], ["precision", "recall", "f1", "threshold"]
    rows = [[*(row[key] for key in columns), *(row.get(key) for key in keys)] for row in classes_with_best(scores)]
    print_table("by class; precision and recall at the threshold of the best F1", [*columns, *keys], rows)
    if scores["diagnosis"] is not None:
        costs = [[kind, error["count"], error["AP50_lost"]] for kind, error in scores["diagnosis"]["errors"].items()]
        title = "errors at IoU 0.5 of all detections, and the AP50 that each kind costs"
        print_table(title, ["kind", "count", "AP50 lost"], costs)
    print_table("overall", [*overall, "AP (any class)"], [[*overall.values(), scores["class_agnostic"]["AP"]]])
