"""Tables on terminals of two widths, in a pipe, and in the log."""

import io
import logging
import re

import pytest
from rich.console import Console

from rfdetr_train.loggers.tables import print_table

COLUMNS = ("class", "AP", "boxes")
ROWS = [("[red] cell", 0.123456, 12), ("数据", None, 1234), ("a", 0.5, 0)]
ALIGNED = [
    "Average precision",
    "  class           AP  boxes",
    "  [red] cell  0.1235     12",
    "  数据           n/a   1234",
    "  a              0.5      0",
]


def test_in_a_pipe_and_in_the_log(console_of, handler_on, caplog):
    console = console_of(terminal=False)
    handler_on(console)
    with caplog.at_level(logging.INFO):
        print_table("Average precision", COLUMNS, ROWS, console)
    assert console.file.getvalue().splitlines() == ALIGNED
    assert caplog.messages == ["\n".join(ALIGNED)]


@pytest.mark.parametrize("width", [80, 200])
def test_on_a_terminal_once(console_of, handler_on, caplog, width):
    console = console_of(width)
    handler_on(console)
    with caplog.at_level(logging.INFO):
        print_table("Average precision", COLUMNS, ROWS, console)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())
    assert shown.count("Average precision") == 1
    assert re.search(r"\[red\] cell +0\.1235 +12", shown)
    assert re.search(r"数据 +n/a +1234", shown)
    assert caplog.messages == ["\n".join(ALIGNED)]


def test_nothing_is_cut_on_a_narrow_terminal(console_of):
    console = console_of(40)
    name = "encoder.block11.attention.query.weight.of.the.last.layer"
    print_table("Groups", ("name", "lr"), [(name, "1.0e-4")], console)
    shown = "".join(console.file.getvalue().split())
    assert name in shown
    assert "1.0e-4" in shown


def test_paths_are_whole_in_a_pipe(console_of):
    console = console_of(terminal=False)
    path = "/data/" + "folder/" * 40
    print_table("Files", ("path",), [(path,)], console)
    assert path in console.file.getvalue()


def test_empty_table(console_of):
    console = console_of(terminal=False)
    print_table("Dropped", ("id", "reason"), [], console)
    assert console.file.getvalue() == "Dropped\n  id  reason\n"


def test_a_table_too_wide_for_the_terminal_becomes_several(capsys):
    console = Console(file=io.StringIO(), force_terminal=True, width=40, markup=False)
    columns = ["name", *(f"metric{i}" for i in range(6))]
    print_table("title", columns, [["a", *(0.123456 + i for i in range(6))]], console)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert all(len(line) <= 40 for line in lines)
    assert lines[0] == "title"
    assert "title (continued)" in lines
    assert sum(line.split()[:1] == ["a"] for line in lines) == 2
    assert "5.123" in " ".join(lines)
