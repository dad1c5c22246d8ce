"""Which files a run has after which save."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from rfdetr_train.checkpoint import files
from rfdetr_train.config import CheckpointConfig
from rfdetr_train.engine.saver import Saver
from rfdetr_train.errors import UserError


def saver_of(folder: Path, **config: float) -> Saver:
    saver = Saver(folder, CheckpointConfig(**config), lambda: {"loop": {"step": saver.step, "best": None}})  # type: ignore[arg-type]
    saver.step = 0  # type: ignore[attr-defined]
    return saver


def save(saver: Saver, step: int, is_best: bool = False) -> None:
    saver.step = step  # type: ignore[attr-defined]
    saver.save(step, is_best)


def step_in(path: Path) -> int:
    return files.load(path)["loop"]["step"]


def test_best_stays_when_last_moves_on(tmp_path: Path) -> None:
    saver = saver_of(tmp_path)
    save(saver, 1, is_best=True)
    assert saver.best.samefile(saver.last)  # the bytes are written once
    save(saver, 2)
    assert (step_in(saver.best), step_in(saver.last)) == (1, 2)


def test_numbered_copies_of_the_newest_saves(tmp_path: Path) -> None:
    saver = saver_of(tmp_path, keep=2)
    for step in (9, 10, 11, 1000000):
        save(saver, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "step-000011.pt", "step-1000000.pt"]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    saver = saver_of(tmp_path)
    save(saver, 1, is_best=True)
    save(saver, 2)
    assert (step_in(saver.best), step_in(saver.last)) == (1, 2)


def test_saves_by_steps_minutes_and_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    by_steps, by_minutes = saver_of(tmp_path, every_steps=3), saver_of(tmp_path, every_minutes=2)
    assert [step for step in range(1, 8) if by_steps.due_after_step(step)] == [3, 6]
    assert not by_minutes.due_after_step(1)
    clock[0] = 121.0
    assert by_minutes.due_after_step(2)
    save(by_minutes, 2)
    assert not by_minutes.due_after_step(3)
    assert [epoch for epoch in range(6) if saver_of(tmp_path, every_epochs=2).due_after_epoch(epoch)] == [1, 3, 5]


def test_a_resumed_run_begins_with_both_checkpoints_of_its_parent(tmp_path: Path) -> None:
    best = {"step": 1, "AP": 0.5}
    for name, step in (("best.pt", 1), ("last.pt", 2)):
        files.save(tmp_path / "parent" / name, {"loop": {"step": step, "best": best}})
    saver = saver_of(tmp_path / "new")
    saver.adopt(tmp_path / "parent/last.pt", best)
    assert (step_in(saver.best), step_in(saver.last)) == (1, 2)


def test_a_best_that_is_another_ones_is_not_adopted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files.save(tmp_path / "parent/best.pt", {"loop": {"step": 9, "best": {"step": 9, "AP": 0.9}}})
    files.save(tmp_path / "parent/step-000002.pt", {"loop": {"step": 2, "best": {"step": 1, "AP": 0.5}}})
    saver = saver_of(tmp_path / "new")
    saver.adopt(tmp_path / "parent/step-000002.pt", {"step": 1, "AP": 0.5})
    assert not saver.best.exists()
    assert step_in(saver.last) == 2
    assert "not beside it" in caplog.text


def test_a_best_that_is_the_last_already_leaves_nothing_beside_it(tmp_path: Path) -> None:
    best = {"step": 1, "AP": 0.5}
    saver = Saver(tmp_path, CheckpointConfig(), lambda: {"loop": {"step": 1, "best": best}})
    saver.save(1, is_best=True)
    saver.adopt(saver.last, best)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "last.pt"]


def test_a_disk_without_room_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10 * 2**20))
    saver = saver_of(tmp_path, keep=2)
    saver.check_space(2 * 2**20)  # five of them just fit
    assert not caplog.text
    saver.check_space(2 * 2**20 + 1)
    assert "the run may keep 5 at once" in caplog.text
    with pytest.raises(UserError, match=r"takes about 10\.5 MiB, 10\.0 MiB are free"):
        saver.check_space(11 * 2**20 - 2**19)
