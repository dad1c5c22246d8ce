"""Sweeps of stub jobs, each in a process of its own as a user starts it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., "Sweep"]:
    """`sweep("key=a,b", ...)` runs a sweep, `sweep(folder=...)` goes on with one; what came of it."""

    def start(*arguments: str, folder: Path | None = None, **environment: str) -> Sweep:
        first = ["-m"] if folder is None else [f"sweep_dir={folder}"]
        done = subprocess.run(
            [sys.executable, HERE / "stub_sweep.py", *first, *arguments],
            cwd=tmp_path if folder is None else "/",
            env={**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[1]}", "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        folders = [folder] if folder is not None else sorted(tmp_path.glob("runs/*/*-sweep-*"))
        return Sweep(folders[-1], done.returncode, done.stdout + done.stderr)

    return start


class Sweep:
    """How a sweep ended and what it left."""

    def __init__(self, folder: Path, code: int, shown: str) -> None:
        self.folder, self.code, self.shown = folder, code, shown

    def jobs(self) -> list[dict[str, Any]]:
        """What sweep.json says of each."""
        return json.loads((self.folder / "sweep.json").read_text())["jobs"]

    def statuses(self) -> list[str]:
        return [job["status"] for job in self.jobs()]

    def times_run(self) -> list[int]:
        """How often each job that has a folder has been run."""
        files = [self.folder / job["folder"] / "ran.txt" for job in self.jobs() if job["folder"]]
        return [len(file.read_text().splitlines()) for file in files]
