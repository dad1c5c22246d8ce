"""`python -m rfdetr_train`: build the parts of a run, connect them, run them, sum up."""

import dataclasses
import logging
import random
import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from rfdetr_train import distributed
from rfdetr_train.allocator import keep_freed_memory
from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.find_run import clear_leftovers, find_resume, locked, refuse_used_folder
from rfdetr_train.checkpoint.fit import load_fitting, match_classes
from rfdetr_train.checkpoint.reference_run import read_run
from rfdetr_train.checkpoint.starting_weights import RANDOM_WARNING, find_starting_weights
from rfdetr_train.commands.summary import RunSummary
from rfdetr_train.commands.training_data import build_loader, load_data, training_sides
from rfdetr_train.config import PUBLISHED_BACKBONE, TrainConfig
from rfdetr_train.criterion import Criterion, find_class_weights
from rfdetr_train.data.canvas import Placement
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.data.sample import Dataset
from rfdetr_train.engine.auto_batch import find_batch_size
from rfdetr_train.engine.averaging import build_average
from rfdetr_train.engine.optimization import build_optimization
from rfdetr_train.engine.precision import Precision, choose_device, require_compiler
from rfdetr_train.engine.recorder import Recorder
from rfdetr_train.engine.run import Run, show_fit
from rfdetr_train.engine.run_length import RunLength
from rfdetr_train.engine.run_plots import RunPlots
from rfdetr_train.engine.saver import Saver
from rfdetr_train.engine.signals import StopSignals
from rfdetr_train.engine.step import TrainStep
from rfdetr_train.engine.step_watch import StepWatch
from rfdetr_train.engine.trainer import IsHopeless, Trainer, never
from rfdetr_train.engine.validator import Validator
from rfdetr_train.errors import UserError
from rfdetr_train.loggers.files import METRICS_NAME, MetricsFiles
from rfdetr_train.loggers.progress import Counter, make_progress
from rfdetr_train.loggers.trackers import Trackers, check_installed
from rfdetr_train.matcher import match
from rfdetr_train.models.rfdetr import RFDETR, build_model

log = logging.getLogger(__name__)


def train(config: TrainConfig, run_dir: Path, is_hopeless: IsHopeless = never) -> float | None:
    """Train as `config` says, in `run_dir`; the best AP of the valid split. `is_hopeless` may end it, see Trainer."""
    check_installed(config.logger.trackers)
    check_sources(config)
    seed_everything(config.seed)
    # not every operation of the network has a deterministic form on CUDA; torch then warns by name
    torch.use_deterministic_algorithms(config.trainer.deterministic, warn_only=True)
    precision = Precision(config.trainer.precision, choose_device(config.trainer.device))
    if precision.device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats(precision.device)  # an earlier job's peak is not this one's
    dataset = load_data(config)
    criterion = build_criterion(config, dataset)
    log.info("device %s, precision %s, seed %d", precision.device, precision.name, config.seed)
    if precision.device.type == "cpu":
        keep_freed_memory()
    distributed.only_on_main(clear_leftovers, run_dir)
    with distributed.only_on_main(locked, run_dir):
        return train_on(dataset, config, criterion, precision, run_dir, is_hopeless)


def train_on(
    dataset: Dataset,
    config: TrainConfig,
    criterion: Criterion,
    precision: Precision,
    run_dir: Path,
    is_hopeless: IsHopeless,
) -> float | None:
    """The run itself, in a folder that is this job's own."""
    found = distributed.from_main(lambda: find_parent(config, run_dir))
    parent = Path(found) if found else None
    saved = read_run(parent) if parent else None
    pretrained = config.model.pretrained and parent is None
    with distributed.one_after_the_first():  # of a download
        model = build_model(config.model, len(dataset.label_map.names), pretrained).to(precision.device)
        if config.trainer.checkpointing:
            model.recompute_activations()
        if config.trainer.compile:
            require_compiler()
            model.compile_blocks()
        source = str(parent) if parent else load_starting_weights(model, config, dataset)
    config = settle_batch_size(config, saved, model, criterion, precision, len(dataset.splits["train"]))

    with ExitStack() as stack:
        loader = stack.enter_context(build_loader(config, dataset, pin_memory=precision.device.type == "cuda"))
        length = RunLength.of(loader.steps_per_epoch, config.trainer.epochs, config.trainer.max_steps)
        optimization = build_optimization(config, model, length, precision.device)
        average = build_average(config.ema, model)
        run = Run(config, dataset, model, optimization, average, precision, loader.images_per_epoch)
        saver = distributed.only_on_main(Saver, run_dir / "checkpoints", config.checkpoint, run.to_checkpoint)
        saver.check_space(run.checkpoint_bytes())
        if parent is not None and saved is not None:
            run.restore(saved, str(parent))
            if "recipe" in saved:  # a file of the reference, which would not do as one of ours
                saver.save(run.loop.step)
            else:
                saver.adopt(parent, run.loop.best)
            if distributed.is_main():
                continue_metrics(parent, run_dir, run)
        signals, plots = StopSignals(), build_plots(config, dataset, run_dir)
        trainer = build_trainer(run, run_dir, loader, length, criterion, saver, signals, plots, stack, is_hopeless)
        summary = distributed.only_on_main(RunSummary, run_dir, run, saver, source, parent, plots)
        with summary.written_at_the_end(), signals:
            trainer.fit()
    return run.loop.best["AP"] if run.loop.best else None


def find_parent(config: TrainConfig, run_dir: Path) -> str | None:
    """The checkpoint that the run resumes from; a new run is refused in a folder that holds one."""
    parent = find_resume(config.resume, run_dir, Path(config.run_dir), dataclasses.asdict(config))
    if parent is None:
        refuse_used_folder(run_dir)
        MetricsFiles(run_dir).truncate_after(0)  # of a job that ended before its first save and is tried again
    elif (folder := files.run_folder_of(parent)) is not None:
        clear_leftovers(folder)
    return str(parent) if parent else None


def check_sources(config: TrainConfig) -> None:
    """Refuse a file of weights, or to resume from, that is not there, before the data is read."""
    for key, value, words in (
        ("weights", config.weights, ("auto", "coco", "none")),
        ("resume", config.resume, ("auto",)),
    ):
        if value is not None and value not in words and "://" not in value and not Path(value).expanduser().exists():
            raise UserError(f"{key}={value}: no such file or run folder; give {', '.join(words)} or a path")


def seed_everything(seed: int) -> None:
    """Ours come from torch's generator and from the seed itself; Python's and numpy's are for classes of a user's."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def load_starting_weights(model: RFDETR, config: TrainConfig, dataset: Dataset) -> str:
    """Load what `weights` means into `model`; the source, as summary.json tells it."""
    if config.weights in ("auto", "none") and config.model.pretrained:
        log.warning("the encoder starts from timm's weights of %s, ALL ELSE FROM RANDOM ONES", config.model.backbone)
        return f"{config.model.backbone} of timm, the rest random"
    if config.weights == "auto" and config.model.backbone != PUBLISHED_BACKBONE:
        log.warning(RANDOM_WARNING, f"the published weights are not of {config.model.backbone}")
        return "random"
    with Counter("downloading weights") as counter:
        start = find_starting_weights(config.weights, config.model.name, Path(config.weights_dir), counter.show)
    if start is None:
        return "random"
    rows = match_classes(start.class_names, dataset.label_map.names, start.source)
    partial = config.weights_allow_partial
    show_fit(load_fitting(model, start.state, start.source, class_rows=rows, allow_partial=partial), start.source)
    return start.source


def settle_batch_size(
    config: TrainConfig,
    saved: dict | None,
    model: RFDETR,
    criterion: Criterion,
    precision: Precision,
    num_pictures: int,
) -> TrainConfig:
    """The config with a number in the place of `batch_size=auto`: that of the run it resumes, else what fits."""
    if config.trainer.batch_size != "auto":
        return config
    if saved is not None and saved["config"]:
        size = saved["config"]["trainer"]["batch_size"]
    else:
        side_px = max(training_sides(config))
        size = distributed.from_main(
            lambda: find_batch_size(config, model, criterion, precision, side_px, num_pictures)
        )
    log.info("batch_size=auto: %d", size)
    return dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, batch_size=size))


def build_criterion(config: TrainConfig, dataset: Dataset) -> Criterion:
    """The loss; `loss.class_weights=auto` goes by the boxes of the train split."""
    train, names = dataset.splits["train"], dataset.label_map.names
    num_boxes = np.bincount(train.labels[~train.crowd], minlength=len(names)).tolist()
    weights = find_class_weights(config.loss.class_weights, names, num_boxes)
    if weights is not None:
        log.info("class weights: %s", ", ".join(f"{n} {w:.3g}" for n, w in zip(names, weights.tolist(), strict=True)))
    return Criterion(config.model.num_queries, match, class_weights=weights)


def build_plots(config: TrainConfig, dataset: Dataset, run_dir: Path) -> RunPlots:
    """What draws the run."""
    valid = dataset.splits["valid"]
    return RunPlots(run_dir, valid, enabled=config.logger.plots, num_samples=config.logger.sample_images)


def build_trainer(
    run: Run,
    run_dir: Path,
    loader: TrainLoader,
    length: RunLength,
    criterion: Criterion,
    saver: Saver,
    signals: StopSignals,
    plots: RunPlots,
    stack: ExitStack,
    is_hopeless: IsHopeless,
) -> Trainer:
    """Connect the run to what trains, scores, shows and saves it."""
    config, valid = run.config, run.dataset.splits["valid"]
    every = config.trainer.log_every_steps
    progress = stack.enter_context(make_progress(config.logger.progress, length.total_steps, run.loop.step, every))
    optimizer, clip_norm = run.optimization.optimizer, config.trainer.clip_norm
    model = config.model
    step = TrainStep(run.model, criterion, optimizer, run.precision, clip_norm, model.group_detr, model.input_channels,
                     config.trainer.on_oom)  # fmt: skip
    assert isinstance(config.trainer.batch_size, int)
    validator = Validator(
        valid,
        config.model.resolution,
        run.precision,
        progress,
        batch_size=config.evaluation.batch_size or config.trainer.batch_size,
        num_workers=config.data.num_workers,
        max_dets=config.evaluation.max_dets,
        backend=config.evaluation.backend,
        num_detections=config.model.num_queries,
        input_channels=config.model.input_channels,
        placement=Placement.of(config.data.resize, config.model),
    )
    trackers = distributed.only_on_main(Trackers, config.logger, run_dir, dataclasses.asdict(config))
    stack.enter_context(trackers)
    device = run.precision.device
    recorder = distributed.only_on_main(
        Recorder, run_dir, progress, plots, length, every, config.logger, trackers, device
    )
    watch = StepWatch(run, criterion.class_weights, run_dir)
    return Trainer(run, step, watch, loader, validator, recorder, saver, signals, is_hopeless)


def continue_metrics(parent: Path, run_dir: Path, run: Run) -> None:
    """Begin metrics.jsonl with the rows that the resumed run had written when it was saved."""
    folder = files.run_folder_of(parent)
    if folder is not None and folder.resolve() != run_dir.resolve() and (folder / METRICS_NAME).is_file():
        shutil.copyfile(folder / METRICS_NAME, run_dir / METRICS_NAME)
    MetricsFiles(run_dir).truncate_after(run.loop.step, run.loop.evaluation_pending)
