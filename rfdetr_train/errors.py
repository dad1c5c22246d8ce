"""The exceptions that the command line knows how to show, and how a message helps."""

import difflib
import signal
from collections.abc import Iterable

_SPELT_OUT = 20


class UserError(ValueError):
    """Input that is refused. The message names the value, the place and the remedy; no traceback is shown."""


class JobFailed(RuntimeError):
    """A job that failed and has said so in its own log."""


STOP_SIGNALS = tuple(number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"))
"""What asks a run to save and stop: people, systems, and queues before they take a job off its machine."""


class Interrupted(BaseException):
    """The run was asked to stop by a signal, and has saved itself.

    Not an `Exception`: it ends a sweep too, where a failed job would not.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)  # what it is made of again when it comes from another process
        self.signal_number = signal_number


def require(ok: bool, key: str, value: object, remedy: str) -> None:
    """Refuse `key=value` with `remedy` unless `ok`."""
    if not ok:
        raise UserError(f"{key}={value}: {remedy}")


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """`did you mean X?` for the nearest of `known`, or None when none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else None


def listed(things: Iterable[object], separator: str = ", ") -> str:
    """The first twenty, and how many more there are: `a, b, ..., and 7 more`."""
    texts = list(map(str, things))
    if len(texts) > _SPELT_OUT:
        texts[_SPELT_OUT:] = [f"and {len(texts) - _SPELT_OUT} more"]
    return separator.join(texts)
