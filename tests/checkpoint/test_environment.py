"""What a run's numbers depend on."""

import random
import subprocess
from importlib import metadata
from pathlib import Path

import numpy as np
import PIL
import torch

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.environment import _commit, random_state, restore_random_state, versions
from rfdetr_train.data import image_file


def test_the_jpeg_decoder_is_the_one_that_reads(monkeypatch):
    used = "simplejpeg" if image_file.simplejpeg else "pillow"
    assert versions()["jpeg_decoder"].startswith(f"{used} ")
    assert versions()["torch"] == torch.__version__

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert versions()["jpeg_decoder"].startswith(f"pillow {PIL.__version__}, libjpeg-turbo ")
    monkeypatch.setattr(metadata, "version", lambda name: "1.2.3")
    assert versions()["jpeg_decoder"] == "simplejpeg 1.2.3"


def test_the_commit_is_that_of_the_checkout(tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    monkeypatch.setattr("rfdetr_train.__file__", str(tmp_path / "package" / "__init__.py"))

    def commit() -> str:
        _commit.cache_clear()
        return versions()["commit"]

    assert commit() == "none"
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert commit() == head
    (tmp_path / "package" / "__init__.py").write_text("1")
    assert commit() == f"{head}-dirty"
    _commit.cache_clear()


def test_all_generators_go_on_where_they_were_saved(tmp_path: Path) -> None:
    files.save(tmp_path / "r.pt", {"loop": {}, "random": random_state()})
    drawn = (random.random(), random.gauss(), np.random.rand(), np.random.randn(), torch.rand(1))
    restore_random_state(files.load(tmp_path / "r.pt")["random"])
    assert drawn == (random.random(), random.gauss(), np.random.rand(), np.random.randn(), torch.rand(1))
