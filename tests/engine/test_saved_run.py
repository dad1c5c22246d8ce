"""What a checkpoint's content means, ours and the reference package's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rfdetr_train.engine.saved_run import SavedRun
from rfdetr_train.errors import UserError

RAW, AVERAGE = {"class_embed.bias": torch.zeros(3)}, {"class_embed.bias": torch.ones(3)}
LABELS = {0: {"id": 4, "name": "ant"}, 1: {"id": 9, "name": "bee"}}


def saved(**content: Any) -> SavedRun:
    """Two classes, the average ahead of the raw weights."""
    ours = {
        "model": RAW, "ema": {"model": AVERAGE, "num_updates": 5}, "loop": {"best": {"weights": "ema"}},
        "label_map": LABELS, "config": {"seed": 3}, "versions": {"torch": "2.9", "data": "ab"},
        "class_names": ("ant", "bee", None),
    }  # fmt: skip
    return SavedRun(Path("runs/a/last.pt"), {**ours, **content})


def test_origin() -> None:
    assert not saved().is_of_reference
    assert saved().config == {"seed": 3}
    reference = saved(recipe={}, config=None)
    assert reference.is_of_reference
    assert reference.config == {}


@pytest.mark.parametrize(("asked", "best", "kind", "first_bias"), [
    ("auto", {"weights": "ema"}, "ema", 1.0), ("auto", {"weights": "raw"}, "raw", 0.0), ("auto", None, "ema", 1.0),
    ("raw", {"weights": "ema"}, "raw", 0.0), ("ema", {"weights": "raw"}, "ema", 1.0),
])  # fmt: skip
def test_the_weights_that_are_meant(asked: str, best: dict | None, kind: str, first_bias: float) -> None:
    found, label_map, state = saved(loop={"best": best}).detector(asked)
    assert (found, float(state["class_embed.bias"][0])) == (kind, first_bias)
    assert (label_map.names, label_map.category_ids) == (("ant", "bee"), (4, 9))


@pytest.mark.parametrize("average", [None, {"model": AVERAGE, "num_updates": 0}])
def test_an_average_that_is_none(average: dict | None) -> None:
    with pytest.raises(UserError, match=r"weights=ema: runs/a/last\.pt holds no average; use weights=raw"):
        saved(ema=average).detector("ema")
    assert saved(ema=average).detector("auto")[0] == "raw"


def test_the_reference_orders_its_logits_by_category_id() -> None:
    """Of logits (none, ant, none, bee, background) the two named ones and one without a class are taken."""
    bias = {"class_embed.bias": torch.arange(5.0)}
    names = (None, "ant", None, "bee", None)
    _, label_map, state = saved(recipe={}, model=bias, class_names=names, model_config={}).detector("raw")
    assert label_map.names == ("ant", "bee")
    assert state["class_embed.bias"].tolist() == [1.0, 3.0, 0.0]


def test_versions_that_differ_are_named_and_unknown_ones_are_not() -> None:
    here = {"torch": "2.10", "data": "ab", "timm": "1.0"}
    assert saved().changes(here) == ["torch 2.9 (here 2.10)"]
    assert saved(versions=None).changes(here) == []


def test_a_file_without_class_names_has_those_of_a_run_with_as_many(caplog: pytest.LogCaptureFixture) -> None:
    nameless = saved(class_names=None)
    assert nameless.logit_names(("cat", "dog")) == ("cat", "dog", None)
    assert "does not say its classes; they are as many as here" in caplog.text
    assert nameless.logit_names(("cat", "dog", "cow")) is None
    assert saved().logit_names(("cat", "dog")) == ("ant", "bee", None)
