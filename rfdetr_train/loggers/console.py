"""The one terminal that bars, log lines and tables share, so that none of them tears another; and what is shown on it.

Markup, emoji codes and highlighting are off: a class called `[red]` or a path with `:x:` is shown as it is. Only rich
is imported here, because the log handler is set up before a config is checked.
"""

import io
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

log = logging.getLogger(__name__)


class _Terminal(Console):
    """A console whose reader may go away (`| head`): the run goes on, and its log file is the record."""

    def on_broken_pipe(self) -> None:
        """Rich would end the process here."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        log.warning("nobody reads the standard output any more; the log file goes on")


CONSOLE = _Terminal(markup=False, emoji=False, highlight=False)

SHOWN = {"shown_on_console": True}
"""`extra` of a log record whose content the terminal has already got in a better form: only files take it."""

UNLIMITED = 10_000  # columns; rich squeezes a table into the terminal

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


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], console: Console = CONSOLE
) -> None:
    """Show a table, drawn on a terminal and as aligned text in a pipe, and write it to the log.

    Floats have four digits, None is n/a, columns of numbers stand to the right. On a terminal that is too narrow it
    becomes several tables below each other.
    """
    texts = [[_cell(value) for value in row] for row in rows]
    aligned = _aligned(title, columns, texts)
    log.info("%s", aligned, extra=SHOWN)
    encoded = [[encodable(cell, console) for cell in row] for row in texts]
    drawn = _table(columns, encoded, title=Text(encodable(title, console), "bold"), box=box.SIMPLE_HEAD)
    if not console.is_terminal:
        write_line(aligned, console=console)
    elif console.measure(drawn, options=console.options.update(max_width=UNLIMITED)).maximum <= console.width:
        console.print(drawn)
    else:  # a table that is squeezed breaks its numbers in the middle
        for kept in _parts([columns, *texts], console.width):
            part = [[row[k] for k in kept] for row in texts]
            write_line(_aligned(title, [columns[k] for k in kept], part), console=console)
            title = title.removesuffix(" (continued)") + " (continued)"


def _cell(value: object) -> str:
    if value is None:
        return "n/a"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(columns: Sequence[str], rows: list[list[str]], **look: Any) -> Table:
    table = Table(title_justify="left", **look)
    for k, column in enumerate(columns):
        numeric = bool(rows) and all(_is_number(row[k]) for row in rows)
        table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", ""))
    except ValueError:
        return cell == "n/a"
    return True


def _aligned(title: str, columns: Sequence[str], rows: list[list[str]]) -> str:
    """The table as plain text, however wide."""
    paper = Console(file=io.StringIO(), width=UNLIMITED, color_system=None)
    paper.print(_table(columns, rows, box=None, padding=(0, 0, 0, 2)))
    return "\n".join([title, *(line.rstrip() for line in paper.file.getvalue().splitlines())])  # type: ignore[attr-defined]


def _parts(lines: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Columns of tables that fit one below the other, each with the first column."""
    widths = [max(cell_len(line[k]) for line in lines) + 2 for k in range(len(lines[0]))]
    parts = [[0]]
    for k in range(1, len(widths)):
        if len(parts[-1]) > 1 and sum(widths[i] for i in (*parts[-1], k)) > width:
            parts.append([0])
        parts[-1].append(k)
    return parts
