"""How far a run, or work that counts itself, is: bars on a terminal, plain log lines elsewhere.

Bars are drawn when something happens, at most ten times a second, and by no thread of their own: so nothing is drawn in
the middle of another's output, and a forked process can inherit no lock of the terminal.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from rich import progress as rich_progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.table import Column

from rfdetr_train.loggers.console import CONSOLE, draws_bars

log = logging.getLogger(__name__)

SHOWN_PARTS = ("class", "box", "giou")  # of the last layer; metrics.jsonl has those of every layer
WIDE_TERMINAL = 120  # columns from which on the parts of the loss have room beside the bar

Clock = Callable[[], float]

SECONDS_BETWEEN_DRAWINGS = 0.1
SECONDS_BETWEEN_LINES = 20.0


class Bars(rich_progress.Progress):
    """Rows of what, bar (it takes the room that is left), count and note; they vanish when stopped."""

    def __init__(self, console: Console, clock: Clock):
        super().__init__(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=5)),
            MofNCompleteColumn(table_column=Column(no_wrap=True, justify="right")),
            TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self._clock = clock
        self._drawn = -SECONDS_BETWEEN_DRAWINGS

    def draw(self, now: bool = False) -> None:
        """Draw what has changed, unless the last drawing was a moment ago."""
        if now or self._clock() - self._drawn >= SECONDS_BETWEEN_DRAWINGS:
            self._drawn = self._clock()
            self.refresh()


class Counter(AbstractContextManager["Counter"]):
    """A context in which `show(done, total)` becomes a bar on a terminal, now and then a line elsewhere."""

    def __init__(
        self,
        description: str,
        console: Console | None = CONSOLE,
        clock: Clock = time.monotonic,
        bars: Bars | None = None,
    ) -> None:
        """`bars` that others share; without them and without a console it is lines."""
        self._description, self._clock, self._said = description, clock, clock()
        self._bars = Bars(console, clock) if bars is None and console and draws_bars(console) else bars
        self._task: TaskID | None = None

    def __exit__(self, *exception: object) -> None:
        self.close()

    def show(self, done: int, total: int | None, note: str = "") -> None:
        """`done` of `total` (None: unknown) are over; beside the bar stands `note`."""
        if self._bars is not None:
            is_new = self._task is None
            self.set(done, total, note)
            self._bars.draw(now=is_new)
        elif self._clock() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = self._clock()
            log.info("%s %d/%s", self._description, done, total if total is not None else "?")

    def set(self, done: int, total: int | None, note: str = "") -> None:
        """What the next drawing shows."""
        assert self._bars is not None
        if self._task is None:
            self._task = self._bars.add_task(self._description, total=total, note=note)
            self._bars.start()
        self._bars.update(self._task, completed=done, total=total, note=note)

    def close(self) -> None:
        """Take the bar away; asking again does nothing."""
        if self._bars is not None and self._task is not None:
            if len(self._bars.tasks) == 1:
                self._bars.stop()
            self._bars.remove_task(self._task)
            self._bars.draw(now=True)
            self._task = None


class Progress(AbstractContextManager["Progress"]):
    """Counts steps, epochs and time. Bars for the run, the epoch and an evaluation vanish at the end, the epochs' lines
    stay; without bars there is a line every few steps as well."""

    def __init__(
        self,
        total_steps: int = 0,
        steps_done: int = 0,
        clock: Clock = time.monotonic,
        bars: Bars | None = None,
        log_every_steps: int = 10,
    ):
        """`total_steps` of the whole run, `steps_done` of them before this process (0 and 0: evaluation only)."""
        self.total_steps = total_steps
        self.steps_done = steps_done
        self._clock = clock
        self._started = clock()
        self._steps_before = steps_done
        self.bars = bars
        self._log_every_steps = log_every_steps
        self._run, self._evaluation = self._counter("run"), self._counter("evaluation")
        self._begin_epoch("evaluation", 0, 0)
        if total_steps:
            self._run.show(steps_done, total_steps)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start_epoch(self, epoch: int, num_epochs: int, num_steps: int, steps_done: int = 0) -> None:
        """Begin epoch `epoch` (from 0) of `num_steps` steps, `steps_done` of them before a resume."""
        self._epoch.close()
        self._begin_epoch(f"epoch {epoch + 1}/{num_epochs}", num_steps, steps_done)
        if self.bars is not None:
            self._epoch.show(steps_done, num_steps)

    def _begin_epoch(self, title: str, num_steps: int, steps_done: int) -> None:
        self.epoch_title = title
        self._epoch = self._counter(title)
        self.epoch_steps = num_steps
        self.epoch_steps_done = steps_done
        self._epoch_started = self._clock()
        self._losses: list[float] = []
        self._record: dict[str, Any] = {}

    def step(self, record: Mapping[str, Any]) -> None:
        """Count one optimizer step.

        `record` has keys of a train row of metrics.jsonl. Not every step has them all: of a key that is missing, the
        display keeps the value of an earlier step.
        """
        self.steps_done += 1
        self.epoch_steps_done += 1
        self._record |= record
        if record.get("loss") is not None and math.isfinite(record["loss"]):
            self._losses.append(record["loss"])
        self._show_step()

    def end_epoch(self, metrics: Mapping[str, Any]) -> None:
        """Log the epoch's line: its mean loss, then `metrics` in their order (none without an evaluation)."""
        mean_loss = {"loss": sum(self._losses) / len(self._losses)} if self._losses else {}
        values = [f"{key} {_number(value)}" for key, value in (mean_loss | dict(metrics)).items()]
        took = _duration(self._clock() - self._epoch_started)
        log.info("%s", "  ".join([f"{self.epoch_title} done in {took}", *values]))

    def eta(self) -> str:
        """Time that the remaining steps take at the mean speed of this process so far, evaluations included."""
        done = self.steps_done - self._steps_before
        if not done:
            return "-:--:--"
        return _duration((self._clock() - self._started) / done * max(0, self.total_steps - self.steps_done))

    def step_text(self, with_parts: bool) -> str:
        """`loss 12.34  lr 1.00e-04  12.3 img/s  1.2 GiB`, with parts of the loss where they have room."""
        record = self._record
        texts = [f"loss {_number(record['loss'])}"] if "loss" in record else []
        if with_parts:
            texts += [f"{part} {_number(record[f'loss_{part}'])}" for part in SHOWN_PARTS if f"loss_{part}" in record]
        if record.get("lr"):
            lr = record["lr"]
            texts.append(f"lr {max(lr.values()) if isinstance(lr, Mapping) else lr:.2e}")
        if record.get("images_per_s") is not None:
            texts.append(f"{record['images_per_s']:.1f} img/s")
        if record.get("memory_gib") is not None:
            texts.append(f"{record['memory_gib']:.1f} GiB")
        return "  ".join(texts)

    def start_evaluation(self, num_batches: int) -> None:
        """Begin an evaluation of `num_batches` batches."""
        self._num_batches, self._batches_done = num_batches, 0
        self._evaluation = self._counter("evaluation")
        self._evaluation.show(0, num_batches)

    def advance_evaluation(self) -> None:
        """Count one batch."""
        self._batches_done += 1
        self._evaluation.show(self._batches_done, self._num_batches)

    def end_evaluation(self) -> None:
        """End the evaluation, finished or not."""
        self._evaluation.close()

    def close(self) -> None:
        """Leave the terminal as it was; may be called twice."""
        for counter in (self._evaluation, self._epoch, self._run):
            counter.close()

    def _counter(self, description: str) -> Counter:
        return Counter(description, None, self._clock, self.bars)

    def _show_step(self) -> None:
        done, total = self.epoch_steps_done, self.epoch_steps
        if self.bars is not None:
            self._run.set(self.steps_done, self.total_steps, f"ETA {self.eta()}")
            self._epoch.show(done, total, self.step_text(with_parts=self.bars.console.width >= WIDE_TERMINAL))
        elif done == 1 or done % self._log_every_steps == 0 or done == total:
            texts = [self.epoch_title, f"step {done}/{total}", self.step_text(with_parts=True), f"ETA {self.eta()}"]
            log.info("%s", "  ".join(texts))


def make_progress(
    mode: str = "auto",
    total_steps: int = 0,
    steps_done: int = 0,
    log_every_steps: int = 10,
    console: Console = CONSOLE,
) -> Progress:
    """The progress of a run for `logger.progress`: bar, plain, or auto (bars on a terminal only).

    `bar` trusts what rich takes for a terminal, FORCE_COLOR and TTY_COMPATIBLE included; where that is none it says so
    and gives plain lines.
    """
    if mode == "bar" and not console.is_terminal:
        log.warning("logger.progress=bar: the output is no terminal, so progress comes as plain lines")
    if (mode == "bar" and console.is_terminal) or (mode == "auto" and draws_bars(console)):
        return Progress(total_steps, steps_done, bars=Bars(console, time.monotonic))
    return Progress(total_steps, steps_done, log_every_steps=log_every_steps)


def _number(value: object) -> str:
    if value is None:
        return "n/a"
    return f"{value:#.4g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    """`1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
