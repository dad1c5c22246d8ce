"""The user's own door: classes and functions named by their dotted path."""

import importlib
from collections.abc import Mapping
from typing import Any

from rfdetr_train.errors import UserError, did_you_mean


def locate(path: str, key: str) -> Any:
    """The object at `package.module.Name`; `key` is the config key to name in a refusal."""
    module_path, _, attribute = path.rpartition(".")
    if not module_path:
        raise UserError(f"{key}={path}: give a dotted path, such as torch.optim.AdamW")
    try:
        module = importlib.import_module(module_path)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{key}={path}: cannot be imported ({error})") from error
    if not hasattr(module, attribute):
        hint = did_you_mean(attribute, dir(module)) or f"{module_path} has no {attribute}"
        raise UserError(f"{key}={path}: cannot be imported; {hint}")
    return getattr(module, attribute)


def build(value: Any, key: str) -> Any:
    """`value` with each `{_target_: dotted.path, argument: ...}` in it replaced by what calling the path returns."""
    if isinstance(value, list):
        return [build(item, f"{key}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    arguments = {name: build(item, f"{key}.{name}") for name, item in value.items() if name != "_target_"}
    if "_target_" not in value:
        return arguments
    target = locate(value["_target_"], f"{key}._target_")
    try:
        return target(**arguments)
    except (TypeError, ValueError) as error:
        raise UserError(f"{key}: {value['_target_']} refuses its arguments: {error}") from error
