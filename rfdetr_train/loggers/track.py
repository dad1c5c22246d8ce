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


class Counter:
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

    def __enter__(self) -> "Counter":
        return self

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
