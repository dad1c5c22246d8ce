"""Weights of one model in another: what is taken, cut, resized, left."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from timm.models import adapt_input_conv
from torch import Tensor
from torch.nn import functional

from rfdetr_train.checkpoint.fit import (
    NOT_IN_FILE,
    OTHER_SHAPE,
    FitReport,
    _other_channels,
    by_class,
    load_fitting,
    match_classes,
)
from rfdetr_train.checkpoint.reference_weights import to_reference
from rfdetr_train.checkpoint.starting_weights import read_weights
from rfdetr_train.config import ModelConfig
from rfdetr_train.errors import UserError
from rfdetr_train.models.rfdetr import RFDETR, build_model

ModelOf = Callable[..., RFDETR]


@pytest.fixture
def model_of(small_config: Callable[..., ModelConfig]) -> ModelOf:
    def build(classes: int = 3, **changes: object) -> RFDETR:
        return build_model(small_config(**{"group_detr": 3, **changes}), classes)

    return build


def fit(target: RFDETR, source: RFDETR, class_rows: Sequence[int | None] = (0, 1, 2, 3), **more: bool) -> FitReport:
    return load_fitting(target, dict(source.state_dict()), "file.pt", class_rows=class_rows, **more)


HEADS = ["class_embed", *(f"two_stage.groups.{group}.class_embed" for group in range(3))]


def test_the_same_model_is_taken_whole(model_of: ModelOf) -> None:
    source, target = model_of(), model_of()
    report = fit(target, source)
    assert report.rows() == []
    assert sorted(report.taken) == sorted(source.state_dict())
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value)


def test_heads_of_other_classes_keep_their_initial_values(model_of: ModelOf) -> None:
    source, target = model_of(3), model_of(5)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    report = fit(target, source, [None] * 6)
    assert sorted(report.fresh) == sorted(f"{head}.{leaf}" for head in HEADS for leaf in ("weight", "bias"))
    assert report.rows() == [("class heads", 8, "of other classes: initial values")]
    for name, value in target.state_dict().items():
        assert torch.equal(value, before[name] if "class_embed" in name else source.state_dict()[name])


def test_published_rows_are_taken_over_by_class_name(
    model_of: ModelOf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """91 logits without names: category 17 of COCO is cat, 18 is dog."""
    published, target = model_of(90), model_of(3)
    for name, parameter in published.named_parameters():
        if "class_embed" in name:
            torch.nn.init.normal_(parameter)
    torch.save({"model": to_reference(published.state_dict()), "args": {}}, tmp_path / "coco.pth")
    before = {name: value.clone() for name, value in target.state_dict().items()}
    start = read_weights(tmp_path / "coco.pth")
    rows = match_classes(start.class_names, ("dog", "peix", "cat"), start.source)
    report = load_fitting(target, start.state, start.source, class_rows=rows)
    (line,) = [record.getMessage() for record in caplog.records if "by name" in record.getMessage()]
    assert line.endswith("taken over by name: dog, cat; new: peix")
    for name in (f"{head}.{leaf}" for head in HEADS for leaf in ("weight", "bias")):
        now, then = target.state_dict()[name], published.state_dict()[name]
        assert torch.equal(now[0], then[18]), name
        assert torch.equal(now[1], before[name][1]), name
        assert torch.equal(now[2], then[17]), name
        assert torch.equal(now[3], then[83]), name  # an id that COCO does not use: never a target, as ours
    assert (target.class_embed.bias[1] + torch.log(torch.tensor(99.0))).abs() < 1e-6  # the prior of 0.01
    assert report.rows() == [("class heads", 8, "3 of 4 rows taken over by class name, initial values in the others")]


def test_any_module_takes_what_fits() -> None:
    source, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    assert not load_fitting(target, source.state_dict(), "file.pt").fresh
    assert torch.equal(source.weight, target.weight)


def numbered_queries(model: RFDETR) -> RFDETR:
    """Row k of the learned queries holds k."""
    table = model.query_feat.weight.data
    table.copy_(torch.arange(float(len(table)))[:, None].expand_as(table))
    return model


@pytest.mark.parametrize(("here", "rows"), [
    # group g occupies rows g * 10 to g * 10 + 9 of the file; -1 is an initial value
    ({"num_queries": 4, "group_detr": 2}, [0, 1, 2, 3, 10, 11, 12, 13]),
    ({"num_queries": 2, "group_detr": 4}, [0, 1, 10, 11, 20, 21, -1, -1]),
    ({"num_queries": 12, "group_detr": 2}, [*range(10), -1, -1, *range(10, 20), -1, -1]),
    ({"num_queries": 15, "group_detr": 2}, [*range(10), *[-1] * 5, *range(10, 20), *[-1] * 5]),  # 30 rows, as there
])  # fmt: skip
def test_each_group_keeps_its_own_first_queries(model_of: ModelOf, here: dict[str, int], rows: list[int]) -> None:
    source, target = numbered_queries(model_of(num_queries=10, group_detr=3)), model_of(**here)
    target.query_feat.weight.data.fill_(-1.0)
    report = fit(target, source)
    assert target.query_feat.weight[:, 0].tolist() == rows
    assert "query_feat.weight" in report.adapted
    assert ("initial values in the other" in report.adapted["query_feat.weight"]) == (-1 in rows)
    fresh_groups = {name.split(".")[2] for name in report.fresh}
    assert fresh_groups == ({"3"} if here["group_detr"] == 4 else set())
    assert set(report.fresh.values()) <= {NOT_IN_FILE}


def test_positions_are_resized_to_another_resolution(model_of: ModelOf) -> None:
    """A table that is linear in the column stays so inside the grid, and the class token's entry is kept."""
    source, target = model_of(resolution=64), model_of(resolution=128)
    table: Tensor = source.backbone.vit.pos_embed.data  # type: ignore[assignment]
    table[:, 1:] = torch.arange(8.0).repeat(8)[None, :, None]
    report = fit(target, source)
    assert report.rows() == [("backbone", 1, "positions resized from 8x8 to 16x16")]
    resized = target.backbone.vit.pos_embed[0].detach()
    assert torch.equal(resized[0], table[0, 0])
    inner = resized[1:].reshape(16, 16, -1)[8, 4:12, 0]
    expected = (torch.arange(4.0, 12.0) + 0.5) / 2 - 0.5  # pixel centres of a grid twice as fine
    assert (inner - expected).abs().max() < 0.02


def test_patches_of_another_size_answer_alike(model_of: ModelOf) -> None:
    """A smooth picture of twice the size under patches of twice the side (FlexiViT, arXiv 2212.08013)."""
    source, target = model_of(patch_size=8), model_of(patch_size=16, resolution=128, num_queries=10)
    report = fit(target, source)
    assert report.rows() == [("backbone", 1, "patch convolution: from patches of 8 pixels to 16")]
    small = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    large = functional.interpolate(small, scale_factor=2, mode="bicubic", antialias=True)
    there, here = (m.backbone.vit.patch_embed.proj for m in (source, target))
    assert (there(small) - here(large)).abs().max() < 1e-4 * there(small).abs().max()


@pytest.mark.parametrize("wanted", [1, 4, 6])
def test_rgb_kernels_for_other_channels_are_as_timm_has_them(wanted: int) -> None:
    kernel = torch.randn(5, 3, 2, 2)
    torch.testing.assert_close(_other_channels(kernel, wanted), adapt_input_conv(wanted, kernel), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("there", "here"), [(3, 1), (1, 3), (1, 4)])
def test_a_grey_picture_gets_the_same_answer_in_any_number_of_channels(there: int, here: int) -> None:
    kernel, grey = torch.randn(5, there, 4, 4, dtype=torch.float64), torch.randn(1, 1, 4, 4, dtype=torch.float64)
    before = functional.conv2d(grey.expand(-1, there, -1, -1), kernel)
    after = functional.conv2d(grey.expand(-1, here, -1, -1), _other_channels(kernel, here))
    torch.testing.assert_close(after, before)


def test_a_file_of_other_channels_says_so(model_of: ModelOf) -> None:
    source, target = model_of(), model_of()
    state = dict(source.state_dict())
    state["backbone.vit.patch_embed.proj.weight"] = torch.ones(24, 1, 8, 8)
    report = load_fitting(target, state, "file.pt", class_rows=range(4))
    assert report.rows() == [("backbone", 1, "patch convolution: from 1 input channels to 3")]
    assert torch.equal(target.backbone.vit.patch_embed.proj.weight, torch.full((24, 3, 8, 8), 1 / 3))


def test_layers_that_only_one_of_the_two_has(model_of: ModelOf) -> None:
    report = fit(model_of(decoder_layers=3), model_of(decoder_layers=2))
    assert {part for part, _, what in report.rows()} == {"decoder"}
    assert set(report.fresh.values()) == {NOT_IN_FILE}
    report = fit(model_of(decoder_layers=2), model_of(decoder_layers=3))
    assert [what for _, _, what in report.rows()] == ["only in the file: not used"]


def test_another_model_is_refused_unless_asked_for(model_of: ModelOf) -> None:
    source, target = model_of(hidden_dim=64, encoder_width=48), model_of()
    why = (
        r"file.pt: only \d+% of the model's numbers fit \(backbone.vit.cls_token has shape \[1, 1, 48\] there, "
        r"\[1, 1, 24\] here\); .*weights_allow_partial=true takes what fits"
    )
    before = target.box_embed.layers[0].weight.clone()
    with pytest.raises(UserError, match=why):
        fit(target, source)
    report = fit(target, source, allow_partial=True)
    assert report.fresh["box_embed.layers.0.weight"] == OTHER_SHAPE
    assert torch.equal(target.box_embed.layers[0].weight, before)
    assert "box_embed.layers.2.bias" in report.taken  # four numbers, whatever the width


@pytest.mark.parametrize(("bad", "message"), [
    (lambda value: value.int(), "holds torch.int32, which is no detector's weights"),
    (lambda value: value * torch.nan, "holds values that are not finite"),
])  # fmt: skip
def test_numbers_that_are_no_weights_are_refused(bad, message):
    model = torch.nn.Linear(2, 2)
    saved = {name: bad(value) if name == "bias" else value for name, value in model.state_dict().items()}
    with pytest.raises(UserError, match=f"FILE: bias {message}"):
        load_fitting(model, saved, "FILE")


@pytest.mark.parametrize(("saved", "wanted", "rows", "said"), [
    (["cat", "dog", None], ["cat", "dog"], [0, 1, 2], None),
    (["dog", "cat", None], ["cat", "dog"], [1, 0, 2], "taken over by name: cat, dog; new: none"),
    (["cat", None], ["cat", "dog"], [0, None, 1], "has other classes (cat); taken over by name: cat; new: dog"),
    (["Cat ", "DOG", None], ["cat", "dog"], [None, 1, 2], "taken over by name: dog; new: cat"),  # regard only to case
    (["A", "a", None], ["a", "A"], [1, 0, 2], "taken over by name: a, A"),
    ([None, "cat", None, "dog"], ["dog"], [3, 2], "taken over by name: dog"),  # any logit without a target will do
    (["cat", None], ["dog", "eel"], [None, None, None], "taken over by name: none; new: dog, eel"),
    (None, ["cat"], [None, None], "does not say its classes"),
])  # fmt: skip
def test_rows_follow_the_names(caplog: pytest.LogCaptureFixture, saved, wanted, rows, said) -> None:
    assert match_classes(saved, wanted, "file.pt") == rows
    assert len(caplog.records) == (said is not None)  # one line
    assert said is None or said in caplog.text


def test_a_head_is_made_of_rows() -> None:
    value, target = torch.arange(6.0).reshape(3, 2), torch.full((4, 2), -1.0)
    head, what = by_class(value, target, [2, None, 0, None])
    assert head is not None
    assert head.tolist() == [[4, 5], [-1, -1], [0, 1], [-1, -1]]
    assert "2 of 4 rows taken over by class name" in what
    assert by_class(value, target[:3], [0, 1, 2]) == (value, "")  # the very tensor
    assert by_class(value, target, [None] * 4)[0] is None
    assert by_class(value[:, :1], target, [0, 1, 2, None])[0] is None
