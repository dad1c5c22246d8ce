"""Long lists in messages."""

from collections.abc import Iterable

_SPELT_OUT = 20


def listed(things: Iterable[object], separator: str = ", ") -> str:
    """The first twenty, and how many more there are: `a, b, ..., and 7 more`."""
    texts = list(map(str, things))
    if len(texts) > _SPELT_OUT:
        texts[_SPELT_OUT:] = [f"and {len(texts) - _SPELT_OUT} more"]
    return separator.join(texts)
