"""The first signal is noted, the second ends at once, and nothing is left behind."""

import os
import signal

import pytest

from rfdetr_train.engine.signals import StopSignals
from rfdetr_train.errors import STOP_SIGNALS, Interrupted


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_first_noted_second_at_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as signals:
        signals.raise_if_received()
        os.kill(os.getpid(), number)
        assert signals.received == number
        with pytest.raises(Interrupted) as interruption:
            signals.raise_if_received()
        assert interruption.value.signal_number == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before
