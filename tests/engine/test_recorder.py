"""Which steps are written down, how fast they were, and what is made of an evaluation."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rfdetr_train.engine.course import LoopState, RunLength
from rfdetr_train.engine.recorder import Recorder
from rfdetr_train.engine.step import StepResult


class Told:
    """Takes every call and remembers it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: self.calls.append((name, arguments, named))

    def of(self, name: str) -> list[tuple]:
        return [arguments for called, arguments, _ in self.calls if called == name]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def recorder(folder: Path, every: int = 4, group_norms: bool = False) -> Recorder:
    """Five steps an epoch, eight in all."""
    told: Any = Told(), Told(), Told()
    return Recorder(folder, RunLength(5, 2, 8), every, group_norms, torch.device("mps"), *told)


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def take_steps(recorder: Recorder, clock: list[float], skipped: int = 0) -> None:
    """All of the run, half a second and three pictures each."""
    state = LoopState()
    for _ in range(8):
        clock[0] += 0.5
        state.step, state.position = state.step + 1, state.step % 5 + 1
        loss = float("nan") if state.step == skipped else 2.0
        recorder.step_done(state, StepResult({"loss": loss}, 1.0, 3), {"all": 0.1}, scale_px=64)


def test_the_steps_that_are_written_down(tmp_path: Path, clock: list[float]) -> None:
    """The first, each fourth, an epoch's last, the run's last, and those that were skipped."""
    take_steps(recorder(tmp_path), clock, skipped=7)
    assert [row["step"] for row in rows(tmp_path)] == [1, 4, 5, 7, 8]
    assert all(row["images_per_s"] == pytest.approx(6.0) for row in rows(tmp_path))  # 3 pictures in 0.5 s
    assert rows(tmp_path)[0]["memory_gib"] is None


def test_speed_counts_from_the_epochs_start_and_not_what_lay_before(tmp_path: Path, clock: list[float]) -> None:
    one = recorder(tmp_path)
    clock[0] += 1000.0  # an evaluation
    one.start_epoch(LoopState(), 2)
    take_steps(one, clock)
    assert rows(tmp_path)[0]["images_per_s"] == pytest.approx(6.0)


def test_norms_of_groups_are_asked_for_where_a_row_follows(tmp_path: Path) -> None:
    wanted = recorder(tmp_path, group_norms=True)
    steps = range(8)
    assert [s + 1 for s in steps if wanted.measures_step(LoopState(step=s, position=s % 5))] == [1, 4, 5, 8]
    never = recorder(tmp_path)
    assert not any(never.measures_step(LoopState(step=s, position=s % 5)) for s in steps)


def test_one_batch_is_drawn(tmp_path: Path) -> None:
    one: Any = recorder(tmp_path)
    one.batch_comes("first")
    one.batch_comes("second")
    assert one.plots.of("draw_batch") == [("first",)]


def test_a_resumed_run_tells_its_trackers_what_was_before(tmp_path: Path, clock: list[float]) -> None:
    take_steps(recorder(tmp_path), clock)
    again: Any = recorder(tmp_path)
    assert [row["step"] for (row,) in again.trackers.of("log")] == [1, 4, 5, 8]


@pytest.mark.parametrize("is_best", [True, False])
def test_only_a_best_evaluation_is_written_in_full(tmp_path: Path, is_best: bool) -> None:
    one: Any = recorder(tmp_path)
    raw, ema = ({"step": 5, "epoch": 0, "weights": weights} for weights in ("raw", "ema"))
    for where, ap in ((ema, 0.3), (raw, 0.4)):
        overall = {"AP": ap, "AP50": 0.6, "AP75": None}
        one.scored(where, SimpleNamespace(metrics=SimpleNamespace(overall=overall), to_plain=lambda ap=ap: {"of": ap}))
    last = {**raw, "AP": 0.4, "AP50": 0.6, "AP75": None}
    one.epoch_done(LoopState(step=5, best=last if is_best else {"AP": 0.9}, last=last), evaluated=True)
    assert [(row["split"], row["weights"], row["AP"]) for row in rows(tmp_path)] == [
        ("valid", "ema", 0.3), ("valid", "raw", 0.4),
    ]  # fmt: skip
    full = tmp_path / "evaluation.json"
    assert full.exists() == is_best
    if is_best:
        assert json.loads(full.read_text())["of"] == 0.4
    ((shown,),) = one.progress.of("end_epoch")
    assert shown == {"weights": "raw", "AP": 0.4, "AP50": 0.6, "AP75": None} | ({"best": "so far"} if is_best else {})
