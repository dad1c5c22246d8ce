"""Small checks that refuse a value with its key and the remedy."""

import math
import re
from typing import Any

from rfdetr_train.errors import require

MISSING: Any = "???"  # OmegaConf's mark for a value that the user must give


def one_of(key: str, value: object, *choices: str) -> None:
    """Refuse a value that is none of `choices`."""
    require(value in choices, key, value, f"choose one of {', '.join(choices)}")


def positive(section_key: str, section: object, *names: str) -> None:
    """Refuse fields of `section` that are given and not above 0; `section_key` is where the section stands."""
    for name in names:
        value = getattr(section, name)
        ok = value is None or 0 < value < math.inf
        require(ok, f"{section_key}.{name}".lstrip("."), value, "give a number above 0")


def not_negative(section_key: str, section: object, *names: str) -> None:
    """Refuse fields of `section` that are given and below 0; `section_key` is where the section stands."""
    for name in names:
        value = getattr(section, name)
        ok = value is None or 0 <= value < math.inf
        require(ok, f"{section_key}.{name}".lstrip("."), value, "give 0 or a larger number")


def number_or_auto(key: str, value: object) -> None:
    """Refuse what is neither a whole number above 0 nor the word auto."""
    require(value == "auto" or (isinstance(value, int) and value > 0), key, value, "give a number above 0, or auto")


def fraction(key: str, value: float) -> None:
    """Refuse a value outside 0 to 1."""
    require(0.0 <= value <= 1.0, key, value, "give a number from 0 to 1")


def is_secure(address: str) -> bool:
    """Whether an address is https, or http of this very machine."""
    return re.match(r"https://[^/]|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/|$)", address, re.I) is not None


def address(key: str, value: str) -> None:
    """Refuse an address that is not secure, or with a fragment that is no checksum."""
    require(is_secure(value), key, value, "only https:// addresses are fetched")
    checksum = value.partition("#")[2]
    ok = re.fullmatch(r"(md5=[0-9a-f]{32}|sha256=[0-9a-f]{64})?", checksum, re.I) is not None
    require(ok, key, value, "after # give md5=<32 hex digits> or sha256=<64 hex digits>")
