"""A run: everything that has a state, how that becomes a checkpoint, and how a run goes on from one to the bit."""

import logging
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rfdetr_train import distributed
from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.environment import random_state, restore_random_state, versions
from rfdetr_train.checkpoint.fit import FitReport, load_fitting, match_classes
from rfdetr_train.checkpoint.regroup import restore_optimization
from rfdetr_train.checkpoint.saved_optimizer import state_bytes
from rfdetr_train.config import TrainConfig
from rfdetr_train.data.sample import Dataset
from rfdetr_train.engine.averaging import NoAverage
from rfdetr_train.engine.course import LoopState, RunLength
from rfdetr_train.engine.optimization import Optimization
from rfdetr_train.engine.precision import Precision
from rfdetr_train.engine.saved_run import SavedRun
from rfdetr_train.errors import UserError, require
from rfdetr_train.labels import LabelMap
from rfdetr_train.loggers.console import print_table
from rfdetr_train.models.rfdetr import RFDETR

log = logging.getLogger(__name__)


@dataclass
class Run:
    """The parts of a run that have a state, and the folder that it leaves."""

    config: TrainConfig
    folder: Path
    dataset: Dataset
    model: RFDETR
    optimization: Optimization
    average: NoAverage
    precision: Precision
    length: RunLength
    images_per_epoch: int
    loop: LoopState = field(default_factory=LoopState)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.versions = {**versions(), "data": self.dataset.fingerprint()}

    @property
    def seconds(self) -> float:
        """Time spent in this run and in those that it resumed from."""
        return self.loop.seconds_before + time.monotonic() - self._started

    def checkpoint_bytes(self) -> int:
        """About what a checkpoint takes: weights, their average, and what the optimizer keeps of what trains."""
        weights = sum(tensor.nbytes for tensor in self.model.state_dict().values())
        kept = state_bytes(self.optimization.optimizer)
        return weights * (1 + (self.config.ema.name != "none")) + kept

    def to_checkpoint(self) -> dict[str, Any]:
        """Everything that evaluating, predicting, exporting or resuming needs; plain values and tensors."""
        return {
            "model": self.model.state_dict(),
            "ema": self.average.state_dict(),
            "optimizer": self.optimization.optimizer.state_dict(),
            "scheduler": self.optimization.scheduler.state_dict(),
            "scaler": self.precision.scaler.state_dict(),
            "loop": {**self.loop.to_plain(), "seconds_before": self.seconds},
            "random": random_state(),
            "model_config": asdict(self.model.config),
            "label_map": self.dataset.label_map.to_plain(),
            "data_root": str(self.dataset.root),
            "counts": self._counts(),
            "config": asdict(self.config),
            "metrics": self.loop.last,
            "versions": self.versions,
        }

    def restore(self, saved: SavedRun) -> None:
        """Go on where `saved` was written; what does not fit is said and starts afresh.

        Raises: UserError for content that is damaged, or does not belong together.
        """
        with files.reading(saved.path):
            self._restore(saved)

    def _restore(self, saved: SavedRun) -> None:
        self._check_adapters(saved)
        if changes := saved.changes(self.versions):
            log.warning("%s: THE RUN GOES ON, BUT NOT TO THE SAME BITS: it had %s", saved.path, ", ".join(changes))
        self.loop.update(saved["loop"])
        self._reconsider_early_stop()
        self._reconsider_best(saved)
        # Parts that had joined the optimizer by then join it now, one epoch after the other as they did, so that the
        # saved groups and their state find their places.
        epochs_begun = self.loop.epoch + (1 if self.loop.position else 0)
        for epoch in range(epochs_begun):
            self.optimization.enter_epoch(epoch)
        self._settle_position(saved["counts"])
        report = self._load_weights(saved)
        restore_optimization(
            self.optimization.optimizer,
            self.optimization.scheduler,
            saved["optimizer"],
            saved["scheduler"],
            sources=saved.content.get("sources"),
            fresh={*report.fresh, *report.adapted},
        )
        rates = self.optimization.scheduler.last_lr
        require(all(map(math.isfinite, rates.values())), "the saved rates", rates, "take an earlier checkpoint")
        if saved["scaler"]:  # empty unless the run was in fp16
            self.precision.scaler.load_state_dict(saved["scaler"])
        if saved["random"]:
            restore_random_state(saved["random"])
        if saved.is_of_reference:
            self._say_what_differs(saved)
        log.info("%s: going on after step %d", saved.path, self.loop.step)

    def _check_adapters(self, saved: SavedRun) -> None:
        """Adapters of a run are part of what it has learnt: other ones, or none, would not go on but begin."""
        before, now = (saved["model_config"] or {}).get("lora_rank", 0), self.config.model.lora_rank
        if before and before != now:
            raise UserError(
                f"resume: {saved.path} has adapters, model.lora_rank={before}, here it is {now}; resume with "
                f"model.lora_rank={before}, or begin a new run from its merged weights: weights={saved.path}"
            )

    def _load_weights(self, saved: SavedRun) -> FitReport:
        source, wanted = str(saved.path), self.dataset.label_map.names
        rows, partial = match_classes(saved.logit_names(wanted), wanted, source), self.config.weights_allow_partial

        def load(model: nn.Module, state: dict[str, Tensor]) -> FitReport:
            return load_fitting(model, state, source, class_rows=rows, allow_partial=partial)

        report = load(self.model, saved["model"])
        show_fit(report, source)
        self.average.load_state_dict(saved["ema"], load)
        return report

    def _say_what_differs(self, saved: SavedRun) -> None:
        """A run of the reference goes on under this config, and without what only our checkpoints hold."""
        source, recipe, loop, counts = saved.path, saved["recipe"], self.loop, self._counts()
        log.warning("%s: the random state, the best AP and the place inside an epoch start afresh", source)
        config = asdict(self.config)
        here = {key: config[section].get(name) for key in recipe for section, name in [key.split(".")]}
        other = [f"{key}={value} (here {here[key]})" for key, value in recipe.items() if (here[key] or 0) != value]
        if other:
            log.warning("%s: was trained with %s; this config holds", source, ", ".join(other))
        steps_per_epoch = -(-counts["train"] // counts["images_per_step"])
        if loop.step != loop.epoch * steps_per_epoch:
            log.warning("%s: has made %d steps in %d epochs, an epoch has %d here; the schedule goes on from the step",
                        source, loop.step, loop.epoch, steps_per_epoch)  # fmt: skip
        before = max(float(group["lr"]) for group in saved["optimizer"]["param_groups"])
        now = max(self.optimization.scheduler.last_lr.values())
        if abs(now - before) > 0.01 * before:
            log.warning("%s: its highest rate was %.3g, this schedule goes on at %.3g", source, before, now)

    def _reconsider_early_stop(self) -> None:
        """A run that had stopped early goes on if this config is more patient."""
        patience = self.config.trainer.early_stopping.patience
        self.loop.stopped_early &= patience is not None and self.loop.evaluations_without_gain >= patience

    def _counts(self) -> dict[str, int]:
        """What a position in an epoch, and a best AP, are counted in."""
        trainer, splits = self.config.trainer, self.dataset.splits
        assert isinstance(trainer.batch_size, int)
        images_per_step = trainer.batch_size * distributed.size() * trainer.accumulation_steps
        return {"images_per_step": images_per_step, "train": self.images_per_epoch, "valid": len(splits["valid"])}

    def _settle_position(self, before: dict[str, int]) -> None:
        """Another batch size or accumulation: the epoch, whose order is the same, goes on after the images seen."""
        now, position = self._counts(), self.loop.position
        if not position or all(before[key] == now[key] for key in ("images_per_step", "train")):
            return
        seen = min(position * before["images_per_step"], before["train"])
        if seen == before["train"]:
            self.loop.position = -(-now["train"] // now["images_per_step"])  # the epoch is over
        else:
            self.loop.position = seen // now["images_per_step"] if before["train"] == now["train"] else 0
        log.warning(
            "the run had seen %d of %d images of its epoch in steps of %d; now that is step %d of %d images",
            seen, before["train"], before["images_per_step"], self.loop.position, now["images_per_step"],
        )  # fmt: skip

    def _reconsider_best(self, saved: SavedRun) -> None:
        """An AP on another data set is nothing to be measured against."""
        if not self.loop.best:
            return
        same_classes = LabelMap.from_plain(saved["label_map"]) == self.dataset.label_map
        if not (same_classes and saved["counts"]["valid"] == len(self.dataset.splits["valid"])):
            log.warning("%s: was scored on another data set, so its best AP does not count here", saved.path)
            self.loop.best = self.loop.last = None
            self.loop.evaluations_without_gain = 0


def show_fit(report: FitReport, source: str) -> None:
    """Say how much of a file was taken as it is, and in one table what was not."""
    log.info("%s: %d tensors taken as they are", source, len(report.taken))
    if rows := report.rows():
        print_table(f"{source}: what did not fit", ["part", "tensors", "what happened"], rows)
