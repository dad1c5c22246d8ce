"""SIGINT and SIGTERM: the step in progress is finished and saved before the run ends."""

import logging
import signal
from types import FrameType, TracebackType

from rfdetr_train.errors import Interrupted

log = logging.getLogger(__name__)


class StopSignals:
    """While it is entered, the first signal is only noted (ask `received`); a second one ends the run at once."""

    def __init__(self, doing: str = "finishing the step, then saving") -> None:
        """`doing` is what the first signal is answered with."""
        self.doing = doing
        self.received: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        log.warning("%s: %s; a second one quits at once", signal.Signals(number).name, self.doing)

    def raise_if_received(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self.received is not None:
            raise Interrupted(self.received)
