"""`python -m rfdetr_train`: build the parts of a run, connect them, run them, sum up."""

import logging
import shutil
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import torch

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.find_run import find_resume
from rfdetr_train.checkpoint.fit import load_fitting
from rfdetr_train.checkpoint.starting_weights import find_starting_weights
from rfdetr_train.commands.summary import RunSummary
from rfdetr_train.config import TrainConfig
from rfdetr_train.criterion import Criterion
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.image_check import check_images
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.data.sample import Dataset
from rfdetr_train.data.transforms import training_scales
from rfdetr_train.engine.averaging import build_average
from rfdetr_train.engine.loop_state import LoopState
from rfdetr_train.engine.optimization import RunLength, build_optimization
from rfdetr_train.engine.pictures import Pictures
from rfdetr_train.engine.precision import Precision, choose_device
from rfdetr_train.engine.recorder import Recorder
from rfdetr_train.engine.resume import RunStates, query_layout
from rfdetr_train.engine.saver import Saver
from rfdetr_train.engine.signals import StopSignals
from rfdetr_train.engine.step import TrainStep
from rfdetr_train.engine.trainer import Parts, Trainer
from rfdetr_train.engine.validator import Validator
from rfdetr_train.loggers.files import METRICS_NAME, MetricsFiles
from rfdetr_train.loggers.progress import make_progress
from rfdetr_train.loggers.track import Counter
from rfdetr_train.matcher import match
from rfdetr_train.models.rfdetr import RFDETR, build_model

log = logging.getLogger(__name__)


def train(config: TrainConfig, run_dir: Path) -> float | None:
    """Train as `config` says, in `run_dir`; return the best AP of the valid split, which a sweep maximises."""
    torch.manual_seed(config.seed)
    torch.use_deterministic_algorithms(config.trainer.deterministic)
    precision = Precision(config.trainer.precision, choose_device(config.trainer.device))
    dataset = load_data(config)
    parent = find_resume(config.resume, run_dir, Path(config.run_dir), asdict(config))
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        trainer, weights = build_trainer(config, dataset, precision, run_dir, parent, signals, stack)
        summary = RunSummary(run_dir, config, dataset, trainer, weights, parent)
        with summary.written_at_the_end():
            trainer.fit()
    best = trainer.state.best
    return best["AP"] if best else None


def load_data(config: TrainConfig) -> Dataset:
    """Read the data set and look at every picture once, before anything expensive is built."""
    dataset = read_dataset(config.data)
    with Counter("checking pictures") as counter:
        dataset = check_images(dataset, config.data.on_error, counter.show)
    label_map = dataset.label_map
    log.info("%s: %d classes (%s)", dataset.root, len(label_map.names), ", ".join(label_map.names[:20]))
    for name, split in dataset.splits.items():
        log.info("%s: %d pictures, %d boxes, dropped: %s", name, len(split), len(split.labels), split.dropped or "none")
    return dataset


def build_trainer(
    config: TrainConfig,
    dataset: Dataset,
    precision: Precision,
    run_dir: Path,
    parent: Path | None,
    signals: StopSignals,
    stack: ExitStack,
) -> tuple[Trainer, str]:
    """The trainer, standing where the run begins or where `parent` was saved, and where its weights came from."""
    saved = files.load(parent) if parent else None
    model = build_model(config.model, len(dataset.label_map.names))
    weights = str(parent) if parent else load_starting_weights(model, config)
    model.to(precision.device)

    loader = stack.enter_context(build_loader(config, dataset))
    length = RunLength.of(loader.steps_per_epoch, config.trainer.epochs, config.trainer.max_steps)
    optimization = build_optimization(config, model, length, precision.device)
    average = build_average(config.ema, model)
    state = LoopState()
    states = RunStates(model, average, optimization, precision, state, dataset, asdict(config))
    if parent is not None and saved is not None:
        states.restore(saved, str(parent))
        continue_metrics(parent, run_dir, state)

    progress = stack.enter_context(
        make_progress(config.logger.progress, length.total_steps, state.step, config.trainer.log_every_steps)
    )
    validator = Validator(
        dataset.splits["valid"],
        config.model.resolution,
        precision,
        progress,
        batch_size=config.evaluation.batch_size or batch_size(config),
        num_workers=config.data.num_workers,
        max_dets=config.evaluation.max_dets,
        num_detections=config.model.num_queries,
    )
    pictures = Pictures(run_dir, dataset.splits["valid"], config.logger.plots, config.logger.sample_images)
    parts = Parts(
        model=model,
        step=TrainStep(
            model,
            Criterion(config.model.num_queries, match),
            optimization.optimizer,
            precision,
            config.trainer.clip_norm,
            config.model.group_detr,
        ),
        scheduler=optimization.scheduler,
        average=average,
        freezer=optimization.freezer,
        loader=loader,
        validator=validator,
        recorder=Recorder(run_dir, progress, config.trainer.log_every_steps, config.logger.group_norms, pictures.draw),
    )
    saver = Saver(run_dir / "checkpoints", config.checkpoint, states.to_checkpoint)
    return Trainer(parts, state, saver, signals, config.trainer, config.evaluation), weights


def continue_metrics(parent: Path, run_dir: Path, state: LoopState) -> None:
    """Begin metrics.jsonl with the rows that the resumed run had written when it was saved."""
    before, own = parent.parent.parent / METRICS_NAME, run_dir / METRICS_NAME
    if before.is_file() and before.resolve() != own.resolve():
        shutil.copyfile(before, own)
    MetricsFiles(run_dir).truncate_after(state.step, state.evaluation_pending)


def load_starting_weights(model: RFDETR, config: TrainConfig) -> str:
    """Load what `weights` means into `model`; the source, as summary.json tells it."""
    with Counter("downloading weights") as counter:
        start = find_starting_weights(config.weights, config.model.name, Path(config.weights_dir), counter.show)
    if start is None:
        return "random"
    load_fitting(model, start.state, start.layout, query_layout(asdict(config.model)), start.source)
    return start.source


def build_loader(config: TrainConfig, dataset: Dataset) -> TrainLoader:
    """The train split in batches, at the scales that the augmentation asks for."""
    model = config.model
    scales = [model.resolution]
    if config.augmentation.multi_scale:
        scales = training_scales(model.resolution, model.patch_size, model.num_windows, model.num_queries)
    return TrainLoader(
        dataset.splits["train"],
        config.augmentation,
        scales,
        batch_size=batch_size(config),
        accumulation_steps=config.trainer.accumulation_steps,
        seed=config.seed,
        num_workers=config.data.num_workers,
    )


def batch_size(config: TrainConfig) -> int:
    """Pictures of a micro-batch."""
    assert isinstance(config.trainer.batch_size, int)
    return config.trainer.batch_size
