"""Experiment trackers beside the run's own files: TensorBoard, Weights & Biases, MLflow.

They are given the rows of metrics.jsonl as those are written, and on a resume first the rows from before, so that each
run is whole in them. One that fails while the run goes on is given up, loudly; the run's files are the record.
"""

import importlib.util
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rfdetr_train.config import LoggerConfig
from rfdetr_train.errors import Interrupted, UserError
from rfdetr_train.loggers.files import flatten

log = logging.getLogger(__name__)

NOT_METRICS = ("split", "step", "weights", "nonfinite")


class TensorBoard:
    """Event files in `RUN/tensorboard`.

    Each tracker is told of numbers by name, such as `train/loss` or `valid/ema/AP`, of PNG files, and at last of the
    status that the run ended with: completed, interrupted or failed.
    """

    def __init__(self, config: LoggerConfig, run_dir: Path, run_config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run_dir / "tensorboard"))
        self._writer.add_text("config", f"```\n{json.dumps(run_config, indent=2)}\n```")

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def log_picture(self, path: Path, step: int) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(path) as image:
            self._writer.add_image(path.stem, np.asarray(image.convert("RGB")), step, dataformats="HWC")

    def close(self, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()


class WeightsAndBiases:
    """A run of W&B, in `RUN/wandb`; offline ones are sent later with `wandb sync`."""

    def __init__(self, config: LoggerConfig, run_dir: Path, run_config: Mapping[str, Any]) -> None:
        import wandb

        self._picture = wandb.Image
        self._run = wandb.init(
            project=config.project,
            name=run_dir.name,
            dir=str(run_dir),
            config=dict(run_config),
            mode=config.wandb_mode,  # type: ignore[arg-type]
            reinit="finish_previous",
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step)

    def log_picture(self, path: Path, step: int) -> None:
        self._run.log({path.stem: self._picture(str(path))}, step=step)

    def close(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "completed" else 1)


class MLflow:
    """A run in an MLflow store: `logger.mlflow_uri`, by default an SQLite file beside the run folders."""

    def __init__(self, config: LoggerConfig, run_dir: Path, run_config: Mapping[str, Any]) -> None:
        from filelock import FileLock
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        runs_dir = Path(run_config["run_dir"])
        runs_dir.mkdir(parents=True, exist_ok=True)
        uri = config.mlflow_uri or f"sqlite:///{runs_dir / 'mlflow.db'}"
        self._metric = Metric
        with FileLock(runs_dir / ".mlflow.lock"):  # two processes that create one store at once break it
            self._client = MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(config.project)
            artifacts = (runs_dir / "mlflow").as_uri()
            experiment = known.experiment_id if known else self._client.create_experiment(config.project, artifacts)
        self._run_id = self._client.create_run(experiment, run_name=run_dir.name).info.run_id
        flat = {key: str(value)[:500] for key, value in flatten(run_config).items()}
        self._client.log_batch(self._run_id, params=[Param(key, value) for key, value in flat.items()])

    def log(self, metrics: dict[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        rows = [self._metric(_mlflow_name(name), value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=rows)

    def log_picture(self, path: Path, step: int) -> None:
        self._client.log_artifact(self._run_id, str(path))

    def close(self, status: str) -> None:
        states = {"completed": "FINISHED", "interrupted": "KILLED"}
        self._client.set_terminated(self._run_id, states.get(status, "FAILED"))


Tracker = TensorBoard | WeightsAndBiases | MLflow
TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}
"""By the names of the modules that they need."""


def check_installed(names: Iterable[str]) -> None:
    """Refuse a tracker whose library is missing, before anything is done."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"logger.trackers={name}: is not installed; pip install 'rfdetr_train[{name}]'")


class Trackers(AbstractContextManager["Trackers"]):
    """All trackers of a run; none of them can end it."""

    def __init__(self, config: LoggerConfig, run_dir: Path, run_config: Mapping[str, Any]) -> None:
        self._open: dict[str, Tracker] = {}
        for name in config.trackers:
            self._open[name] = TRACKERS[name](config, run_dir, run_config)
            log.info("logger: %s", name)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        interrupted = kind is not None and issubclass(kind, Interrupted | KeyboardInterrupt)
        status = "completed" if kind is None else "interrupted" if interrupted else "failed"
        self._each(lambda tracker: tracker.close(status))

    def log(self, row: Mapping[str, Any]) -> None:
        """One row of metrics.jsonl."""
        prefix = "/".join(str(row[key]) for key in ("split", "weights") if key in row)
        numbers = {
            f"{prefix}/{key}": float(value)
            for key, value in flatten({k: v for k, v in row.items() if k not in NOT_METRICS}).items()
            if isinstance(value, int | float)
        }
        self._each(lambda tracker: tracker.log(numbers, row["step"]))

    def log_picture(self, path: Path, step: int) -> None:
        """A PNG that the run has just drawn."""
        self._each(lambda tracker: tracker.log_picture(path, step))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            try:
                act(tracker)
            except Exception:
                log.exception("logger: %s HAS FAILED and gets nothing more; metrics.jsonl goes on", name)
                del self._open[name]


def _mlflow_name(name: str) -> str:
    """MLflow takes letters, digits, and `_-./ ` only."""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in name)
