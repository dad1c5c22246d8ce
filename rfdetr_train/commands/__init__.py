"""One module for each command."""

import importlib
from collections.abc import Callable
from typing import Any


def find_command(command: str) -> Callable[..., Any]:
    """The function that a command is: `commands/evaluate.py` has `evaluate`."""
    return getattr(importlib.import_module(f"rfdetr_train.commands.{command}"), command)
