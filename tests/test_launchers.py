"""Jobs of Hydra's launchers: side by side, queued again, tried again, and refused where they could not work.

RFDETR_TRAIN_LAUNCHERS=1 runs the slow ones too; those on Ray need the extra of that name installed.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from filelock import FileLock
from omegaconf import OmegaConf
from small_run import SMALL_MODEL, finish, losses

from rfdetr_train import cli, cli_help, launchers
from rfdetr_train.errors import UserError

SMALL = [
    *SMALL_MODEL,
    "data.train_images=4", "data.valid_images=2", "data.image_size_px=64", "data.num_workers=0",
    "trainer.batch_size=2", "trainer.precision=fp32", "trainer.log_every_steps=1", "trainer.epochs=1",
    "logger.sample_images=1", "logger.plots=false",
]  # fmt: skip
LONG = [*SMALL, "trainer.epochs=60", "evaluation.every_epochs=1000"]
"""120 steps."""

slow = pytest.mark.skipif(not os.environ.get("RFDETR_TRAIN_LAUNCHERS"), reason="slow: RFDETR_TRAIN_LAUNCHERS=1 runs it")
posix = pytest.mark.skipif(sys.platform == "win32", reason="SIGUSR2 is POSIX")


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A command line in a process of its own, which has ended when the block is left."""
    with subprocess.Popen(
        [sys.executable, "-m", "rfdetr_train", *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_rows(cwd: Path, job: str, rows: int) -> Path:
    """The folder of a job of the sweep in `cwd`, once it has logged so many steps."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for file in cwd.glob(f"runs/*/*-sweep-*/{job}/metrics.jsonl"):
            if len(file.read_bytes().splitlines()) >= rows:
                return file.parent
        time.sleep(0.05)
    raise AssertionError(f"{job} has not logged {rows} steps")


def process_of(command_part: str, under: int | None = None) -> psutil.Process:
    """The youngest process whose command line holds `command_part`, among the descendants of process `under`."""
    candidates = psutil.Process(under).children(recursive=True) if under else psutil.process_iter()
    found = [process for process in candidates if command_part in " ".join(process.cmdline())]
    return max(found, key=lambda process: process.create_time())


def test_jobs_of_joblib_fail_alone(tmp_path: Path) -> None:
    with started("-m", "launcher=joblib", *SMALL, "optimizer.lr=1e-3,-1", cwd=tmp_path) as process:
        shown = finish(process, code=1)
    good, bad = sorted(tmp_path.glob("runs/*/*-sweep-*/*-tiny"))
    assert json.loads((good / "summary.json").read_text())["status"] == "completed"
    assert "Traceback" in (bad / "train.log").read_text()
    assert "UserError: optimizer.lr=-1" in (bad / "train.log").read_text()
    assert "ERROR   optimizer.lr=-1" in shown
    assert not (bad / "checkpoints").exists()


@slow
@posix
def test_a_job_of_submitit_that_is_queued_again_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    with started(*LONG, cwd=tmp_path) as process:
        finish(process, code=0)
    (whole,) = (path.parent for path in tmp_path.glob("runs/*/*/metrics.jsonl"))
    with started("-m", "launcher=submitit_local", *LONG, cwd=tmp_path) as process:
        run_dir = wait_for_rows(tmp_path, "0-tiny", rows=3)
        process_of("submitit.core._submit", process.pid).send_signal(signal.SIGUSR2)
        finish(process, code=0)
    (log,) = run_dir.parent.glob(".submitit/*/*_0_log.out")
    assert f"Requeued job {log.parent.name} " in log.with_suffix(".err").read_text() + log.read_text()
    assert f"going on from {run_dir}/checkpoints/last.pt" in log.read_text()
    assert losses(run_dir) == losses(whole)
    assert len(losses(run_dir)) == 120
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["parent"]) == ("completed", f"{run_dir}/checkpoints/last.pt")


@slow
@posix
def test_jobs_of_ray_fail_alone_and_are_tried_again_from_their_own_checkpoint(tmp_path: Path) -> None:
    """Two nodes that were started in another folder; the process of the good job is killed half-way."""
    pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster

    (tmp_path / "work").mkdir()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        address = [f"hydra.launcher.ray.init.address={cluster.address}", "hydra.launcher.ray.remote.max_retries=1"]
        options = [*LONG, "checkpoint.every_steps=5", "optimizer.lr=1e-3,-1"]
        with started("-m", "launcher=ray", *address, *options, cwd=tmp_path / "work") as process:
            run_dir = wait_for_rows(tmp_path / "work", "0-tiny", rows=12)
            process_of("ray::_run_job").kill()
            finish(process, code=1)
    finally:
        cluster.shutdown()
    with started(*LONG, "optimizer.lr=1e-3", cwd=tmp_path) as process:
        finish(process, code=0)
    (whole,) = (path.parent for path in tmp_path.glob("runs/*/*/metrics.jsonl"))
    assert losses(run_dir) == losses(whole)
    assert json.loads((run_dir / "summary.json").read_text())["parent"] == f"{run_dir}/checkpoints/last.pt"
    assert "UserError: optimizer.lr=-1" in (run_dir.with_name("1-tiny") / "train.log").read_text()


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_a_launcher_that_is_not_installed_names_its_extra(capsys: pytest.CaptureFixture) -> None:
    assert cli.run(["-m", "launcher=ray", "model=tiny"]) == 1
    assert capsys.readouterr().err == "the launcher ray is not installed: pip install 'rfdetr-train[ray]'\n"


@pytest.mark.parametrize("name", cli_help.EXTRAS)
def test_every_launcher_has_its_extra(name: str) -> None:
    error = ValueError(f"In 'launcher/x': Could not find 'hydra/launcher/{name}'\n\nAvailable options")
    message = cli_help.explain(error, "train", [])
    extra = message.partition("[")[2].partition("]")[0]
    pyproject = (cli.PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f"\n{extra} = " in pyproject
    assert any(f"override /hydra/launcher: {name}" in path.read_text() for path in cli.conf_dir().glob("launcher/*"))


def hydra_section(**launcher: object) -> object:
    return OmegaConf.create(
        {"launcher": {"_target_": "a.B", **launcher}, "runtime": {"cwd": "/", "choices": {"launcher": "slurm"}}}
    )


def test_what_would_do_else_than_it_says_is_refused() -> None:
    with pytest.raises(UserError, match="launcher=slurm: starts the jobs of a sweep only; add -m"):
        launchers.prepare_job(hydra_section(), is_sweep=False)
    for key in ("nodes", "tasks_per_node"):
        with pytest.raises(UserError, match=f"hydra.launcher.{key}=2"):
            launchers.prepare_job(hydra_section(**{key: 2}), is_sweep=True)
    launchers.prepare_job(hydra_section(nodes=1, tasks_per_node=1, gpus_per_node=None), is_sweep=True)


def test_a_ray_job_works_where_the_sweep_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path("/"))
    hydra = hydra_section(_target_="hydra_plugins.x.RayLauncher")
    hydra.runtime.cwd = str(tmp_path)  # type: ignore[attr-defined]
    launchers.prepare_job(hydra, is_sweep=True)
    assert Path.cwd() == tmp_path
    hydra.runtime.cwd = str(tmp_path / "not-shared")  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"not-shared: is not there on .*that all machines share"):
        launchers.prepare_job(hydra, is_sweep=True)


def test_each_process_has_a_gpu_of_its_own_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5b")
    assert launchers.gpus_here(7) == 2
    locks: list[FileLock | None] = []
    for gpu in ("3", "GPU-5b"):
        monkeypatch.setattr(launchers, "_own_gpu", None)
        launchers.take_own_gpu(tmp_path, ["3", "GPU-5b"])
        launchers.take_own_gpu(tmp_path, [gpu])  # a later job of the same process
        assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu
        locks.append(launchers._own_gpu)
    monkeypatch.setattr(launchers, "_own_gpu", None)
    with pytest.raises(UserError, match=r"all 2 GPUs have a job of this sweep already; .*n_jobs=2"):
        launchers.take_own_gpu(tmp_path, ["3", "GPU-5b"])
    first = locks[0]
    assert first is not None
    first.release()  # as the end of a process does
    launchers.take_own_gpu(tmp_path, ["3", "GPU-5b"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert launchers.gpus_here(7) == 7


@posix
def test_a_signal_is_handed_on_to_who_handled_it_before() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        launchers.hand_on(signal.SIGUSR2)
        launchers.hand_on(signal.SIGINT)  # Python's own handler would raise KeyboardInterrupt
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        launchers.hand_on(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert heard == [signal.SIGUSR2]
