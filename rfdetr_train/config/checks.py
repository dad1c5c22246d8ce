"""What the value of a key must be, said where its field is declared: `epochs: Annotated[int, POSITIVE] = 100`."""

import functools
import math
import re
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, get_type_hints

from rfdetr_train.errors import require

MISSING: Any = "???"  # OmegaConf's mark for a value that the user must give


class Rule(NamedTuple):
    """What holds of a value that is given, and what is said where it does not."""

    holds: Callable[[Any], bool]
    remedy: str


POSITIVE = Rule(lambda value: 0 < value < math.inf, "give a number above 0")
UP_TO_1000 = Rule(lambda value: 0 < value <= 1000, "give a number from 1 to 1000")
NOT_NEGATIVE = Rule(lambda value: 0 <= value < math.inf, "give 0 or a larger number")
SHARE = Rule(lambda value: 0.0 <= value <= 1.0, "give a number from 0 to 1")
BELOW_ONE = Rule(lambda value: 0.0 <= value < 1.0, "give a number from 0 up to but not including 1")
COUNT_OR_AUTO = Rule(
    lambda value: value == "auto" or (isinstance(value, int) and value > 0), "give a number above 0, or auto"
)
FOLDER = Rule(bool, "give a folder")


def one_of(*choices: str) -> Rule:
    """The value is one of `choices`."""
    return Rule(lambda value: value in choices, f"choose one of {', '.join(choices)}")


class Section:
    """A section of the config, whose values are checked when it is made: field by field, then in `_check`."""

    place: ClassVar[str] = ""
    """Where it stands, for messages."""

    def __init_subclass__(cls, place: str | None = None) -> None:
        if place is not None:
            cls.place = f"{place}."

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, rule in _rules(kind):
            value = getattr(self, name)
            require(
                value is None or rule.holds(value), f"{self.place}{name}", value if value != "" else "''", rule.remedy
            )
        self._check()

    def _check(self) -> None:
        """What is to be said of several values together."""


@functools.cache
def _rules(section: Any) -> list[tuple[str, Rule]]:
    hints = get_type_hints(section, include_extras=True)
    return [(name, rule) for name, hint in hints.items() for rule in getattr(hint, "__metadata__", ())]


def is_secure(address: str) -> bool:
    """Whether an address is https, or http of this very machine."""
    return re.match(r"https://[^/]|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/|$)", address, re.I) is not None


def check_address(key: str, value: str) -> None:
    """Refuse an address that is not secure, or with a fragment that is no checksum."""
    require(is_secure(value), key, value, "only https:// addresses are fetched")
    checksum = value.partition("#")[2]
    ok = re.fullmatch(r"(md5=[0-9a-f]{32}|sha256=[0-9a-f]{64})?", checksum, re.I) is not None
    require(ok, key, value, "after # give md5=<32 hex digits> or sha256=<64 hex digits>")
