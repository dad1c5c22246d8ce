"""Worlds in which a key has something to do that it has not on a machine where all goes well.

Each is asked, after a run in it, what its own things were asked for.
"""

import re
import sys
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from watched import Asked, nothing

from rfdetr_train.checkpoint import download
from rfdetr_train.criterion import Criterion
from rfdetr_train.engine.validator import Validation, Validator


@pytest.fixture
def rising_ap(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Each evaluation of a run finds an AP that is 0.01 above the last; AR1 stays."""
    real, found = Validator.__call__, [0.0]

    def scored(self: Validator, *arguments: Any, **more: Any) -> Validation:
        validation = real(self, *arguments, **more)
        found[0] += 0.01
        validation.metrics.overall.update({"AP": found[0], "AR1": 0.5})
        return validation

    def next_run() -> str:
        found[0] = 0.0
        return ""

    monkeypatch.setattr(Validator, "__call__", scored)
    return next_run


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A device with room for one picture."""
    real = Criterion.__call__

    def loss(self: Criterion, outputs: dict, targets: list[dict], num_boxes: float) -> dict[str, torch.Tensor]:
        if len(targets) > 1:
            raise torch.OutOfMemoryError("tried to allocate 20.00 MiB")
        return real(self, outputs, targets, num_boxes)

    monkeypatch.setattr(Criterion, "__call__", loss)
    return nothing


@pytest.fixture
def stub_trackers(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The libraries of W&B and MLflow, which keep what they are asked for; there is no experiment yet."""
    libraries = MagicMock()
    libraries.mlflow.MlflowClient.return_value.get_experiment_by_name.return_value = None
    for name in ("wandb", "mlflow"):
        getattr(libraries, name).__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, getattr(libraries, name))
    monkeypatch.setitem(sys.modules, "mlflow.entities", libraries.mlflow.entities)

    def asked() -> str:
        runs, client = libraries.wandb.init.call_args_list, libraries.mlflow.MlflowClient
        of_wandb = [(run.kwargs["project"], run.kwargs["mode"]) for run in runs]
        stores = [call.kwargs["tracking_uri"] for call in client.call_args_list]
        experiments = [call.args[0] for call in client.return_value.create_experiment.call_args_list]
        libraries.reset_mock()
        return re.sub("sqlite:.*/mlflow.db", "sqlite", repr((of_wandb, stores, experiments)))

    return asked


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """An address that does not answer is not asked a second time."""
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    return nothing
