"""summary.json, and the last words of a run."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfdetr_train.checkpoint.versions import versions
from rfdetr_train.config import TrainConfig
from rfdetr_train.data.sample import Dataset
from rfdetr_train.engine.trainer import Trainer
from rfdetr_train.errors import Interrupted
from rfdetr_train.loggers.files import SUMMARY_NAME, write_json
from rfdetr_train.loggers.tables import print_table

log = logging.getLogger(__name__)

SHOWN_METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR100")


@dataclass
class RunSummary:
    """What a run was and how it ended."""

    run_dir: Path
    config: TrainConfig
    dataset: Dataset
    trainer: Trainer
    weights: str
    """Where the weights came from, as used."""
    parent: Path | None
    """The checkpoint that the run resumed from."""

    @contextmanager
    def written_at_the_end(self) -> Iterator[None]:
        """Write summary.json when the block is left, with the status of how it was left."""
        status = "failed"
        try:
            yield
            status = "completed"
        except (Interrupted, KeyboardInterrupt):
            status = "interrupted"
            raise
        finally:
            write_json(self.run_dir / SUMMARY_NAME, self.to_plain(status))
            self.show(status)

    def to_plain(self, status: str) -> dict[str, Any]:
        """The content of summary.json."""
        trainer, state = self.trainer, self.trainer.state
        return {
            "status": status,
            "name": self.config.name,
            "notes": self.config.notes,
            "epochs": state.epoch,
            "steps": state.step,
            "duration_s": state.seconds,
            "device": str(trainer.parts.step.precision.device),
            "precision": trainer.parts.step.precision.name,
            "seed": self.config.seed,
            "weights": self.weights,
            "data": self._data(),
            "model": self._model(),
            "best": state.best,
            "last": state.last,
            "checkpoints": {
                kind: str(path) if path.is_file() else None
                for kind, path in (("last", trainer.saver.last), ("best", trainer.saver.best))
            },
            "versions": versions(),
            "parent": str(self.parent) if self.parent else None,
        }

    def _data(self) -> dict[str, Any]:
        counts = {name: len(split) for name, split in self.dataset.splits.items()}
        return {
            "root": str(self.dataset.root),
            "format": self.config.data.name,
            **{name: counts.get(name) for name in ("train", "valid", "test")},
            "classes": list(self.dataset.label_map.names),
            "dropped": self.dataset.dropped,
        }

    def _model(self) -> dict[str, Any]:
        model, optimizer = self.trainer.parts.model, self.trainer.parts.step.optimizer
        return {
            "name": self.config.model.name,
            "parameters": sum(p.numel() for p in model.parameters()),
            "trainable_tensors": sum(len(group["params"]) for group in optimizer.param_groups),
            "optimizer_groups": len(optimizer.param_groups),
            "resolution": self.config.model.resolution,
        }

    def show(self, status: str) -> None:
        """The result as a table; the last line names the run folder."""
        state = self.trainer.state
        scored = [(kind, metrics) for kind, metrics in (("best", state.best), ("last", state.last)) if metrics]
        if scored:
            columns = ["", "weights", "epoch", "step", *SHOWN_METRICS]
            rows = [
                [kind, m["weights"], m["epoch"] + 1, m["step"], *(m[key] for key in SHOWN_METRICS)]
                for kind, m in scored
            ]
            print_table(f"{self.config.model.name} on {self.config.data.name}: {status}", columns, rows)
        log.info("%s after %d steps, %.0f s", status, state.step, state.seconds)
        log.info("run folder: %s", self.run_dir)
