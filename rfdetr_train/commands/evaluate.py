"""`python -m rfdetr_train evaluate`: the score of a checkpoint on a split."""

import json
import logging
from pathlib import Path
from typing import Any

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.starting_weights import best_kind
from rfdetr_train.config import EvaluateConfig, ModelConfig
from rfdetr_train.data.coco import read_split
from rfdetr_train.data.image_check import check_images
from rfdetr_train.data.sample import Dataset, Split
from rfdetr_train.engine.precision import Precision, choose_device
from rfdetr_train.engine.run_plots import RunPlots
from rfdetr_train.engine.signals import StopSignals
from rfdetr_train.engine.validator import Validation, Validator
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap
from rfdetr_train.loggers.files import write_json
from rfdetr_train.loggers.progress import make_progress
from rfdetr_train.loggers.tables import print_table
from rfdetr_train.loggers.track import Counter
from rfdetr_train.models.rfdetr import RFDETR, build_model

log = logging.getLogger(__name__)


def evaluate(config: EvaluateConfig, run_dir: Path) -> float | None:
    """Score a checkpoint as `config` says, write the results into `run_dir` and return the AP."""
    path = files.resolve(config.checkpoint, prefer=("best", "last"))
    saved = files.load(path)
    weights = choose_weights(config.weights, saved, path)
    label_map = LabelMap.from_plain(saved["label_map"])
    split = load_split(config, Path(config.data.root or saved["data_root"]), label_map)
    precision = Precision(config.precision, choose_device(config.device, key="device"), key="precision")
    model = load_model(saved, weights, len(label_map.names)).to(precision.device)
    log.info("%s (%s weights) on %s of %s", path, weights, split.name, split.folder)
    with StopSignals() as signals, make_progress(config.progress) as progress:
        validator = Validator(
            split,
            model.config.resolution,
            precision,
            progress,
            batch_size=config.batch_size,
            num_workers=config.data.num_workers,
            max_dets=config.max_dets,
            backend=config.backend,
            num_detections=model.config.num_queries,
        )
        validation = validator(model, on_batch=signals.raise_if_received)
    write_results(run_dir, validation, {"checkpoint": str(path), "weights": weights, "split": split.name})
    RunPlots(run_dir, split, enabled=True, num_samples=config.sample_images).draw(validation.detections)
    show(validation, run_dir)
    return validation.metrics.overall["AP"]


def choose_weights(wanted: str, saved: dict[str, Any], path: Path) -> str:
    """`raw` or `ema`; auto takes those that scored best when the checkpoint was written."""
    if wanted == "auto":
        return best_kind(saved)
    if wanted == "ema" and not (saved["ema"] and saved["ema"]["num_updates"]):
        raise UserError(f"weights=ema: {path} holds no average; use weights=raw")
    return wanted


def load_model(saved: dict[str, Any], weights: str, num_classes: int) -> RFDETR:
    """The checkpoint's model with its raw or averaged weights."""
    model = build_model(ModelConfig(**saved["model_config"]), num_classes)
    model.load_state_dict(saved["model"] if weights == "raw" else saved["ema"]["model"])
    return model


def load_split(config: EvaluateConfig, root: Path, label_map: LabelMap) -> Split:
    """The split to score, each picture looked at once."""
    split = read_split(root, config.split, label_map)
    with Counter("checking pictures") as counter:
        checked = check_images(Dataset(root, {split.name: split}, label_map), config.data.on_error, counter.show)
    return checked.splits[split.name]


def write_results(run_dir: Path, validation: Validation, source: dict[str, str]) -> None:
    """evaluation.json: all numbers; results.json: the detections in COCO's format with the data set's own ids."""
    metrics = validation.metrics
    write_json(run_dir / "evaluation.json", {**source, **metrics.overall, "per_class": metrics.per_class})
    (run_dir / "results.json").write_text(json.dumps(validation.predictions.to_results()), encoding="utf-8")


def show(validation: Validation, run_dir: Path) -> None:
    """Two tables; the last line names the folder."""
    overall, per_class = validation.metrics.overall, validation.metrics.per_class
    columns = ["name", "num_boxes", "AP", "AP50", "AR100"]
    print_table("by class", columns, [[row[column] for column in columns] for row in per_class])
    print_table("overall", list(overall), [list(overall.values())])
    log.info("run folder: %s", run_dir)
