"""What is quoted comes back from Hydra's own parser as it was."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rfdetr_train.override import quoted


@pytest.mark.parametrize(
    "value", ["runs/a", "it's, [here] {b: 1} = $x", r"C:\new\'s", "a\\b\\", "", "choice(1,2)", "null", "#sha256=ab"]
)
def test_hydra_reads_what_was_meant(value: str) -> None:
    (override,) = OverridesParser.create().parse_overrides([f"run_dir={quoted(value)}"])
    assert not override.is_sweep_override()
    assert override.value() == value
