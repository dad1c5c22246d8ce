"""The user's own door: classes and functions named by their dotted path."""

import importlib
from typing import Any

from rfdetr_train.errors import UserError


def locate(path: str, key: str) -> Any:
    """The object at `package.module.Name`; `key` is the config key to name in a refusal."""
    module_path, _, attribute = path.rpartition(".")
    if not module_path:
        raise UserError(f"{key}={path}: give a dotted path, such as torch.optim.AdamW")
    try:
        return getattr(importlib.import_module(module_path), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{key}={path}: cannot be imported ({error})") from error
