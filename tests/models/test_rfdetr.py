import copy
from dataclasses import replace

import pytest
import torch
from seeded_weights import seeded

from rfdetr_train.checkpoint.reference_weights import from_reference, to_reference
from rfdetr_train.criterion import Criterion
from rfdetr_train.errors import UserError
from rfdetr_train.matcher import match
from rfdetr_train.models.rfdetr import build_model


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    return ((actual - expected).abs().max() / expected.abs().max()).item()


ROUNDING = 5e-6  # of float32, whose sums each processor adds in its own order


def assert_same_predictions(actual: dict, expected: dict, tolerance: float = ROUNDING) -> None:
    assert relative_error(actual["logits"], expected["pred_logits"]) < tolerance
    assert relative_error(actual["boxes_cxcywh"], expected["pred_boxes"]) < tolerance


@torch.no_grad()
def test_evaluation_gives_the_outputs_of_the_reference(toy_model, reference_toy):
    outputs = toy_model.eval()(reference_toy["images"])
    assert_same_predictions(outputs, reference_toy["eval"])
    assert_same_predictions(outputs["enc"], reference_toy["eval"]["enc"])
    assert "aux" not in outputs


@torch.no_grad()
def test_evaluation_at_another_resolution_gives_the_outputs_of_the_reference(toy_model, reference_toy):
    assert_same_predictions(toy_model.eval()(reference_toy["larger_images"]), reference_toy["larger_eval"])


def test_training_gives_the_outputs_of_the_reference(toy_model, reference_toy):
    outputs = toy_model.train()(reference_toy["images"])
    assert_same_predictions(outputs, reference_toy["train"])
    assert_same_predictions(outputs["enc"], reference_toy["train"]["enc"])
    (aux,) = outputs["aux"]
    assert_same_predictions(aux, reference_toy["train"]["aux"][0])


def test_every_gradient_is_that_of_the_reference(toy_model, reference_toy, reference_targets):
    outputs = toy_model.train()(reference_toy["images"])
    losses = Criterion(20, match)(outputs, reference_targets, num_boxes=12)
    losses["loss"].backward()

    assert losses["loss"].item() == pytest.approx(reference_toy["total_loss"].item(), rel=1e-6)
    expected = from_reference(reference_toy["grads"])
    actual = {name: parameter.grad for name, parameter in toy_model.named_parameters()}
    assert actual.keys() == expected.keys()
    errors = {name: relative_error(actual[name], expected[name]) for name in expected}
    assert max(errors.values()) < 1e-5, max(errors, key=errors.__getitem__)


@torch.no_grad()
def test_two_levels_give_the_outputs_of_the_reference(pyramid_model, reference_pyramid):
    images = seeded("images", [2, 3, 96, 96])
    evaluated, trained = pyramid_model.eval()(images), pyramid_model.train()(images)
    for actual, expected in ((evaluated, reference_pyramid["eval"]), (trained, reference_pyramid["train"])):
        assert_same_predictions(actual, expected)
        assert_same_predictions(actual["enc"], expected["enc"])
    assert_same_predictions(trained["aux"][0], reference_pyramid["train"]["aux"][0])


def test_two_levels_give_the_gradients_of_the_reference(pyramid_model, reference_pyramid):
    """In float64; each tensor's by its norm and by its product with a random direction."""
    targets = [{"labels": t["labels"], "boxes_cxcywh": t["boxes"]} for t in reference_pyramid["targets"]]
    outputs = pyramid_model.double().train()(seeded("images", [2, 3, 96, 96]).double())
    loss = Criterion(20, match)(outputs, targets, num_boxes=12)["loss"]
    loss.backward()
    assert loss.item() == pytest.approx(reference_pyramid["total_loss"].item(), rel=1e-12)
    actual = to_reference({name: parameter.grad for name, parameter in pyramid_model.named_parameters()})
    for name, (norm, product) in reference_pyramid["gradients"].items():
        direction = seeded(f"direction of {name}", reference_pyramid["shapes"][name]).double()
        assert actual[name].norm().item() == pytest.approx(norm, rel=1e-10, abs=1e-10), name
        assert (actual[name] * direction).sum().item() == pytest.approx(product, rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("resolution_px", [96, 160])
def test_training_works_at_other_resolutions_than_the_configured_one(toy_model, resolution_px):
    outputs = toy_model.train()(torch.randn(1, 3, resolution_px, resolution_px))
    assert outputs["logits"].shape == (1, 60, 6)
    outputs["boxes_cxcywh"].sum().backward()
    assert toy_model.backbone.vit.pos_embed.grad.abs().min() > 0


def test_input_that_does_not_divide_by_the_stride_is_refused(toy_model):
    with pytest.raises(UserError, match=r"130 x 128 pixels: both sides must divide by 32"):
        toy_model(torch.zeros(1, 3, 130, 128))


def test_fewer_tokens_than_queries_are_refused_with_both_numbers(toy_model):
    with pytest.raises(UserError, match=r"16 tokens are fewer than model.num_queries=20"):
        toy_model(torch.zeros(1, 3, 64, 64))


def test_initial_detections_are_the_anchors_of_the_picked_tokens(toy_config):
    """Box heads and learned references start at zero; an 8 x 8 grid has its centres at odd sixteenths."""
    outputs = build_model(toy_config, 5).eval()(torch.randn(2, 3, 128, 128))
    centres, sizes = outputs["boxes_cxcywh"].split(2, dim=-1)
    assert torch.equal(sizes, torch.full_like(sizes, 0.05))
    assert torch.equal(centres * 16 % 2, torch.ones_like(centres))
    assert torch.equal(outputs["boxes_cxcywh"], outputs["enc"]["boxes_cxcywh"])


def test_initial_queries_are_standard_normal_and_group_heads_are_copies(toy_config):
    torch.manual_seed(0)
    model = build_model(toy_config, 5)
    assert model.query_feat.weight.std().item() == pytest.approx(1.0, abs=0.05)
    assert not model.refpoint_embed.weight.any()
    for group in model.two_stage.groups:
        for ours, theirs in ((group.class_embed, model.class_embed), (group.box_embed, model.box_embed)):
            copies = zip(ours.parameters(), theirs.parameters(), strict=True)
            assert all(torch.equal(copy, original) and copy is not original for copy, original in copies)


def test_its_config_says_the_blocks_that_null_means(toy_config):
    assert toy_config.feature_blocks is None
    assert build_model(toy_config, 5).config == replace(toy_config, feature_blocks=[3, 6, 9, 12])


def test_the_same_seed_builds_the_same_weights(toy_config):
    states = []
    for _ in range(2):
        torch.manual_seed(7)
        states.append(build_model(toy_config, 5).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_bf16_keeps_boxes_in_float32_and_reaches_every_parameter(toy_model, reference_toy, reference_targets):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = toy_model.train()(reference_toy["images"])
    assert outputs["boxes_cxcywh"].dtype == outputs["enc"]["boxes_cxcywh"].dtype == torch.float32

    losses = Criterion(20, match)(outputs, reference_targets, num_boxes=12)
    losses["loss"].backward()
    assert losses["loss"].item() == pytest.approx(reference_toy["total_loss"].item(), rel=0.02)
    without = [name for name, parameter in toy_model.named_parameters() if parameter.grad is None]
    assert without == []
    assert toy_model.two_stage.groups[2].project.weight.grad.abs().max() > 0


def test_float64_works_and_agrees_with_float32(toy_model, reference_toy):
    outputs = toy_model.double().eval()(reference_toy["images"].double())
    assert outputs["boxes_cxcywh"].dtype == torch.float64
    torch.testing.assert_close(outputs["logits"].float(), reference_toy["eval"]["pred_logits"], rtol=0, atol=1e-5)


def test_evaluation_uses_only_the_first_group(toy_config):
    torch.manual_seed(3)
    model = build_model(replace(toy_config, feature_blocks=[1], encoder_depth=2), 2).eval()
    images = torch.randn(1, 3, 128, 128)
    before = model(images)["logits"]
    with torch.no_grad():
        model.query_feat.weight[20:].add_(1.0)
        model.two_stage.groups[1].project.weight.add_(1.0)
    assert torch.equal(model(images)["logits"], before)


def test_recomputed_activations_are_not_kept_and_change_no_bit(toy_model, reference_toy, reference_targets):
    def gradients() -> tuple[dict[str, torch.Tensor], int]:
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        toy_model.train().zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = toy_model(reference_toy["images"])
        Criterion(20, match)(outputs, reference_targets, 1.0)["loss"].backward()
        return {name: p.grad for name, p in toy_model.named_parameters() if p.grad is not None}, sum(kept.values())

    usual, bytes_kept = gradients()
    toy_model.recompute_activations()
    again, fewer_kept = gradients()
    assert fewer_kept < 0.5 * bytes_kept
    assert usual.keys() == again.keys()
    assert all(torch.equal(usual[name], again[name]) for name in usual)


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_compiled_blocks_compute_the_same_at_every_size(toy_model, reference_toy):
    whole = copy.deepcopy(toy_model)
    toy_model.compile_blocks(backend="aot_eager")
    assert list(toy_model.state_dict()) == list(whole.state_dict())
    for images in (reference_toy["images"], reference_toy["larger_images"]):
        for model in (toy_model, whole):
            model.zero_grad()
            model.train()(images)["logits"].square().mean().backward()
        for compiled, plain in zip(toy_model.parameters(), whole.parameters(), strict=True):
            if plain.grad is not None:
                assert relative_error(compiled.grad, plain.grad) < 1e-4
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0
    assert copy.deepcopy(toy_model).eval()(reference_toy["images"]).keys() == {"logits", "boxes_cxcywh", "enc"}
