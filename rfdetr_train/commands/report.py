"""`python -m rfdetr_train report RUN ...`: the page of a run, made again from its files."""

from pathlib import Path

from rfdetr_train.errors import UserError
from rfdetr_train.loggers.console import write_line
from rfdetr_train.loggers.page import write_report


def report(arguments: list[str]) -> None:
    """Write report.html into each of the folders, and name it."""
    if not arguments:
        raise UserError("report: name a run folder, python -m rfdetr_train report RUN")
    for argument in arguments:
        if Path(argument).is_file():
            raise UserError(f"report: {argument} is a file; name the run's folder")
        write_line(f"report: {write_report(Path(argument).expanduser().resolve())}")
