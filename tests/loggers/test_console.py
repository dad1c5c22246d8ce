"""Log lines on the terminal: plain, whole, and never a traceback."""

import io
import logging
import logging.config
import re
import subprocess
import sys

import pytest
from rich.console import Console

from rfdetr_train.loggers.console import SHOWN, draws_bars, encodable, print_table

LOG = logging.getLogger("rfdetr_train.test")
LONG_PATH = "/data/" + "a-very-long-folder-name/" * 12 + "image.jpg"


def test_level_and_message_without_markup(console_of, handler_on):
    console = console_of(terminal=False)
    handler_on(console)
    LOG.info("class %s in %s", "[red]", ":smile: [/bold]")
    LOG.warning("careful")
    assert console.file.getvalue() == "INFO    class [red] in :smile: [/bold]\nWARNING careful\n"


def test_long_paths_stay_in_one_piece_in_a_pipe(console_of, handler_on):
    console = console_of(terminal=False)
    handler_on(console)
    LOG.info("reading %s", LONG_PATH)
    assert console.file.getvalue() == f"INFO    reading {LONG_PATH}\n"


@pytest.mark.parametrize("width", [80, 200])
def test_warnings_and_errors_stand_out_on_a_terminal(console_of, handler_on, width):
    console = console_of(width)
    handler_on(console)
    for log in (LOG.info, LOG.warning, LOG.error):
        log("reading %s", LONG_PATH)
    info, warning, error = console.file.getvalue().splitlines()
    assert info == f"INFO    reading {LONG_PATH}"
    assert warning.startswith("\x1b[33mWARNING reading")
    assert error.startswith("\x1b[1;31mERROR   reading")


def test_traceback_is_left_to_the_log_file(console_of, handler_on):
    console = console_of(terminal=False)
    handler_on(console)
    try:
        raise ValueError("inner")
    except ValueError:
        LOG.exception("the run failed")
    assert console.file.getvalue() == "ERROR   the run failed\n"


def test_records_shown_in_a_better_form_are_skipped(console_of, handler_on):
    console = console_of(terminal=False)
    handler_on(console)
    LOG.info("a table", extra=SHOWN)
    assert console.file.getvalue() == ""


def test_configured_by_name(capsys):
    """As the application's logging config names it."""
    handlers = {"console": {"class": "rfdetr_train.loggers.console.ConsoleHandler"}}
    logger = {"handlers": ["console"], "level": "INFO", "propagate": False}
    config = {"version": 1, "handlers": handlers, "loggers": {"by_name": logger}, "disable_existing_loggers": False}
    logging.config.dictConfig(config)
    logging.getLogger("by_name").warning("seen")
    assert capsys.readouterr().out == "WARNING seen\n"


def test_what_the_encoding_lacks_is_escaped(console_of):
    console = console_of(terminal=False)
    console.file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert encodable("class 数 é", console) == "class \\u6570 \\xe9"


def test_bars_need_a_terminal_that_can_move_its_cursor(console_of, monkeypatch):
    assert draws_bars(console_of())
    assert not draws_bars(console_of(terminal=False))
    forced = console_of()
    forced.file = io.StringIO()  # what FORCE_COLOR does to a pipe
    assert forced.is_terminal
    assert not draws_bars(forced)
    monkeypatch.setenv("TERM", "dumb")
    assert not draws_bars(console_of())


@pytest.mark.parametrize("module", ["progress", "console", "files", "plots", "sheet", "figure", "page"])
def test_import_takes_neither_torch_nor_matplotlib(module):
    code = f"import sys, rfdetr_train.loggers.{module}; print({{'torch', 'matplotlib'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


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
