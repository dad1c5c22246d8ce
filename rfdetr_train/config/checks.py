"""Small checks that refuse a value with its key and the remedy."""

from typing import Any

from rfdetr_train.errors import require

MISSING: Any = "???"  # OmegaConf's mark for a value that the user must give


def one_of(key: str, value: object, *choices: str) -> None:
    require(value in choices, key, value, f"choose one of {', '.join(choices)}")


def positive(prefix: str, section: object, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        require(value is None or value > 0, f"{prefix}.{name}", value, "give a number above 0")


def fraction(key: str, value: float) -> None:
    require(0.0 <= value <= 1.0, key, value, "give a number from 0 to 1")


def not_negative(prefix: str, section: object, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        require(value is None or value >= 0, f"{prefix}.{name}", value, "give 0 or a larger number")
