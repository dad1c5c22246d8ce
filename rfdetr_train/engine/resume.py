"""What a checkpoint of a run holds, and how a run goes on from one to the bit."""

import logging
from dataclasses import asdict, dataclass
from typing import Any

from rfdetr_train.checkpoint.files import random_state, restore_random_state
from rfdetr_train.checkpoint.fit import QueryLayout, load_fitting
from rfdetr_train.checkpoint.regroup import restore_optimization
from rfdetr_train.checkpoint.versions import versions
from rfdetr_train.data.sample import Dataset
from rfdetr_train.engine.averaging import NoAverage
from rfdetr_train.engine.loop_state import LoopState
from rfdetr_train.engine.optimization import Optimization
from rfdetr_train.engine.precision import Precision
from rfdetr_train.labels import LabelMap
from rfdetr_train.models.rfdetr import RFDETR

log = logging.getLogger(__name__)


@dataclass
class RunStates:
    """All parts of a run that have a state."""

    model: RFDETR
    average: NoAverage
    optimization: Optimization
    precision: Precision
    loop: LoopState
    dataset: Dataset
    config: dict[str, Any]
    """The whole config, as plain values."""

    def to_checkpoint(self) -> dict[str, Any]:
        """Everything that evaluating, predicting, exporting or resuming needs; plain values and tensors."""
        return {
            "model": self.model.state_dict(),
            "ema": self.average.state_dict(),
            "optimizer": self.optimization.optimizer.state_dict(),
            "scheduler": self.optimization.scheduler.state_dict(),
            "scaler": self.precision.scaler.state_dict(),
            "loop": self.loop.to_plain(),
            "random": random_state(),
            "model_config": asdict(self.model.config),
            "label_map": self.dataset.label_map.to_plain(),
            "data_root": str(self.dataset.root),
            "config": self.config,
            "metrics": self.loop.last,
            "versions": versions(),
        }

    def restore(self, saved: dict[str, Any], source: str) -> None:
        """Go on where the checkpoint `saved` was written; what does not fit this run is said and starts afresh."""
        if LabelMap.from_plain(saved["label_map"]) != self.dataset.label_map:
            log.warning("%s: has other classes (%s)", source, LabelMap.from_plain(saved["label_map"]).names)
        self.loop.update(saved["loop"])
        # parts that had joined the optimizer by then join it now, so that their state finds its place
        epochs_begun = self.loop.epoch + (1 if self.loop.position else 0)
        self.optimization.freezer.enter_epoch(epochs_begun - 1)
        layout = query_layout(saved["model_config"])
        load_fitting(self.model, saved["model"], layout, query_layout(asdict(self.model.config)), source)
        restore_optimization(
            self.optimization.optimizer, self.optimization.scheduler, saved["optimizer"], saved["scheduler"]
        )
        self.average.load_state_dict(saved["ema"])
        self.precision.scaler.load_state_dict(saved["scaler"])
        restore_random_state(saved["random"])
        log.info("%s: going on after step %d", source, self.loop.step)


def query_layout(model_config: dict[str, Any]) -> QueryLayout:
    """Queries and groups of a model from its config."""
    return QueryLayout(model_config["num_queries"], model_config["group_detr"])
