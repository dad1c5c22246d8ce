"""The groups of the reference package's optimizers, from the names of its parameters."""

import json
from pathlib import Path

import pytest

from rfdetr_train.checkpoint.saved_optimizer import reference_groups, reference_order

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_order_of_the_references_groups():
    """Its own list for nano: everything else, the encoder, the decoder."""
    rows = json.loads((FIXTURES / "reference_param_groups.json").read_text())["nano"]["parameters"]
    names = [row["name"] for row in rows]
    encoder_first = sorted(names, key=lambda name: not name.startswith("backbone.0.encoder."))
    assert encoder_first != names
    assert reference_order(encoder_first) == names


@pytest.mark.parametrize("model", ["nano", "small", "medium"])
def test_how_newer_releases_join_the_groups(model: str):
    """By equal hyperparameters in order of appearance, here from the rates and decays that the reference gives."""
    rows = json.loads((FIXTURES / "reference_param_groups.json").read_text())[model]["parameters"]
    joined: dict[tuple[float, float], list[str]] = {}
    for row in rows:
        joined.setdefault((row["lr"], row["weight_decay"]), []).append(row["name"])
    assert reference_groups(row["name"] for row in rows) == list(joined.values())


@pytest.mark.parametrize(("recipe", "groups"), [
    ({"weight_decay": 0.0}, 16), ({"component_decay": 1.0}, 27), ({"layer_decay": 1.0}, 4),
    ({"weight_decay": 0.0, "component_decay": 1.0, "layer_decay": 1.0}, 2),
])  # fmt: skip
def test_a_recipe_without_some_of_its_decays_joins_more(recipe: dict[str, float], groups: int):
    """As many groups as release 1.11.2 makes of nano."""
    rows = json.loads((FIXTURES / "reference_param_groups.json").read_text())["nano"]["parameters"]
    assert len(reference_groups((row["name"] for row in rows), **recipe)) == groups
