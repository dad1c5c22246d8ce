"""SIGINT, SIGTERM, SIGUSR1 and SIGUSR2: the step in progress is finished and saved before the run ends."""

import logging
import signal
from collections.abc import Sequence
from types import FrameType, TracebackType

from rfdetr_train import distributed
from rfdetr_train.errors import STOP_SIGNALS, Interrupted

log = logging.getLogger(__name__)


class StopSignals:
    """While it is entered, the first signal is only noted (ask `received`); a second one ends the run at once.

    What one of several processes gets counts once all know of it, so that all stop after the same step.
    """

    def __init__(self, doing: str = "finishing the step, then saving") -> None:
        """`doing` is what the first signal is answered with."""
        self.doing = doing
        self.received: int | None = None
        self._noted: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted is not None:
            raise KeyboardInterrupt
        self._noted = number
        if distributed.size() == 1:
            self.received = number
        log.warning("%s: %s; a second one quits at once", signal.Signals(number).name, self.doing)

    def votes(self) -> list[float]:
        """What this process has got, to be summed over all and given to `settle`."""
        return [float(self._noted == number) for number in STOP_SIGNALS]

    def settle(self, sums: Sequence[float]) -> None:
        """Take the signal that any process has got; `sums` of all processes' votes."""
        got = [number for number, votes in zip(STOP_SIGNALS, sums, strict=True) if votes > 0]
        self.received = self.received or (got[0] if got else None)

    def agree(self) -> None:
        """All processes settle what they have got; all must call it."""
        self.settle(distributed.sums(self.votes()))

    def raise_if_noted_anywhere(self) -> None:
        """Raise `Interrupted` if a signal came to any process: where nothing will be saved, nobody needs to agree."""
        noted = self._noted or distributed.stopped()
        if noted is not None:
            distributed.stop_all(noted)
            raise Interrupted(noted)

    def raise_if_received(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self.received is not None:
            raise Interrupted(self.received)
