"""Time whole training steps under two configs, and where in the step the time goes.

    python scripts/bench_train.py --a trainer.precision=fp32 --b trainer.precision=bf16
    python scripts/bench_train.py --common model=small --batches 4 8 --a ema=none --b ema=default --steps 20 --warmup 3

Each arm is a process with this package's loader, criterion, optimizer and average on the demo set; they take turns, a
step each. A part's time ends where the next one begins, so that the parts add up to the step.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from turns import Arm, command_line, peak_mib, quartiles, ratios, serve, spread, synchronise, take_turns, write_report

DEFAULTS = ["model=nano", "augmentation=flip", "trainer.precision=fp32"]


def main() -> None:
    """Measure, or be one of the measured processes."""
    if sys.argv[1:2] == ["--serve"]:
        serve_steps(json.loads(sys.argv[2]))
        return
    parser = command_line(__doc__)
    parser.add_argument("--a", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--b", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--common", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--batches", nargs="+", type=int, default=[4])
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare(batch, options, Path(folder)) for batch in options.batches]
    for row in rows:
        show_parts(row)
    write_report(options, rows)


def compare(batch: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The arms in turn at one batch size."""
    steps = options.warmup + options.steps
    common = [*DEFAULTS, f"trainer.batch_size={batch}", f"data.root={folder}", *options.common]
    with ExitStack() as stack:
        arms = {
            name: stack.enter_context(Arm(__file__, ["--serve", json.dumps([steps, *common, *overrides])]))
            for name, overrides in (("a", options.a), ("b", options.b))
        }
        answers = take_turns(arms, options.steps, options.warmup)
    row: dict[str, Any] = {"batch": batch}
    for name in arms:
        row[name] = {
            "overrides": [*options.common, *getattr(options, name)],
            "step_s": quartiles(answer["step_s"] for answer in answers[name]),
            "parts_s": {
                part: quartiles(answer["parts_s"][part] for answer in answers[name])
                for part in answers[name][0]["parts_s"]
            },
            "peak_mib": answers[name][-1]["peak_mib"],
        }
    row["a / b"] = ratios(*([answer["step_s"] for answer in answers[name]] for name in arms))
    return row


def serve_steps(arguments: list[Any]) -> None:
    """Be an arm: a training step for each request, with the time of its parts."""
    from parts_of_a_run import build_parts

    from rfdetr_train.allocator import keep_freed_memory
    from rfdetr_train.commands.training_data import build_loader, load_data

    steps, *overrides = arguments
    keep_freed_memory()  # as the command does
    parts = build_parts([*overrides, f"trainer.max_steps={steps}", f"trainer.epochs={steps}"])
    dataset = load_data(parts.config)
    watch = Stopwatch(parts.step, parts.criterion, parts.model)
    with build_loader(parts.config, dataset, pin_memory=False) as loader:
        windows = (window for epoch in range(steps) for window in loader.epoch(epoch))
        serve(lambda _: one_step(parts, windows, watch))


def one_step(parts: Any, windows: Iterator[Any], watch: "Stopwatch") -> dict[str, Any]:
    watch.start()
    window = next(windows)
    watch.mark("data wait")
    parts.step(window)
    watch.mark("optimizer")
    parts.average.step_done()
    watch.mark("average")
    return {"step_s": sum(watch.parts_s.values()), "parts_s": watch.parts_s, "peak_mib": peak_mib()}


class Stopwatch:
    """Knows at each moment of a step which part of it has just ended."""

    def __init__(self, step: Any, criterion: Any, model: Any) -> None:
        self.parts_s: dict[str, float] = {}
        # before the second micro-batch it is the backward pass of the first that has ended
        model.register_forward_pre_hook(lambda *_: self.mark("backward" if "loss" in self.parts_s else "preparation"))
        model.register_forward_hook(lambda *_: self.mark("forward"))
        criterion.match = self._timed(criterion.match, before="loss", after="matching")
        step.criterion = self._timed(criterion, before="forward", after="loss")
        step._clip = self._timed(step._clip, before="backward", after="clip")

    def start(self) -> None:
        self.parts_s = {}
        self.last = time.perf_counter()

    def mark(self, part: str) -> None:
        """What has happened since the last mark was `part`."""
        synchronise()
        now = time.perf_counter()
        self.parts_s[part] = self.parts_s.get(part, 0.0) + now - self.last
        self.last = now

    def _timed(self, work: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            self.mark(before)
            result = work(*arguments)
            self.mark(after)
            return result

        return timed


def show_parts(row: dict[str, Any]) -> None:
    from rfdetr_train.loggers.console import print_table

    lines = [["step", *(spread(row[arm]["step_s"], " s") for arm in "ab")]]
    lines += [[part, *(spread(row[arm]["parts_s"][part], " s") for arm in "ab")] for part in row["a"]["parts_s"]]
    lines.append(["peak", *(f"{row[arm]['peak_mib']:.0f} MiB" for arm in "ab")])
    titles = [f"{arm}: {' '.join(row[arm]['overrides']) or 'defaults'}" for arm in "ab"]
    print_table(f"batch {row['batch']}, a / b = {spread(row['a / b'])}", ["part", *titles], lines)


if __name__ == "__main__":
    main()
