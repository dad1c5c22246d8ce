"""Padded batches against the reference package (fixtures/make_reference_padded.py), and what padding must mean."""

from pathlib import Path

import pytest
import torch
from seeded_weights import seeded

from rfdetr_train.checkpoint.reference_weights import to_reference
from rfdetr_train.criterion import Criterion
from rfdetr_train.matcher import match
from rfdetr_train.models.deformable_attention import DeformableAttention
from rfdetr_train.models.padding import padding_of_levels
from rfdetr_train.models.rfdetr import build_model
from rfdetr_train.models.two_stage import make_anchors

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def reference() -> dict:
    return torch.load(FIXTURES / "reference_padded.pt", weights_only=True)


@pytest.fixture(params=["one_level", "two_levels"])
def case(request, reference) -> tuple[str, dict, torch.Tensor]:
    """The model's fixture, the reference's answers, and two pictures in the upper left of zeros."""
    expected = reference[request.param]
    images = torch.zeros(2, 3, *expected["padding"].shape[1:])
    for image, (height, width) in zip(images, reference["sizes_px"][request.param], strict=True):
        image[:, :height, :width] = seeded(f"padded image of {(height, width)}", [3, height, width])
    model = "toy_model" if request.param == "one_level" else "pyramid_model"
    return request.getfixturevalue(model), expected, images


def assert_same_predictions(actual: dict, expected: dict) -> None:
    for ours, theirs in (("logits", "pred_logits"), ("boxes_cxcywh", "pred_boxes")):
        largest = expected[theirs].abs().max().item()
        # the float32 sums of another processor are added in another order
        torch.testing.assert_close(actual[ours], expected[theirs], rtol=0, atol=5e-6 * largest)


@torch.no_grad()
def test_padded_pictures_give_the_outputs_of_the_reference(case):
    model, expected, images = case
    for mode in ("eval", "train"):
        outputs = model.train(mode == "train")(images, expected["padding"])
        assert_same_predictions(outputs, expected[mode])
        assert_same_predictions(outputs["enc"], expected[mode]["enc"])
    assert_same_predictions(outputs["aux"][0], expected["train"]["aux"][0])


def test_padded_pictures_give_the_loss_and_the_gradients_of_the_reference(case, reference_targets):
    """In float64, but for the table of positions, which the reference resizes in float32."""
    model, expected, images = case
    outputs = model.double().train()(images.double(), expected["padding"])
    targets = [{**target, "boxes_cxcywh": target["boxes_cxcywh"].double()} for target in reference_targets]
    loss = Criterion(20, match)(outputs, targets, num_boxes=12)["loss"]
    loss.backward()
    assert loss.item() == pytest.approx(expected["total_loss"].item(), rel=1e-10)
    actual = to_reference({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, (norm, product) in expected["gradients"].items():
        direction = seeded(f"direction of {name}", list(actual[name].shape)).double()
        assert actual[name].norm().item() == pytest.approx(norm, rel=1e-6, abs=1e-9), name
        assert (actual[name] * direction).sum().item() == pytest.approx(product, abs=2e-6 * norm + 1e-9), name


@torch.no_grad()
def test_padding_nothing_is_the_same_to_the_bit(toy_model, reference_toy):
    images = reference_toy["images"]
    nothing = torch.zeros(2, 128, 128, dtype=torch.bool)
    without, within = toy_model.eval()(images), toy_model(images, nothing)
    for name in ("logits", "boxes_cxcywh"):
        assert torch.equal(without[name], within[name])


def test_tokens_of_two_levels_by_hand():
    """32 x 48 pixels, pictures of 17 x 48 and 32 x 20: a token is padded when its first pixel is."""
    padding = torch.ones(2, 32, 48, dtype=torch.bool)
    padding[0, :17] = False
    padding[1, :, :20] = False
    levels = padding_of_levels(padding, [(4, 6), (2, 3)])  # cells of 8 and of 16 pixels
    fine, coarse = levels.tokens.split([24, 6], dim=1)
    assert fine[0].view(4, 6).all(dim=1).tolist() == [False, False, False, True]
    assert fine[1].view(4, 6).all(dim=0).tolist() == [False, False, False, True, True, True]
    assert coarse[0].view(2, 3).tolist() == [[False] * 3] * 2
    assert coarse[1].view(2, 3).tolist() == [[False, False, True]] * 2
    assert levels.picture_tokens.tolist() == [[[6, 3], [3, 2]], [[3, 4], [2, 2]]]
    assert levels.shares[1].tolist() == pytest.approx(torch.tensor([[1 / 2, 1], [2 / 3, 1]]))


def test_anchors_are_fractions_of_the_picture_and_none_lies_in_the_padding():
    padding = torch.ones(1, 32, 64, dtype=torch.bool)
    padding[:, :16, :32] = False
    anchors, valid = make_anchors([(4, 8), (2, 4)], torch.device("cpu"), padding_of_levels(padding, [(4, 8), (2, 4)]))
    fine = [[(j + 0.5) / 4, (i + 0.5) / 2, 0.05, 0.05] for i in range(2) for j in range(4)]
    coarse = [[0.25, 0.5, 0.1, 0.1], [0.75, 0.5, 0.1, 0.1]]
    torch.testing.assert_close(anchors[valid], torch.tensor(fine + coarse))
    assert not anchors[~valid].any()


def test_attention_over_two_levels_is_that_over_the_picture_alone():
    """Where values and references are those of the pictures, the padding changes nothing but the border."""
    torch.manual_seed(0)
    attention = DeformableAttention(8, heads=2, levels=2, points=2)
    grids, picture_grids = [(4, 8), (2, 4)], [(4, 4), (2, 2)]
    padding = torch.zeros(1, 32, 64, dtype=torch.bool)
    padding[..., 32:] = True
    memory = torch.randn(1, 40, 8)
    fine, coarse = (level.view(1, *grid, 8) for level, grid in zip(memory.split([32, 8], 1), grids, strict=True))
    picture = torch.cat([fine[:, :, :4].flatten(1, 2), coarse[:, :, :2].flatten(1, 2)], dim=1)
    queries, references = torch.randn(1, 5, 8), torch.tensor([[[0.5, 0.5, 0.3, 0.3]]]).repeat(1, 5, 1)
    whole = attention(queries, references, memory, grids, padding_of_levels(padding, grids))
    torch.testing.assert_close(whole, attention(queries, references, picture, picture_grids))


def test_a_picture_with_fewer_tokens_than_queries_stays_finite(toy_config):
    padding = torch.ones(1, 128, 128, dtype=torch.bool)
    padding[:, :32, :64] = False  # 8 tokens, 20 queries
    model = build_model(toy_config, 5).train()
    outputs = model(torch.randn(1, 3, 128, 128), padding)
    targets = [{"labels": torch.tensor([1]), "boxes_cxcywh": torch.tensor([[0.5, 0.5, 0.4, 0.4]])}]
    Criterion(20, match)(outputs, targets, num_boxes=3)["loss"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
