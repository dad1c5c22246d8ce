"""What is wrong with a data set, in words that its owner can act on."""

from dataclasses import dataclass, replace
from typing import NamedTuple

SEVERITIES = ("error", "warning", "note")
"""The worst first: what training refuses or what falsifies its result; what makes it worse; what is good to know."""
EXAMPLES = 20


class Place(NamedTuple):
    """A picture that shows a finding."""

    split: str
    picture: int
    """Its index in the split."""
    rows: list[int]
    """The boxes that it is about, rows of the raw split."""


@dataclass(frozen=True)
class Finding:
    """One kind of fault in one split, or in several together."""

    kind: str
    """A short name, as duplicate_boxes."""
    severity: str
    split: str
    """Its name; empty for what is about all of them."""
    what: str
    count: int
    examples: list[str]
    """At most EXAMPLES, as the owner finds them in the files."""
    remedy: str
    places: list[Place]
    """Where a picture shows it, at most EXAMPLES."""


def ranked(findings: list[Finding]) -> list[Finding]:
    """The worst first; what file names hold besides characters is written as \\udc80, which every report can take."""
    printable = [
        replace(f, examples=[text.encode("utf-8", "backslashreplace").decode() for text in f.examples])
        for f in findings
    ]
    return sorted(printable, key=lambda finding: SEVERITIES.index(finding.severity))
