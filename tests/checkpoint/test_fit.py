"""Weights of one model in another: what is taken, cut, resized, left."""

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rfdetr_train.checkpoint.fit import QueryLayout, classes_agree, load_fitting
from rfdetr_train.config import ModelConfig
from rfdetr_train.errors import UserError
from rfdetr_train.models.rfdetr import RFDETR, build_model

ModelOf = Callable[..., RFDETR]


@pytest.fixture
def model_of(small_config: Callable[..., ModelConfig]) -> ModelOf:
    def build(classes: int = 3, **changes: object) -> RFDETR:
        return build_model(small_config(**{"group_detr": 3, **changes}), classes)

    return build


def layout_of(model: RFDETR) -> QueryLayout:
    return QueryLayout(model.config.num_queries, model.config.group_detr)


def fit(target: RFDETR, source: RFDETR, same_classes: bool = True):
    layouts = layout_of(source), layout_of(target)
    return load_fitting(target, dict(source.state_dict()), *layouts, "file.pt", same_classes=same_classes)


def test_the_same_model_is_taken_whole(model_of: ModelOf) -> None:
    source, target = model_of(), model_of()
    report = fit(target, source)
    assert report.resized + report.fresh + report.unused == []
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value)


def test_another_number_of_classes_starts_the_class_heads_afresh_and_says_so(
    model_of: ModelOf, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = model_of(3), model_of(5)
    before = target.class_embed.bias.clone()
    with caplog.at_level(logging.WARNING):
        report = fit(target, source)
    assert all("class_embed" in name for name in report.fresh)
    assert len(report.fresh) == 2 * (1 + 3)  # the head and its copy in each group, weight and bias
    assert torch.equal(target.class_embed.bias, before)
    assert "class_embed" in caplog.text


def test_heads_of_other_classes_stay_fresh_although_they_would_fit(
    model_of: ModelOf, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = model_of(), model_of()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    report = fit(target, source, same_classes=False)
    heads = ["class_embed", *(f"two_stage.groups.{group}.class_embed" for group in range(3))]
    assert sorted(report.fresh) == sorted(f"{head}.{leaf}" for head in heads for leaf in ("weight", "bias"))
    for name, value in target.state_dict().items():
        assert torch.equal(value, before[name] if "class_embed" in name else source.state_dict()[name])


@pytest.mark.parametrize(("saved", "agree", "reason"), [
    (["cat", "dog"], True, None),
    (["dog", "cat"], False, "has other classes, so the class heads start afresh: dog, cat; here cat, dog"),
    (["cat"], False, "has other classes"),
    (None, False, "does not say its classes"),
])  # fmt: skip
def test_classes_agree_by_their_names_in_order(
    caplog: pytest.LogCaptureFixture, saved: list[str] | None, agree: bool, reason: str | None
) -> None:
    assert classes_agree(saved, ("cat", "dog"), "file.pt") is agree
    assert f"file.pt: {reason}" in caplog.text if reason else not caplog.text


def test_any_module_takes_what_fits() -> None:
    source, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    layout = QueryLayout(1, 1)
    assert not load_fitting(target, source.state_dict(), layout, layout, "file.pt", same_classes=False).fresh
    assert torch.equal(source.weight, target.weight)


def test_each_group_keeps_its_own_first_queries(model_of: ModelOf) -> None:
    """Group g occupies rows g * Q to (g + 1) * Q - 1 of the table."""
    source, target = model_of(num_queries=10, group_detr=3), model_of(num_queries=4, group_detr=2)
    rows = torch.arange(30.0)[:, None].expand(30, 32)
    source.query_feat.weight.data = rows.clone()
    fit(target, source)
    assert target.query_feat.weight[:, 0].tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_equal_size_does_not_mean_equal_layout(model_of: ModelOf) -> None:
    source, target = model_of(num_queries=10, group_detr=3), model_of(num_queries=15, group_detr=2)
    report = fit(target, source)
    assert "query_feat.weight" in report.fresh  # 15 queries a group cannot be made of 10


def test_positions_are_resized_to_another_resolution(model_of: ModelOf) -> None:
    """A table that is linear in the column stays so inside the grid, and the class token's entry is kept."""
    source, target = model_of(resolution=64), model_of(resolution=128)
    table: Tensor = source.backbone.vit.pos_embed.data  # type: ignore[assignment]
    table[:, 1:] = torch.arange(8.0).repeat(8)[None, :, None]
    report = fit(target, source)
    assert report.resized == ["backbone.vit.pos_embed"]
    resized = target.backbone.vit.pos_embed[0].detach()
    assert torch.equal(resized[0], table[0, 0])
    inner = resized[1:].reshape(16, 16, -1)[8, 4:12, 0]
    expected = (torch.arange(4.0, 12.0) + 0.5) / 2 - 0.5  # pixel centres of a grid twice as fine
    assert (inner - expected).abs().max() < 0.02


def test_another_model_is_refused(model_of: ModelOf) -> None:
    with pytest.raises(UserError, match=r"file.pt: only \d+% of the model's numbers fit"):
        fit(model_of(), model_of(hidden_dim=64, encoder_width=48))
