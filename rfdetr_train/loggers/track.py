"""Bars as this application draws them, and the progress of work that counts itself.

Bars are drawn when something happens, at most ten times a second, and by no thread of their own: so nothing is drawn in
the middle of another's output, and a forked process can inherit no lock of the terminal.
"""

import logging
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from rfdetr_train.loggers.console import CONSOLE, draws_bars

log = logging.getLogger(__name__)

Clock = Callable[[], float]

SECONDS_BETWEEN_DRAWINGS = 0.1
SECONDS_BETWEEN_LINES = 20.0


class Bars(Progress):
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


class LineCounter:
    """Logs `evaluation 120/1250` when enough time has passed since the last line."""

    def __init__(self, description: str, total: int, clock: Clock):
        self._description, self._total, self._clock = description, total, clock
        self._done, self._logged = 0, clock()

    def advance(self) -> None:
        """Count one."""
        self._done += 1
        if self._clock() - self._logged >= SECONDS_BETWEEN_LINES:
            self._logged = self._clock()
            log.info("%s %d/%d", self._description, self._done, self._total)


class Counter:
    """A context in which `show(done, total)` becomes a bar on a terminal, now and then a line elsewhere."""

    def __init__(self, description: str, console: Console = CONSOLE, clock: Clock = time.monotonic) -> None:
        self._description = description
        self._clock = clock
        self._said = clock()
        self._bars = Bars(console, clock) if draws_bars(console) else None
        self._task: TaskID | None = None

    def __enter__(self) -> "Counter":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, done: int, total: int | None) -> None:
        """`done` of `total` (None: unknown) are over."""
        if self._bars is not None:
            self._draw(self._bars, done, total)
        elif self._clock() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = self._clock()
            log.info("%s %d/%s", self._description, done, total if total is not None else "?")

    def _draw(self, bars: Bars, done: int, total: int | None) -> None:
        if self._task is None:
            self._task = bars.add_task(self._description, total=total, note="")
            bars.start()
        bars.update(self._task, completed=done, total=total)
        bars.draw()
