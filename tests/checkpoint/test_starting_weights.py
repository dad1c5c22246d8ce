"""Where training starts from, and how loudly it says so."""

import argparse
import hashlib
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from rfdetr_train.checkpoint.download import Unavailable
from rfdetr_train.checkpoint.starting_weights import (
    HOST,
    PUBLISHED,
    best_kind,
    fetch_published,
    find_starting_weights,
    read_weights,
)
from rfdetr_train.errors import UserError


def test_a_file_of_the_reference_package(tmp_path: Path, reference_toy: dict[str, Any], toy_model) -> None:
    """`args` is a Namespace in older files and a dict in newer ones; it is only read as values."""
    arguments = {"output_dir": "x", "class_names": ["ant", "bee", "cat", "dog", ""]}
    for number, args in enumerate([argparse.Namespace(**arguments), arguments, None]):
        path = tmp_path / f"{number}.pth"
        torch.save({"model": reference_toy["state_dict"], "args": args}, path)
        start = read_weights(path)
        assert start.class_names == (("ant", "bee", "cat", "dog", None, None) if args is not None else None)
        assert start.source == f"{path} (reference package, raw weights)"
        toy_model.load_state_dict(start.state)  # strict: every name is ours and none is missing


def ours(best: str | None, num_updates: int | None) -> dict[str, Any]:
    """A checkpoint of ours whose best evaluation was of weights `best`."""
    return {
        "model": {"w": torch.tensor([1.0])},
        "ema": None if num_updates is None else {"model": {"w": torch.tensor([2.0])}, "num_updates": num_updates},
        "format": 1,
        "loop": {"best": best and {"weights": best}},
        "label_map": {0: {"id": 7, "name": "cat"}, 1: {"id": 3, "name": "dog"}},
    }


@pytest.mark.parametrize(("best", "num_updates", "kind"), [
    ("raw", 5, "raw"), ("ema", 5, "ema"),
    (None, 5, "ema"), (None, 0, "raw"), (None, None, "raw"),
    ("ema", None, "raw"),  # scored before the run went on without an average
])  # fmt: skip
def test_one_of_our_checkpoints_gives_the_weights_that_scored_best(
    tmp_path: Path, best: str | None, num_updates: int | None, kind: str
) -> None:
    saved = ours(best, num_updates)
    assert best_kind(saved) == kind
    torch.save(saved, tmp_path / "best.pt")
    start = read_weights(tmp_path / "best.pt")
    assert start.state["w"].item() == (1.0 if kind == "raw" else 2.0)
    assert start.class_names == ("cat", "dog", None)
    assert f"({kind} weights)" in start.source


def saved(content: object) -> bytes:
    torch.save(content, buffer := io.BytesIO())
    return buffer.getvalue()


def test_weights_from_an_address(server, tmp_path: Path, reference_toy: dict[str, Any], toy_model) -> None:
    server.content = saved({"model": reference_toy["state_dict"], "args": {"num_queries": 20, "group_detr": 3}})
    address = f"{server.address('/toy.pth')}#md5={hashlib.md5(server.content, usedforsecurity=False).hexdigest()}"
    for _ in range(2):  # the second time from the cache
        start = find_starting_weights(address, "nano", tmp_path / "cache")
        assert start is not None
        toy_model.load_state_dict(start.state)
        assert start.source.endswith("-toy.pth (reference package, raw weights)")
    assert len(server.asked) == 1


def test_an_address_that_gives_nothing_is_an_error(server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"weights: .*/missing cannot be fetched: .*404.*by hand"):
        find_starting_weights(server.address("/missing"), "nano", tmp_path)


class Attack:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.victim),)


def test_what_comes_from_an_address_and_is_no_checkpoint_is_refused(server, tmp_path: Path) -> None:
    """A web page that says to be a file, an archive of something else, code, half a checkpoint."""
    with zipfile.ZipFile(archive := io.BytesIO(), "w") as file:
        file.writestr("readme.txt", "hello")
    attack = Attack(tmp_path / "made-by-the-attack")
    contents = {
        "page": (b"<!doctype html><html>Please log in</html>", "cut off or not a checkpoint"),
        "empty": (b"", "cut off or not a checkpoint"),
        "zip": (archive.getvalue(), "cannot be read as a checkpoint"),
        "pickle": (pickle.dumps({"model": attack}), "cannot be read as a checkpoint|could run code"),
        "code": (saved({"model": attack}), "could run code"),
        "half": (saved({"model": torch.zeros(1000)})[:2000], "cut off or not a checkpoint"),
        "list": (saved([1, 2]), "holds a list, not a checkpoint"),
        "other": (saved({"state": 1}), "neither a checkpoint of rfdetr_train nor"),
    }
    for name, (server.content, reason) in contents.items():
        with pytest.raises(UserError, match=rf"-{name}\.pth: .*({reason}).*; it came from {server.address()[:-9]}"):
            find_starting_weights(server.address(f"/{name}.pth"), "nano", tmp_path / "cache")
    assert not attack.victim.exists()


def test_adapters_of_a_checkpoint_are_merged(tmp_path: Path) -> None:
    saved = ours("raw", None)
    saved["model"] = {
        "a.base_layer.weight": torch.tensor([[1.0, 2.0]]),
        "a.lora_A.default.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "a.lora_B.default.weight": torch.tensor([[3.0, 5.0]]),
    }
    saved["model_config"] = {"lora_rank": 2, "lora_alpha": 4}
    torch.save(saved, tmp_path / "best.pt")
    state = read_weights(tmp_path / "best.pt").state
    assert {name: value.tolist() for name, value in state.items()} == {"a.weight": [[7.0, 12.0]]}


def test_other_files_are_refused(tmp_path: Path) -> None:
    torch.save({"state": 1}, tmp_path / "x.pth")
    with pytest.raises(UserError, match="neither a checkpoint"):
        read_weights(tmp_path / "x.pth")


def test_no_published_weights_is_said_loudly_and_refused_if_insisted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unavailable(*_: object) -> Path:
        raise Unavailable("no network; put the file at X")

    monkeypatch.setattr("rfdetr_train.checkpoint.starting_weights.fetch_published", unavailable)
    assert find_starting_weights("auto", "nano", tmp_path) is None
    assert "RANDOM WEIGHTS" in caplog.text
    assert "put the file at X" in caplog.text
    with pytest.raises(UserError, match="put the file at X"):
        find_starting_weights("coco", "nano", tmp_path)


def test_tiny_has_no_published_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert find_starting_weights("auto", "tiny", tmp_path) is None
    assert "no published weights for model=tiny" in caplog.text


@pytest.fixture
def host(server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A host that publishes the server's content as nano."""
    md5 = hashlib.md5(server.content, usedforsecurity=False).hexdigest()
    monkeypatch.setitem(PUBLISHED, "nano", (*PUBLISHED["nano"][:2], md5))
    return server.address("/")


def test_a_file_is_fetched_once_and_its_progress_told(server, host: str, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    path = fetch_published("nano", tmp_path / "cache", lambda done, total: told.append((done, total)), host)
    assert path == tmp_path / "cache/rf-detr-nano.pth"
    assert path.read_bytes() == server.content
    assert told[-1] == (len(server.content), len(server.content))
    assert fetch_published("nano", tmp_path / "cache", host=host) == path
    assert server.asked == [("/nano_coco/checkpoint_best_regular.pth", None)]


def test_what_is_not_the_published_file_is_refused(server, tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as refusal:
        fetch_published("nano", tmp_path, host=server.address("/"))
    message = str(refusal.value)
    assert "instead of md5=fb6504cce7fbdc783f7a46991f07639f" in message
    address = server.address("/nano_coco/checkpoint_best_regular.pth")
    assert f"put {address} at {tmp_path / 'rf-detr-nano.pth'}" in message
    assert not (tmp_path / "rf-detr-nano.pth").exists()


def test_a_cached_file_that_is_not_the_published_one_is_the_users_to_remove(tmp_path: Path) -> None:
    (tmp_path / "rf-detr-nano.pth").write_bytes(b"something else")
    with pytest.raises(UserError, match=r"rf-detr-nano\.pth: is not the file of https://.*; remove it"):
        fetch_published("nano", tmp_path)


def test_the_table_is_the_published_one() -> None:
    assert HOST == "https://storage.googleapis.com/rfdetr/"
    assert {name: (place, md5[:8]) for name, (_, place, md5) in PUBLISHED.items()} == {
        "nano": ("nano_coco/checkpoint_best_regular.pth", "fb6504cc"),
        "small": ("small_coco/checkpoint_best_regular.pth", "fb37061c"),
        "medium": ("medium_coco/checkpoint_best_regular.pth", "7223f764"),
        "large": ("rf-detr-large-2026.pth", "5cb72153"),
        "base": ("rf-detr-base-coco.pth", "b4d3ce46"),
    }
