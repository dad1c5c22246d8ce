"""The command line with jobs that take no time, or with real ones that are watched; `notes` says how a job behaves.

A module of its own, so that the processes of a parallel launcher find it too.
"""

import json
import logging
import math
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from rfdetr_train import cli
from rfdetr_train.errors import Interrupted


def found_ap(learning_rate: float) -> float:
    """The best rate is 1e-3."""
    return 1 / (1 + abs(math.log10(learning_rate) + 3))


class StubTask(cli._Task):
    """AP is a function of the learning rate; every run of a job leaves a line in `ran.txt`."""

    def _run(self, composed: Any, run_dir: Path, resume: Any = None, is_hopeless: Any = None, **_: Any) -> Any:
        first_time = not (run_dir / "ran.txt").exists()
        with (run_dir / "ran.txt").open("a") as file:
            file.write(f"{composed.optimizer.lr!r} {os.getpid()}\n")
        if os.environ.get("KILLED_JOB") == run_dir.name.split("-")[0] and first_time:
            os.kill(os.getpid(), signal.SIGKILL)
        if composed.notes == "stop" and first_time:
            raise Interrupted(signal.SIGINT)
        if composed.notes == "fail" and first_time:
            raise RuntimeError("out of <memory>")
        ap = math.nan if composed.notes == "nan" else found_ap(composed.optimizer.lr)
        for epoch in (1, 2, 3):
            if is_hopeless is not None and is_hopeless(epoch, ap * epoch / 3):
                return ap * epoch / 3
        return ap


class WatchedTask(cli._Task):
    """Real jobs; `process.jsonl` in the working folder tells what each of them finds in its process."""

    def _run(self, *arguments: Any, **more: Any) -> Any:
        import torch

        state = {
            "open files": len(os.listdir("/proc/self/fd")),
            "handlers": [type(handler).__name__ for handler in logging.getLogger().handlers],
            "dtype": str(torch.get_default_dtype()),
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "gradients": torch.is_grad_enabled(),
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "pyplot": "matplotlib.pyplot" in sys.modules,
        }
        with Path("process.jsonl").open("a") as file:
            file.write(json.dumps(state) + "\n")
        killed = Path("killed.txt")
        if "KILLED_AT_EPOCH" in os.environ and not killed.exists():

            def kill(epoch: int, ap: float | None) -> bool:
                if epoch == int(os.environ["KILLED_AT_EPOCH"]):
                    killed.write_text("by itself")
                    os.kill(os.getpid(), signal.SIGKILL)
                return False

            more["is_hopeless"] = kill
        result = super()._run(*arguments, **more)
        random.random()  # a job of a user's own may leave the generators anywhere
        torch.rand(3)
        return result


if __name__ == "__main__":
    import stub_sweep  # under its own name, which other processes import it by

    cli._Task = stub_sweep.WatchedTask if os.environ.get("WATCHED") else stub_sweep.StubTask  # type: ignore[misc]
    sys.exit(cli.run(sys.argv[1:]))
