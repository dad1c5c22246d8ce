"""Overrides in the grammar of Hydra's command line."""

import re


def quoted(value: object) -> str:
    """`value` as an override takes it, whatever commas, brackets, quotes or spaces it has.

    A backslash is one by itself, but before a quote it escapes: there Hydra wants it twice.
    """
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: 2 * found[1] + found[2].replace("'", "\\'"), str(value))
    return f"'{escaped}'"
