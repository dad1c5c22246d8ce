"""What a job's folder says of it, however it ends."""

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from rfdetr_train.errors import Interrupted, UserError
from rfdetr_train.sweeps.job import Job


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
        "import sys, time; from pathlib import Path; from rfdetr_train.sweeps.job import Job\n"
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
