"""Sweeps in the terms of their folders: what is recorded, what survives, what goes on."""

import csv
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from stub_sweep import found_ap

from rfdetr_train.errors import Interrupted, UserError
from rfdetr_train.sweeps.folder import Job, continued


def test_a_failing_job_is_recorded_and_the_others_go_on(sweep: Callable) -> None:
    done = sweep("model=tiny", "optimizer.lr=1e-3,1e-2", "notes=ok,fail,nan")
    assert done.code == 1
    assert done.statuses() == ["completed", "failed", "completed"] * 2
    assert [job["AP"] for job in done.jobs()] == [found_ap(1e-3), None, None, found_ap(1e-2), None, None]
    assert done.jobs()[1]["error"] == "RuntimeError: out of <memory>"
    assert "Traceback" in (done.folder / "1-tiny" / "train.log").read_text()
    assert "Traceback" not in (done.folder / "2-tiny" / "train.log").read_text()
    with (done.folder / "leaderboard.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["job"] for row in rows] == ["0", "3", "1", "2", "4", "5"]
    assert float(rows[1]["AP"]) == found_ap(1e-2)
    assert {"optimizer.lr", "notes"} < set(rows[0])
    assert "model" not in rows[0]  # it does not differ
    assert "6 of 6 jobs ended" in done.shown
    assert [line for line in done.shown.splitlines() if line.startswith("  ")][-6].split()[:2] == ["0", "completed"]

    again = sweep(folder=done.folder)  # only what failed runs again
    assert again.code == 0
    assert again.times_run() == [1, 2, 1, 1, 2, 1]
    assert again.jobs()[4]["AP"] == found_ap(1e-2)


def test_a_killed_sweep_goes_on_from_anywhere(sweep: Callable) -> None:
    done = sweep("model=tiny", "seed=1,2,3", KILLED_JOB="1")
    assert done.code == -9
    sweep_json = json.loads((done.folder / "sweep.json").read_text())
    assert [job["status"] for job in sweep_json["jobs"]] == ["completed", "running", "queued"]
    assert sweep_json["arguments"] == ["-m", "model=tiny", "seed=1,2,3"]

    again = sweep(folder=done.folder)
    assert again.code == 0
    assert again.statuses() == ["completed"] * 3
    assert again.times_run() == [1, 2, 1]
    assert (again.folder / "plots" / "sweep.png").is_file()


def test_an_interrupt_stops_the_sweep_and_the_rest_stays_queued(sweep: Callable) -> None:
    done = sweep("model=tiny", "notes=ok,stop,late")
    assert done.code == 130
    assert done.statuses() == ["completed", "interrupted", "queued"]
    again = sweep(folder=done.folder)
    assert again.code == 0
    assert again.times_run() == [1, 2, 1]


def test_a_folder_of_another_sweep_is_refused(sweep: Callable, tmp_path: Path) -> None:
    """Else its jobs would pass for done."""
    done = sweep("model=tiny", "seed=1,2")
    again = sweep("model=tiny", "seed=3,4", f"hydra.sweep.dir={done.folder}")
    assert again.code == 1
    assert "holds another sweep, whose job 0 is model=tiny seed=1" in again.shown
    assert done.times_run() == [1, 1]
    assert [job["overrides"][-1] for job in done.jobs()] == ["seed=1", "seed=2"]


def test_jobs_in_other_processes_tell_the_same_folder(sweep: Callable) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    parallel = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    done = sweep("model=tiny", *parallel, "optimizer.lr=1e-4,1e-3", "notes=ok,fail")
    assert done.code == 1
    assert done.statuses() == ["completed", "failed", "completed", "failed"]
    assert "Traceback" in (done.folder / "3-tiny" / "train.log").read_text()
    pids = {(done.folder / job["folder"] / "ran.txt").read_text().split()[1] for job in done.jobs()}
    assert len(pids) > 1
    again = sweep("hydra/launcher=basic", folder=done.folder)  # under another launcher
    assert again.code == 0
    assert again.times_run() == [1, 2, 1, 2]
    assert math.isclose(max(job["AP"] for job in again.jobs()), 1.0)


def test_what_cannot_go_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no sweep\.json in it"):
        continued(tmp_path, [])
    write_sweep(tmp_path)
    with pytest.raises(UserError, match="model=nano: a sweep goes on with its own overrides"):
        continued(tmp_path, ["model=nano"])
    (tmp_path / "0").mkdir()
    Job(0, [], "0").run(tmp_path, lambda: refused_while_it_runs(tmp_path), lambda: None)
    given = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps({**given, "working_folder": str(tmp_path / "gone")}))
    with pytest.raises(UserError, match="gone is gone"):
        continued(tmp_path, [])


def test_another_launcher_takes_the_place_of_the_recorded_one_and_of_its_keys(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    command, arguments, folder = continued(tmp_path, ["hydra/launcher=ray", "hydra.launcher.ray.x=1"])
    assert (command, folder) == ("train", tmp_path)
    own = f"hydra.sweep.dir='{tmp_path}'"
    assert arguments == ["-m", "hydra/launcher=ray", "model=tiny", "seed=1,2", "hydra.launcher.ray.x=1", own]


def refused_while_it_runs(folder: Path) -> float:
    with pytest.raises(UserError, match="its job 0 is running"):
        continued(folder, [])
    return 0.5


def write_sweep(folder: Path) -> None:
    arguments = ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "model=tiny", "seed=1,2"]
    sweep = {"command": "train", "arguments": arguments, "working_folder": str(folder), "num_jobs": 2, "jobs": []}
    (folder / "sweep.json").write_text(json.dumps(sweep))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "3-tiny").mkdir()
    return Job(3, ["seed=1"], "3-tiny")


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def work() -> NoReturn:
        raise error

    return work


def written(job: Job, folder: Path) -> dict:
    return json.loads((folder / job.folder / "job.json").read_text())


def test_a_job_says_how_it_goes(job: Job, tmp_path: Path) -> None:
    seen = []
    job.run(tmp_path, lambda: 0.25, lambda: seen.append(written(job, tmp_path)["status"]))
    assert seen == ["running", "completed"]
    assert written(job, tmp_path) == {
        "number": 3, "overrides": ["seed=1"], "folder": "3-tiny", "status": "completed", "AP": 0.25, "error": None,
    }  # fmt: skip
    assert Job.read(tmp_path / "3-tiny" / "job.json") == job


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RuntimeError("no memory"), "failed", "RuntimeError: no memory"),
        (KeyboardInterrupt(), "interrupted", None),
        (Interrupted(signal.SIGTERM), "interrupted", None),
        (SystemExit(2), "failed", "SystemExit: 2"),
    ],
)
def test_what_ends_a_job_is_written_down_and_goes_on(
    job: Job, tmp_path: Path, error: BaseException, status: str, said: str | None
) -> None:
    with pytest.raises(type(error)):
        job.run(tmp_path, raising(error), lambda: None)
    assert (written(job, tmp_path)["status"], written(job, tmp_path)["error"]) == (status, said)


@pytest.mark.parametrize("ap", [None, math.nan, math.inf])
def test_an_ap_that_is_no_number_is_none(job: Job, tmp_path: Path, ap: float | None) -> None:
    job.run(tmp_path, lambda: ap, lambda: None)
    assert Job.read(tmp_path / "3-tiny" / "job.json").AP is None


def test_a_job_of_another_process_runs_until_that_is_killed(job: Job, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from rfdetr_train.sweeps.folder import Job\n"
        "Job(3, [], '3-tiny').run(Path(sys.argv[1]), lambda: time.sleep(60), lambda: print('runs', flush=True))"
    )
    other = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    with other.stdout:
        assert other.stdout.readline() == "runs\n"
        assert Job.read(tmp_path / "3-tiny" / "job.json").status == "running"
        with pytest.raises(UserError, match="another process runs this job"):
            job.run(tmp_path, lambda: 1.0, lambda: None)
        other.kill()
        other.wait()
    assert Job.read(tmp_path / "3-tiny" / "job.json").status == "interrupted"
