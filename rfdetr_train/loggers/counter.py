"""Progress of work that reports itself: `show(done, total)` becomes a bar on a terminal, now and then a line elsewhere."""

import logging
import time

from rich.console import Console
from rich.progress import TaskID

from rfdetr_train.loggers.console import CONSOLE, draws_bars
from rfdetr_train.loggers.track import SECONDS_BETWEEN_LINES, Bars, Clock

logger = logging.getLogger(__name__)


class Counter:
    """A context; nothing is shown before the first report."""

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
            logger.info("%s %d/%s", self._description, done, total if total is not None else "?")

    def _draw(self, bars: Bars, done: int, total: int | None) -> None:
        if self._task is None:
            self._task = bars.add_task(self._description, total=total, note="")
            bars.start()
        bars.update(self._task, completed=done, total=total)
        bars.draw()
