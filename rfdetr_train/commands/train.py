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
from rfdetr_train.checkpoint.starting_weights import RANDOM_WARNING, find_starting_weights
from rfdetr_train.commands.summary import RunSummary
from rfdetr_train.commands.training_data import build_loader, load_data, training_sides
from rfdetr_train.config import PUBLISHED_BACKBONE, TrainConfig
from rfdetr_train.criterion import Criterion, find_class_weights
from rfdetr_train.data.canvas import Placement
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.data.sample import Dataset
from rfdetr_train.engine.averaging import build_average
from rfdetr_train.engine.course import RunLength
from rfdetr_train.engine.memory import find_batch_size
from rfdetr_train.engine.optimization import build_optimization, prepare_to_train
from rfdetr_train.engine.precision import Precision, choose_device
from rfdetr_train.engine.recorder import Recorder
from rfdetr_train.engine.run import Run, show_fit
from rfdetr_train.engine.run_plots import RunPlots
from rfdetr_train.engine.saved_run import SavedRun
from rfdetr_train.engine.saver import Saver
from rfdetr_train.engine.signals import StopSignals
from rfdetr_train.engine.step import TrainStep
from rfdetr_train.engine.step_watch import StepWatch
from rfdetr_train.engine.trainer import IsHopeless, Trainer, never
from rfdetr_train.engine.validator import Validator
from rfdetr_train.errors import UserError, require
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
    precision = prepare_process(config)
    dataset = load_data(config)
    criterion = build_criterion(config, dataset)
    log.info("device %s, precision %s, seed %d", precision.device, precision.name, config.seed)
    if precision.device.type == "cpu":
        keep_freed_memory()
    distributed.only_on_main(clear_leftovers, run_dir)
    with distributed.only_on_main(locked, run_dir), ExitStack() as stack:
        parent = find_parent(config, run_dir)
        model, source = build_start(config, dataset, precision.device, parent)
        config = settle_batch_size(config, parent, model, criterion, precision, len(dataset.splits["train"]))
        loader = stack.enter_context(build_loader(config, dataset, pin_memory=precision.device.type == "cuda"))
        run = build_run(config, run_dir, dataset, model, precision, loader)
        saver = distributed.only_on_main(Saver, run_dir / "checkpoints", config.checkpoint, run.to_checkpoint)
        saver.check_space(run.checkpoint_bytes())
        if parent is not None:
            go_on(run, parent, saver)
        trainer = build_trainer(run, loader, criterion, saver, is_hopeless, stack)
        plots, parent_file = trainer.recorder.plots, parent and parent.path
        summary = distributed.only_on_main(RunSummary, run, saver, source, parent_file, plots)
        with summary.written_at_the_end(), trainer.signals:
            trainer.fit()
    return run.loop.best["AP"] if run.loop.best else None


def prepare_process(config: TrainConfig) -> Precision:
    """What holds for all that this process computes: generators, kernels, device and number format."""
    random.seed(config.seed)  # Python's and numpy's are for classes of a user's; ours come from torch's and the seed
    np.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed)
    # not every operation of the network has a deterministic form on CUDA; torch then warns by name
    torch.use_deterministic_algorithms(config.trainer.deterministic, warn_only=True)
    precision = Precision(config.trainer.precision, choose_device(config.trainer.device))
    if precision.device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats(precision.device)  # an earlier job's peak is not this one's
    return precision


def find_parent(config: TrainConfig, run_dir: Path) -> SavedRun | None:
    """The checkpoint that the run resumes from; a new run is refused in a folder that holds one."""

    def find() -> str | None:
        parent = find_resume(config.resume, run_dir, Path(config.run_dir), dataclasses.asdict(config))
        if parent is None:
            refuse_used_folder(run_dir)
            MetricsFiles(run_dir).truncate_after(0)  # of a job that ended before its first save and is tried again
        elif (folder := files.run_folder_of(parent)) is not None:
            clear_leftovers(folder)
        return str(parent) if parent else None

    found = distributed.from_main(find)
    return SavedRun.to_resume(Path(found)) if found else None


def build_start(
    config: TrainConfig, dataset: Dataset, device: torch.device, parent: SavedRun | None
) -> tuple[RFDETR, str]:
    """The network on its device, and what it starts from, as summary.json tells it; `parent` is not loaded yet."""
    with distributed.one_after_the_first():  # of a download
        pretrained = config.model.pretrained and parent is None
        model = build_model(config.model, len(dataset.label_map.names), pretrained)
        model = prepare_to_train(model, config.trainer, device)
        return model, str(parent.path) if parent else load_starting_weights(model, config, dataset)


def check_sources(config: TrainConfig) -> None:
    """Refuse a file of weights, or to resume from, that is not there, before the data is read."""
    for key, value, words in (
        ("weights", config.weights, ("auto", "coco", "none")),
        ("resume", config.resume, ("auto",)),
    ):
        if value is not None and value not in words and "://" not in value and not Path(value).expanduser().exists():
            raise UserError(f"{key}={value}: no such file or run folder; give {', '.join(words)} or a path")


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
    parent: SavedRun | None,
    model: RFDETR,
    criterion: Criterion,
    precision: Precision,
    num_pictures: int,
) -> TrainConfig:
    """The config with a number in the place of `batch_size=auto`: that of the run it resumes, else what fits."""
    if config.trainer.batch_size != "auto":
        return config
    if parent is not None and parent.config:
        with files.reading(parent.path):
            size = parent.config["trainer"]["batch_size"]
            ok = type(size) is int and size > 0
            require(ok, "trainer.batch_size", repr(size), "damaged, no run has saved this; take an earlier checkpoint")
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


def build_run(
    config: TrainConfig, run_dir: Path, dataset: Dataset, model: RFDETR, precision: Precision, loader: TrainLoader
) -> Run:
    """All that has a state, at step 0."""
    length = RunLength(loader.steps_per_epoch, config.trainer.epochs, config.trainer.max_steps)
    optimization = build_optimization(config, model, length, precision.device)
    average = build_average(config.ema, model)
    return Run(config, run_dir, dataset, model, optimization, average, precision, length, loader.images_per_epoch)


def go_on(run: Run, parent: SavedRun, saver: Saver) -> None:
    """Bring `run` to where `parent` was saved: its state, its checkpoints and the rows of its metrics."""
    run.restore(parent)
    if parent.is_of_reference:  # a file which would not do as one of ours
        saver.save(run.loop.step)
    else:
        saver.adopt(parent.path, run.loop.best)
    if distributed.is_main():
        folder = files.run_folder_of(parent.path)
        if folder is not None and folder.resolve() != run.folder.resolve() and (folder / METRICS_NAME).is_file():
            shutil.copyfile(folder / METRICS_NAME, run.folder / METRICS_NAME)
        MetricsFiles(run.folder).truncate_after(run.loop.step, run.loop.evaluation_pending)


def build_trainer(
    run: Run, loader: TrainLoader, criterion: Criterion, saver: Saver, is_hopeless: IsHopeless, stack: ExitStack
) -> Trainer:
    """Connect the run to what trains, scores, shows and saves it; `stack` ends what must be ended."""
    config, valid = run.config, run.dataset.splits["valid"]
    trainer, logger, evaluation = config.trainer, config.logger, config.evaluation
    assert isinstance(trainer.batch_size, int)
    every = trainer.log_every_steps
    progress = stack.enter_context(make_progress(logger.progress, run.length.total_steps, run.loop.step, every))
    step = TrainStep(run.model, criterion, run.optimization.optimizer, run.precision, trainer.clip_norm, trainer.on_oom)
    validator = Validator(
        valid,
        config.model,
        Placement.of(config.data.resize, config.model),
        run.precision,
        progress,
        batch_size=evaluation.batch_size or trainer.batch_size,
        num_workers=config.data.num_workers,
        max_dets=evaluation.max_dets,
        backend=evaluation.backend,
    )
    plots = RunPlots(run.folder, valid, enabled=logger.plots, num_samples=logger.sample_images)
    trackers = distributed.only_on_main(Trackers, logger, run.folder, dataclasses.asdict(config))
    stack.enter_context(trackers)
    device = run.precision.device
    recorder = distributed.only_on_main(
        Recorder, run.folder, run.length, every, logger.group_norms, device, progress, plots, trackers
    )
    watch = StepWatch(run, criterion.class_weights)
    return Trainer(run, step, watch, loader, validator, recorder, saver, StopSignals(), is_hopeless)
