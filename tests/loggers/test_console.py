"""Log lines on the terminal: plain, whole, and never a traceback."""

import io
import logging
import logging.config
import subprocess
import sys

import pytest

from rfdetr_train.loggers.console import SHOWN, draws_bars, encodable

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


@pytest.mark.parametrize("module", ["progress", "console", "tables", "track", "files", "plots", "sheet", "figure"])
def test_import_takes_neither_torch_nor_matplotlib(module):
    code = f"import sys, rfdetr_train.loggers.{module}; print({{'torch', 'matplotlib'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
