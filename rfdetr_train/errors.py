"""The exceptions that the command line knows how to show."""


class UserError(ValueError):
    """Input that is refused. The message names the value, the place and the remedy; no traceback is shown."""


class JobFailed(RuntimeError):
    """A job that failed and has said so in its own log."""


class Interrupted(BaseException):
    """The run was asked to stop by a signal, and has saved itself.

    Not an `Exception`: it ends a sweep too, where a failed job would not.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"interrupted by signal {signal_number}")
        self.signal_number = signal_number


def require(ok: bool, key: str, value: object, remedy: str) -> None:
    """Refuse `key=value` with `remedy` unless `ok`."""
    if not ok:
        raise UserError(f"{key}={value}: {remedy}")
