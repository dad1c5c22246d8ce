"""Processes measured in turns, so that a busy machine is as busy for one as for another, and what a report says of it.

Each arm of a comparison is a process of its own, with its own Python, allocator and peak of memory. It may run in
another environment than this package's, so only torch is imported, and only where it is timed, until the report.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ANSWER = "ANSWER "


class Arm:
    """A measured process, which answers when it is its turn."""

    def __init__(self, script: str, arguments: Sequence[str], python: str = "", **environment: str) -> None:
        command = [python or sys.executable, "-W", "ignore", script, *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )

    def ask(self, request: Any = None) -> Any:
        """What the process's `serve` returns for the request; both are plain values."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise SystemExit("a measured process ended before its time; its message is above")

    def __enter__(self) -> "Arm":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()  # the end of its input ends it


def serve(answer: Callable[[Any], Any]) -> None:
    """Be an arm: answer every request until there are no more."""
    for line in sys.stdin:
        print(ANSWER + json.dumps(answer(json.loads(line))), flush=True)


def timed(work: Callable[[], Any]) -> Callable[[Any], dict[str, Any]]:
    """`work` as an answer: its time by the clock and of the processor, what it returned, the peak of memory so far."""

    def answer(_request: Any) -> dict[str, Any]:
        synchronise()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        result = work()
        synchronise()
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        return {"s": wall_s, "cpu_s": cpu_s, "result": result, "peak_mib": peak_mib()}

    return answer


def synchronise() -> None:
    """Wait until the accelerator, if there is one, has done its work."""
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def take_turns(arms: Mapping[str, Arm], rounds: int, warmup: int = 1) -> dict[str, list[Any]]:
    """`rounds` answers of each arm to the number of the round, after `warmup` that do not count.

    Each round begins with another arm.
    """
    names = list(arms)
    answers: dict[str, list[Any]] = {name: [] for name in names}
    for number in range(warmup + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            answer = arms[name].ask(number)
            if number >= warmup:
                answers[name].append(answer)
    return answers


def quartiles(values: Iterable[float]) -> list[float]:
    """First quartile, median, third quartile."""
    values = list(values)
    if len(values) == 1:
        values *= 2
    return [float(f"{value:.4g}") for value in statistics.quantiles(values, n=4, method="inclusive")]


def ratios(slower: Iterable[float], faster: Iterable[float]) -> list[float]:
    """Quartiles of how many times as long the one took as the other, round by round."""
    return quartiles(a / b for a, b in zip(slower, faster, strict=True))


def spread(three: Sequence[float], unit: str = "") -> str:
    """`median [first quartile, third quartile]`."""
    return f"{three[1]:.4g}{unit} [{three[0]:.4g}, {three[2]:.4g}]"


def peak_mib() -> float:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def command_line(description: str) -> argparse.ArgumentParser:
    """A parser that every benchmark begins with."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(sys.argv[0]).with_suffix(".json").name)
    return parser


def show(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of the rows' columns; three numbers are quartiles."""
    from rfdetr_train.loggers.console import print_table

    cells = [[spread(row[c]) if isinstance(row[c], list) else row[c] for c in columns] for row in rows]
    print_table(f"{title}: median [quartiles]", columns, cells)


def write_report(options: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows as JSON, with the machine, versions, commit and options that they were measured with."""
    from rfdetr_train.checkpoint.environment import versions

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    threads = os.environ.get("OMP_NUM_THREADS")
    machine = {"processor": processor(), "cores": os.cpu_count(), "threads": threads, "system": platform.platform()}
    written = {"machine": machine, "versions": versions(), "commit": commit.stdout.strip(), "options": vars(options)}
    Path(options.output).write_text(json.dumps({**written, "rows": rows}, indent=2, default=str))


def processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
