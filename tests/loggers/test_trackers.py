"""Trackers, read back by their own libraries."""

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rfdetr_train.config import LoggerConfig
from rfdetr_train.errors import Interrupted, UserError
from rfdetr_train.loggers import trackers as trackers_module
from rfdetr_train.loggers.sheet import Picture, draw_sheet
from rfdetr_train.loggers.trackers import Trackers, check_installed

ROWS = [
    {"split": "train", "step": 1, "epoch": 0, "loss": 3.5, "lr": {"decoder": 1e-4, "encoder.block0": 1e-6}},
    {"split": "train", "step": 2, "epoch": 0, "loss": None, "lr": {"decoder": 2e-4}, "nonfinite": {"loss": "nan"}},
    {"split": "valid", "step": 2, "epoch": 0, "weights": "ema", "AP": 0.25, "APs": None},
]


def write(name: str, run_dir: Path, picture: bool = True) -> None:
    """A run of three rows and a picture, under `run_dir`."""
    run_dir.mkdir(parents=True)
    config = LoggerConfig(trackers=[name], project="shapes")
    with Trackers(config, run_dir, {"seed": 7, "run_dir": str(run_dir.parent), "model": {"name": "nano"}}) as trackers:
        for row in ROWS:
            trackers.log(row)
        if picture:
            image = [[[0] * 8] * 8] * 3
            draw_sheet(run_dir / "samples.png", [Picture(image, [], [], [], [], [])], ["a"])
            trackers.log_picture(run_dir / "samples.png", 2)


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a W&B file: LevelDB's log format, blocks of 32 KiB, after a header of 7 bytes."""
    position, parts = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def history(file: Path) -> list[dict]:
    """The rows that were logged to a W&B file."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item})
    return rows


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    write("tensorboard", tmp_path / "run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 3.5)]
    assert [(e.step, e.value) for e in events.Scalars("train/lr/decoder")] == [
        (1, pytest.approx(1e-4)), (2, pytest.approx(2e-4)),
    ]  # fmt: skip
    assert [e.value for e in events.Scalars("valid/ema/AP")] == [0.25]
    assert len(events.Images("samples")) == 1
    assert "valid/ema/APs" not in events.Tags()["scalars"]


def test_weights_and_biases_offline(tmp_path):
    pytest.importorskip("wandb")
    write("wandb", tmp_path / "run")
    (file,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 20
    while len(logged := history(file)) < 2 and time.monotonic() < deadline:  # its writer is a process of its own
        time.sleep(0.2)
    assert logged[0]["train/loss"] == 3.5
    assert logged[1]["valid/ema/AP"] == 0.25
    assert logged[1]["train/lr/decoder"] == 2e-4
    assert logged[1]["samples/_type"] == "image-file"


@pytest.mark.filterwarnings("ignore::Warning")  # of sqlalchemy, in mlflow
def test_mlflow(tmp_path):
    pytest.importorskip("mlflow")
    write("mlflow", tmp_path / "runs" / "run")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("shapes")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["model/name"] == "nano"
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "train/lr/decoder")] == [
        (1, 1e-4), (2, 2e-4),
    ]  # fmt: skip
    assert [artifact.path for artifact in client.list_artifacts(run.info.run_id)] == ["samples.png"]


def test_the_store_and_the_mode_are_those_of_the_config(tmp_path, monkeypatch):
    """What the libraries are asked for; that is all that the two keys do."""
    mlflow, wandb = pytest.importorskip("mlflow"), pytest.importorskip("wandb")
    asked = []

    def refuse(**keys):
        asked.append(keys)
        raise ValueError("enough")

    monkeypatch.setattr(mlflow, "MlflowClient", refuse)
    monkeypatch.setattr(wandb, "init", refuse)
    config = LoggerConfig(mlflow_uri="http://host:5000", wandb_mode="online")
    for name in ("mlflow", "wandb"):
        with pytest.raises(ValueError, match="enough"):
            trackers_module.TRACKERS[name](config, tmp_path, {"run_dir": str(tmp_path)})
    assert (asked[0]["tracking_uri"], asked[1]["mode"]) == ("http://host:5000", "online")


def test_a_missing_library_is_refused(monkeypatch):
    monkeypatch.setattr(trackers_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"logger.trackers=wandb: is not installed; pip install 'rfdetr_train\[wandb\]'"
    ):
        check_installed(["wandb"])
    with pytest.raises(UserError, match=r"logger\.trackers=tensorbord"):
        LoggerConfig(trackers=["tensorbord"])


class Failing:
    """Fails at the second row."""

    closed_as: list[str] = []  # noqa: RUF012

    def __init__(self, *args):
        self.rows = 0

    def log(self, metrics, step):
        self.rows += 1
        if self.rows == 2:
            raise OSError("No space left on device")

    def log_picture(self, path, step):
        raise AssertionError("it has been given up")

    def close(self, status):
        Failing.closed_as.append(status)


def test_a_failing_tracker_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(trackers_module.TRACKERS, "wandb", Failing)
    with caplog.at_level(logging.ERROR):
        write("wandb", tmp_path / "run")
    assert "wandb HAS FAILED" in caplog.text
    assert Failing.closed_as == []


def test_the_status_tells_how_the_run_ended(tmp_path, monkeypatch):
    monkeypatch.setitem(trackers_module.TRACKERS, "wandb", Failing)
    config = LoggerConfig(trackers=["wandb"])
    for error in (Interrupted(2), KeyboardInterrupt(), ValueError()):
        with pytest.raises(type(error)), Trackers(config, tmp_path, {}):
            raise error
    assert Failing.closed_as[-3:] == ["interrupted", "interrupted", "failed"]
