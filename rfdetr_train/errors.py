"""The one exception that means "the user can mend this"."""


class UserError(ValueError):
    """Input that is refused: the message names the value, the place and the remedy, and is shown without a traceback."""


def require(ok: bool, key: str, value: object, remedy: str) -> None:
    """Refuse `key=value` with `remedy` unless `ok`."""
    if not ok:
        raise UserError(f"{key}={value}: {remedy}")
