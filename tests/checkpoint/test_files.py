"""Checkpoint files: whole or not at all, and nothing in them is run."""

import errno
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from rfdetr_train.checkpoint import files
from rfdetr_train.errors import UserError


def write(path: Path, **content: object) -> Path:
    files.save(path, {"loop": {}, **content})
    return path


def test_round_trip_with_weights_only(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", model={"w": torch.arange(3.0)}, loop={"step": 3})
    assert torch.load(path, weights_only=True)["loop"] == {"step": 3}
    assert torch.equal(files.load(path)["model"]["w"], torch.arange(3.0))
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]  # no temporary file is left


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", loop={"step": 1})
    with pytest.raises(Exception, match="pickle"):
        files.save(path, {"loop": {"step": 2}, "bad": lambda: None})
    assert files.load(path)["loop"] == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"<html>not found</html>"])
def test_broken_files_are_named_and_the_newest_other_one_offered(tmp_path: Path, damage) -> None:
    folder = tmp_path / "run/checkpoints"
    good = write(folder / "step-000001.pt")
    broken = write(folder / "last.pt", model={"w": torch.zeros(1000)})
    os.link(broken, folder / "best.pt")  # newer, but the same broken file
    broken.write_bytes(damage(broken.read_bytes()))
    with pytest.raises(UserError) as refusal:
        files.load(broken)
    assert str(broken) in str(refusal.value)
    assert str(good) in str(refusal.value)


class Attack:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.victim),)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    """The same bytes do run under a plain `pickle.load`, so the attack is a real one."""
    victim = tmp_path / "made-by-the-attack"
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Attack(victim)))
    pickle.loads((tmp_path / "plain.pkl").read_bytes())
    assert victim.is_dir()
    victim.rmdir()
    torch.save({"format": 1, "loop": {}, "x": Attack(victim)}, tmp_path / "evil.pt")
    for path in (tmp_path / "evil.pt", tmp_path / "plain.pkl"):
        with pytest.raises(UserError, match=r"is not loaded|cannot be read"):
            files.load(path)
        assert not victim.exists()


def test_foreign_and_newer_files_are_refused(tmp_path: Path) -> None:
    torch.save({"model": {}}, tmp_path / "foreign.pt")
    with pytest.raises(UserError, match="not a checkpoint of rfdetr_train"):
        files.load(tmp_path / "foreign.pt")
    torch.save({"format": files.FORMAT + 1, "loop": {}}, tmp_path / "newer.pt")
    with pytest.raises(UserError, match="newer release"):
        files.load(tmp_path / "newer.pt")


def test_resolve_prefers_as_asked(tmp_path: Path) -> None:
    last = write(tmp_path / "run/checkpoints/last.pt")
    assert files.resolve(tmp_path / "run", prefer=("best", "last")) == last
    best = write(tmp_path / "run/checkpoints/best.pt")
    assert files.resolve(tmp_path / "run", prefer=("best", "last")) == best
    with pytest.raises(UserError, match="no checkpoint in this folder"):
        files.resolve(tmp_path, prefer=("last",))
    with pytest.raises(UserError, match="no such file"):
        files.resolve(tmp_path / "nothing.pt", prefer=("last",))


def test_the_run_folder_of_a_checkpoint(tmp_path: Path) -> None:
    assert files.run_folder_of(tmp_path / "run/checkpoints/last.pt") == tmp_path / "run"
    assert files.run_folder_of(tmp_path / "copied.pt") is None


def test_a_pickle_that_ends_too_early_is_named(tmp_path: Path) -> None:
    """Found by random damage: the error that it raises has no words."""
    files.save(tmp_path / "whole.pt", {"loop": {}})
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "short.pt", "w") as short:
        for name in whole.namelist():
            content = whole.read(name)
            short.writestr(name, content[:-1] if name.endswith("data.pkl") else content)
    with pytest.raises(UserError, match=r"short\.pt: cannot be read as a checkpoint: EOFError"):
        files.load(tmp_path / "short.pt")


@pytest.mark.parametrize(("key", "value"), [("format", "1"), ("loop", [1]), ("label_map", [1]), ("config", None)])
def test_parts_of_another_type_are_refused(tmp_path: Path, key: str, value: object) -> None:
    torch.save({"format": 1, "loop": {}, key: value}, tmp_path / "a.pt")
    with pytest.raises(UserError, match=rf"a\.pt: damaged, its {key} is a {type(value).__name__}"):
        files.load(tmp_path / "a.pt")


def test_an_archive_that_seems_to_have_several_parts_is_named(tmp_path: Path) -> None:
    """Found by random damage: Python's zipfile raises where it was asked whether this is an archive."""
    files.save(tmp_path / "a.pt", {"loop": {}})
    content = bytearray((tmp_path / "a.pt").read_bytes())
    locator = content.rindex(b"PK\x06\x07")  # of ZIP64; the number of parts is its last field
    content[locator + 16] = 2
    (tmp_path / "b.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"b\.pt: cut off or not a checkpoint"):
        files.load(tmp_path / "b.pt")


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_or_a_quota_that_is_full_is_told_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    """A quota takes a file system that has them; its error is the only difference here."""
    path = write(tmp_path / "a.pt", loop={"step": 1})

    def full(*_: object) -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(
        UserError, match=rf"a\.pt: cannot be written .*{os.strerror(fault)}.* the file before it is whole"
    ):
        files.save(path, {"loop": {"step": 2}})
    assert files.load(path)["loop"] == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("error", [KeyError("loop"), TypeError("no"), IndexError(), OverflowError("large")])
def test_damaged_content_is_told_with_the_file(error: Exception) -> None:
    with pytest.raises(UserError, match=rf"last\.pt: damaged, .*{type(error).__name__}"), files.reading("last.pt"):
        raise error


def test_a_refusal_of_content_names_the_file_once() -> None:
    """A checkpoint that asks for a model of a negative width was told as if the user had."""
    with pytest.raises(UserError, match=r"^last\.pt: model\.hidden_dim=-1"), files.reading("last.pt"):
        raise UserError("model.hidden_dim=-1: give a number above 0")
    with pytest.raises(UserError, match=r"^last\.pt is gone$"), files.reading("last.pt"):
        raise UserError("last.pt is gone")
