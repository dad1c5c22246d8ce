"""Progress of work that counts itself: a bar on a terminal, lines elsewhere."""

import logging
import re

import pytest

from rfdetr_train.loggers.track import Counter


def test_a_bar_that_vanishes_at_the_end(console_of):
    console = console_of(80)
    with Counter("checking [images]", console) as counter:
        for done in range(1, 5):
            counter.show(done, 4)
    assert re.search(r"checking \[images\] ", console.file.getvalue())
    assert console.file.getvalue().endswith("\x1b[2K")


def test_work_that_fails_leaves_no_bar(console_of):
    console = console_of(80)
    with pytest.raises(ValueError, match="broken"), Counter("checking", console) as counter:  # noqa: PT012
        counter.show(1, 4)
        raise ValueError("broken")
    assert console.file.getvalue().endswith("\x1b[2K")


def test_lines_now_and_then_without_a_terminal(console_of, caplog):
    seconds = iter(range(1000))
    console = console_of(terminal=False)
    with caplog.at_level(logging.INFO), Counter("checking", console, clock=lambda: next(seconds)) as counter:
        for done in range(1, 31):
            counter.show(done, 30 if done < 25 else None)
    assert caplog.messages == ["checking 20/30"]


def test_short_work_says_nothing_in_a_pipe(console_of, caplog):
    with caplog.at_level(logging.INFO), Counter("checking", console_of(terminal=False)) as counter:
        counter.show(1, 1)
    assert not caplog.messages
