"""summary.json, and the last words of a run."""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rfdetr_train import distributed
from rfdetr_train.data.sample import Split
from rfdetr_train.engine.memory import memory_gib
from rfdetr_train.engine.run import Run
from rfdetr_train.engine.run_plots import RunPlots
from rfdetr_train.engine.saver import Saver
from rfdetr_train.errors import Interrupted, UserError
from rfdetr_train.loggers.console import print_table
from rfdetr_train.loggers.files import SHOWN_METRICS, SUMMARY_NAME, write_json

log = logging.getLogger(__name__)

DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.ENOENT, errno.EIO)


@dataclass
class RunSummary:
    """What a run was and how it ended."""

    run: Run
    saver: Saver
    weights: str
    """Where the weights came from, as used."""
    parent: Path | None
    """The checkpoint that the run resumed from."""
    plots: RunPlots
    """What writes the report."""

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
        except OSError as error:
            if error.errno not in DISK_FAULTS:
                raise
            logging.raiseExceptions = False  # train.log may lie on the same disk, and its complaint would bury ours
            raise UserError(
                f"{error.filename or self.run.folder}: {error.strerror}; the run ends here. {self._left()}"
            ) from error
        finally:
            self._write(status)
            self.show(status)

    def _left(self) -> str:
        """What there is to go on from after a fault of the disk."""
        if not self.saver.last.is_file():
            return "No checkpoint is left in its folder"
        return f"{self.saver.last} is as it was saved: free space or mend the folder, then go on with resume=auto"

    def _write(self, status: str) -> None:
        try:
            write_json(self.run.folder / SUMMARY_NAME, self.to_plain(status))
            self.plots.write_report()
        except OSError:
            if status != "failed":  # else the first failure is the one to be told of
                raise

    def to_plain(self, status: str) -> dict[str, Any]:
        """The content of summary.json."""
        run, loop, config = self.run, self.run.loop, self.run.config
        checkpoints = {"last": self.saver.last, "best": self.saver.best}
        return {
            "status": status,
            "name": config.name,
            "notes": config.notes,
            "epochs": loop.epoch,
            "steps": loop.step,
            "skipped_steps": loop.skipped_steps,
            "duration_s": run.seconds,
            "device": str(run.precision.device),
            "memory_gib": memory_gib(run.precision.device),
            "precision": run.precision.name,
            "seed": config.seed,
            "batch_size": config.trainer.batch_size,
            "processes": distributed.size(),
            "weights": self.weights,
            "data": self._data(),
            "model": self._model(),
            "best": loop.best,
            "last": loop.last,
            "checkpoints": {kind: str(path) if path.is_file() else None for kind, path in checkpoints.items()},
            "versions": run.versions,
            "parent": str(self.parent) if self.parent else None,
        }

    def _data(self) -> dict[str, Any]:
        dataset = self.run.dataset
        counts = {name: len(split) for name, split in dataset.splits.items()}
        return {
            "root": str(dataset.root),
            "format": dataset.format,
            **{name: counts.get(name) for name in ("train", "valid", "test")},
            "classes": list(dataset.label_map.names),
            "boxes": {name: _boxes_by_class(split) for name, split in dataset.splits.items()},
            "pictures_without_boxes": {n: int((np.diff(s.offsets) == 0).sum()) for n, s in dataset.splits.items()},
            "dropped": dataset.dropped,
        }

    def _model(self) -> dict[str, Any]:
        groups = self.run.optimization.optimizer.param_groups
        return {
            "name": self.run.config.model.name,
            "parameters": sum(p.numel() for p in self.run.model.parameters()),
            "trainable_tensors": sum(len(group["params"]) for group in groups),
            "optimizer_groups": len(groups),
            "resolution": self.run.config.model.resolution,
            "resolution_width": self.run.config.model.size_px[1],
        }

    def show(self, status: str) -> None:
        """The result as a table; the last line names the run folder."""
        loop, config = self.run.loop, self.run.config
        scored = [(kind, metrics) for kind, metrics in (("best", loop.best), ("last", loop.last)) if metrics]
        if scored:
            columns = ["", "weights", "epoch", "step", *SHOWN_METRICS]
            rows = [
                [kind, m["weights"], m["epoch"] + 1, m["step"], *(m[key] for key in SHOWN_METRICS)]
                for kind, m in scored
            ]
            print_table(f"{config.model.name} on {config.data.name}: {status}", columns, rows)
        log.info("%s after %d steps, %.0f s", status, loop.step, self.run.seconds)
        log.info("run folder: %s", self.run.folder)


def _boxes_by_class(split: Split) -> dict[str, int]:
    """Crowds included."""
    names = split.label_map.names
    return dict(zip(names, np.bincount(split.labels, minlength=len(names)).tolist(), strict=True))
