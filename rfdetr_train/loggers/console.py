"""The one terminal that bars, log lines and tables share, so that none of them tears another.

Markup, emoji codes and highlighting are off: a class called `[red]` or a path with `:x:` is shown as it is. Only rich
is imported here, because the log handler is set up before a config is checked.
"""

import logging
import os
import sys

from rich.console import Console
from rich.text import Text


class _Terminal(Console):
    """A console whose reader may go away (`| head`): the run goes on, and its log file is the record."""

    def on_broken_pipe(self) -> None:
        """Rich would end the process here."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        logging.getLogger(__name__).warning("nobody reads the standard output any more; the log file goes on")


CONSOLE = _Terminal(markup=False, emoji=False, highlight=False)

SHOWN = {"shown_on_console": True}
"""`extra` of a log record whose content the terminal has already got in a better form: only files take it."""

STYLE_OF_LEVEL = ((logging.ERROR, "bold red"), (logging.WARNING, "yellow"))


class ConsoleHandler(logging.Handler):
    """Writes `LEVEL message` lines above the bars. Tracebacks are left to the log file."""

    def __init__(self, console: Console = CONSOLE):
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a failure is logging's own to report."""
        if getattr(record, "shown_on_console", False):
            return
        try:
            style = next((style for level, style in STYLE_OF_LEVEL if record.levelno >= level), "")
            write_line(f"{record.levelname:<7} {record.getMessage()}", style, self.console)
        except Exception:
            self.handleError(record)


def write_line(line: str, style: str = "", console: Console = CONSOLE) -> None:
    """Write text whole, however narrow the terminal or pipe: nothing is cut, and paths stay in one piece."""
    console.print(Text(encodable(line, console), style), soft_wrap=True)


def encodable(text: str, console: Console = CONSOLE) -> str:
    """The text with `\\u6570` for what the terminal's encoding lacks, where printing would raise."""
    return text.encode(console.encoding, "backslashreplace").decode(console.encoding)


def draws_bars(console: Console = CONSOLE) -> bool:
    """Whether bars can be drawn: FORCE_COLOR makes rich take a pipe for a terminal, hence the last question."""
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


def silence() -> None:
    """Show and log nothing more in this process: of several processes one speaks."""
    CONSOLE.quiet = True
    logging.getLogger().handlers = [logging.NullHandler()]
