"""Optuna studies as sweeps: killed, continued, pruned, failing, in parallel."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stub_sweep import found_ap

from rfdetr_train.config import OptunaSweeperConfig
from rfdetr_train.errors import UserError
from rfdetr_train.sweeps.folder import Job
from rfdetr_train.sweeps.study import is_hopeless, opened_study, report

optuna = pytest.importorskip("optuna")
RATE = "optimizer.lr=tag(log, interval(1e-5, 1e-1))"


def trials(folder: Path) -> list[Any]:
    with opened_study(folder, OptunaSweeperConfig()) as study:
        return study.get_trials()


def test_a_killed_study_goes_on_with_its_own_trials(sweep: Callable) -> None:
    keys = ["hydra.sweeper.n_trials=4", "hydra.sweeper.pruner=none", "hydra.sweeper.startup_trials=3"]
    done = sweep("hydra/sweeper=optuna", "model=tiny", RATE, *keys, KILLED_JOB="2")
    assert done.code == -9
    before = trials(done.folder)
    assert [trial.state.name for trial in before] == ["COMPLETE", "COMPLETE", "RUNNING"]
    done = sweep("hydra.sweeper.n_trials=6", folder=done.folder)  # the total
    assert done.code == 0
    after = trials(done.folder)
    assert [trial.state.name for trial in after] == ["COMPLETE"] * 6
    assert [trial.params for trial in after[:3]] == [trial.params for trial in before]
    assert done.times_run() == [1, 1, 2, 1, 1, 1]
    assert len({trial.params["optimizer.lr"] for trial in after}) == 6  # no point is drawn twice
    jobs = done.jobs()
    assert [job["status"] for job in jobs] == ["completed"] * 6
    assert [trial.value for trial in after] == [job["AP"] for job in jobs]
    assert all(t.value == pytest.approx(found_ap(t.params["optimizer.lr"]), rel=1e-5) for t in after)
    assert "6 of 6 jobs ended" in done.shown


def test_failed_nan_and_pruned_trials_in_two_processes(sweep: Callable) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    done = sweep("hydra/sweeper=optuna", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweeper.n_jobs=2",
                 "hydra.sweeper.n_trials=12", "hydra.sweeper.pruner_startup_trials=1", "model=tiny", RATE,
                 "notes=choice(ok, ok2, fail, nan)", "hydra.sweeper.startup_trials=12")  # fmt: skip
    assert done.code == 1
    states = {"completed": "COMPLETE", "failed": "FAIL", "pruned": "PRUNED"}
    expected = ["FAIL" if job["AP"] is None else states[job["status"]] for job in done.jobs()]
    assert [trial.state.name for trial in trials(done.folder)] == expected
    assert set(expected) == {"COMPLETE", "FAIL", "PRUNED"}
    best = max(job["AP"] or 0.0 for job in done.jobs() if job["status"] == "completed")
    assert all(job["AP"] < best for job in done.jobs() if job["status"] == "pruned")


class Asked:
    """A trial that a study was asked for, as its job sees it."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        self.folder, self.keys = folder, OptunaSweeperConfig(**keys)
        with opened_study(folder, self.keys) as study:
            self.job = Job(study.ask({}).number, [], "", "running")

    def report(self, epoch: int, ap: float | None) -> bool:
        return report(self.folder, self.keys, self.job, epoch, ap)


def test_the_median_ends_what_is_behind_after_the_same_epoch(tmp_path: Path) -> None:
    keys = {"pruner_startup_trials": 1, "pruner_warmup_epochs": 1}
    for ap in (0.2, 0.4, 0.6):
        good = Asked(tmp_path, **keys)
        assert [good.report(epoch, ap * epoch) for epoch in (1, 2)] == [False, False]
        with opened_study(tmp_path, OptunaSweeperConfig()) as study:
            study.tell(good.job.number, ap)
    behind, ahead = Asked(tmp_path, **keys), Asked(tmp_path, **keys)
    assert not behind.report(1, 0.0)  # the first epoch is every trial's
    assert behind.report(2, 0.79)  # the median after two epochs is 0.8
    assert is_hopeless(behind.folder, behind.keys, behind.job)
    assert not ahead.report(2, 0.81)
    assert not ahead.report(2, 0.1)  # told before: a resumed job
    assert not ahead.report(3, None)
    assert not ahead.report(3, float("nan"))
    with opened_study(tmp_path, OptunaSweeperConfig()) as study:
        assert study.trials[ahead.job.number].intermediate_values == {2: 0.81}


@pytest.mark.parametrize("pruner", ["none", "hyperband"])  # which waits for the length of a whole trial
def test_without_a_pruner_none_is_behind(tmp_path: Path, pruner: str) -> None:
    hopeless = Asked(tmp_path, pruner=pruner)
    assert [hopeless.report(epoch, 0.0) for epoch in range(1, 6)] == [False] * 5


def test_keys_are_checked() -> None:
    with pytest.raises(UserError, match=r"hydra\.sweeper\.pruner=best: choose one of none, median, hyperband"):
        OptunaSweeperConfig(pruner="best")
    with pytest.raises(UserError, match=r"hydra\.sweeper\.n_trials=0"):
        OptunaSweeperConfig(n_trials=0)
