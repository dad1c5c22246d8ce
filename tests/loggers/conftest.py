import io
import logging

import pytest
from rich.console import Console

from rfdetr_train.loggers.console import ConsoleHandler


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def make_console(width=80, terminal=True, **options):
    stream = Terminal() if terminal else io.StringIO()
    size = {"width": width, "height": 40} if terminal else {}
    return Console(
        file=stream, force_terminal=terminal or None, markup=False, emoji=False, highlight=False, **size, **options
    )


@pytest.fixture
def console_of(monkeypatch):
    """Makes a console of some width, or one without a terminal; the environment has no say."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return make_console


@pytest.fixture
def handler_on():
    """Sends the package's log through a ConsoleHandler to a console, as a run does."""
    package = logging.getLogger("rfdetr_train")
    handlers = []
    package.propagate = False  # a handler that an earlier test left at the root would write into the console

    def attach(console):
        handlers.append(ConsoleHandler(console))
        package.addHandler(handlers[-1])
        package.setLevel(logging.INFO)

    yield attach
    for handler in handlers:
        package.removeHandler(handler)
    package.setLevel(logging.NOTSET)
    package.propagate = True
