"""Where training starts from, and how loudly it says so."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from rfdetr_train.checkpoint.fit import QueryLayout
from rfdetr_train.checkpoint.published import Unavailable
from rfdetr_train.checkpoint.starting_weights import find_starting_weights, read_weights
from rfdetr_train.errors import UserError


def test_a_file_of_the_reference_package(tmp_path: Path, reference_toy: dict[str, Any], toy_model) -> None:
    """`args` is a Namespace in older files and a dict in newer ones; it is only read as values."""
    arguments = {"num_queries": 20, "group_detr": 3, "output_dir": "x"}
    for number, args in enumerate([argparse.Namespace(**arguments), arguments, None]):
        path = tmp_path / f"{number}.pth"
        torch.save({"model": reference_toy["state_dict"], "args": args}, path)
        start = read_weights(path)
        assert start.layout == (QueryLayout(20, 3) if args is not None else None)
        toy_model.load_state_dict(start.state)  # strict: every name is ours and none is missing


def test_other_files_are_refused(tmp_path: Path) -> None:
    torch.save({"state": 1}, tmp_path / "x.pth")
    with pytest.raises(UserError, match="neither a checkpoint"):
        read_weights(tmp_path / "x.pth")


def test_no_published_weights_is_said_loudly_and_refused_if_insisted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unavailable(*_: object) -> Path:
        raise Unavailable("no network; put the file at X")

    monkeypatch.setattr("rfdetr_train.checkpoint.published.fetch", unavailable)
    assert find_starting_weights("auto", "nano", tmp_path) is None
    assert "RANDOM WEIGHTS" in caplog.text
    assert "put the file at X" in caplog.text
    with pytest.raises(UserError, match="put the file at X"):
        find_starting_weights("coco", "nano", tmp_path)


def test_tiny_has_no_published_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert find_starting_weights("auto", "tiny", tmp_path) is None
    assert "no published weights for model=tiny" in caplog.text
