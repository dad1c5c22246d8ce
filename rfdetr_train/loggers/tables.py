"""Tables for people: drawn on a terminal, and aligned text in pipes and log files."""

import logging
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rfdetr_train.loggers.console import CONSOLE, SHOWN, encodable, write_line

log = logging.getLogger(__name__)

UNLIMITED = 10_000  # columns; rich would measure a table squeezed into the terminal


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], console: Console = CONSOLE
) -> None:
    """Show a table and write it to the log: floats with four digits, None as n/a, columns of numbers to the right."""
    texts = [[_cell(value) for value in row] for row in rows]
    aligned = _aligned_text(title, columns, texts)
    log.info("%s", aligned, extra=SHOWN)
    drawn = _drawn_table(title, columns, texts, console)
    if not console.is_terminal:
        write_line(aligned, console=console)
    elif console.measure(drawn, options=console.options.update(max_width=UNLIMITED)).maximum <= console.width:
        console.print(drawn)
    else:  # a table that is squeezed breaks its numbers in the middle
        for part_title, kept in _parts(title, columns, texts, console.width):
            part = [[row[k] for k in kept] for row in texts]
            write_line(_aligned_text(part_title, [columns[k] for k in kept], part), console=console)


def _cell(value: object) -> str:
    if value is None:
        return "n/a"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _drawn_table(title: str, columns: Sequence[str], rows: list[list[str]], console: Console) -> Table:
    """Narrow terminals fold long cells into lines rather than cut them."""
    table = Table(title=Text(encodable(title, console), "bold"), title_justify="left", box=box.SIMPLE_HEAD)
    for column, to_right in zip(columns, _numeric(columns, rows), strict=True):
        table.add_column(encodable(column, console), justify="right" if to_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(encodable(cell, console)) for cell in row))
    return table


def _aligned_text(title: str, columns: Sequence[str], rows: list[list[str]]) -> str:
    lines = [list(columns), *rows]
    widths = [max(cell_len(line[k]) for line in lines) for k in range(len(columns))]
    to_right = _numeric(columns, rows)
    return "\n".join([title, *("  " + _aligned_line(line, widths, to_right) for line in lines)])


def _aligned_line(cells: list[str], widths: list[int], to_right: list[bool]) -> str:
    padded = []
    for cell, width, right in zip(cells, widths, to_right, strict=True):
        space = " " * (width - cell_len(cell))
        padded.append(space + cell if right else cell + space)
    return "  ".join(padded).rstrip()


def _parts(title: str, columns: Sequence[str], rows: list[list[str]], width: int) -> Iterator[tuple[str, list[int]]]:
    """Titles and columns of tables that fit one below the other, each with the first column."""
    widths = [max(cell_len(line[k]) for line in (columns, *rows)) + 2 for k in range(len(columns))]
    kept: list[int] = [0]
    for k in range(1, len(columns)):
        if len(kept) > 1 and sum(widths[i] for i in (*kept, k)) > width:
            yield title, kept
            title, kept = f"{title} (continued)".replace(" (continued) (continued)", " (continued)"), [0]
        kept.append(k)
    yield title, kept


def _numeric(columns: Sequence[str], rows: list[list[str]]) -> list[bool]:
    return [bool(rows) and all(_is_number(row[k]) for row in rows) for k in range(len(columns))]


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", ""))
    except ValueError:
        return cell == "n/a"
    return True
