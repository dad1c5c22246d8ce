import math

import pytest
import torch

from rfdetr_train.criterion import Criterion, LossWeights, find_class_weights, iou_aware_class_loss, output_losses
from rfdetr_train.errors import UserError
from rfdetr_train.matcher import match

REFERENCE_NAMES = {
    "loss_class": "loss_ce",
    "loss_box": "loss_bbox",
    "loss_giou": "loss_giou",
    "loss_class_aux_0": "loss_ce_0",
    "loss_box_aux_0": "loss_bbox_0",
    "loss_giou_aux_0": "loss_giou_0",
    "loss_class_enc": "loss_ce_enc",
    "loss_box_enc": "loss_bbox_enc",
    "loss_giou_enc": "loss_giou_enc",
}


def ours(part: dict) -> dict:
    return {"logits": part["pred_logits"], "boxes_cxcywh": part["pred_boxes"]}


def random_outputs(batch: int, queries: int, classes: int = 3) -> dict:
    def part() -> dict:
        boxes = torch.rand(batch, queries, 4) * 0.4 + 0.2
        return {
            "logits": torch.randn(batch, queries, classes, requires_grad=True),
            "boxes_cxcywh": boxes.requires_grad_(),
        }

    return {**part(), "aux": [part()], "enc": part()}


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_every_loss_is_that_of_the_reference(reference_toy, reference_targets):
    train = reference_toy["train"]
    outputs = {**ours(train), "aux": [ours(train["aux"][0])], "enc": ours(train["enc"])}
    losses = Criterion(20, match)(outputs, reference_targets, num_boxes=4 * 3)
    assert losses.keys() == {"loss", *REFERENCE_NAMES}
    for name, reference_name in REFERENCE_NAMES.items():
        assert losses[name].item() == pytest.approx(reference_toy["losses"][reference_name].item(), rel=1e-6)
    assert losses["loss"].item() == pytest.approx(reference_toy["total_loss"].item(), rel=1e-6)


def test_class_loss_and_its_gradient_by_hand():
    """One matched (query, class) pair; t is a constant, while the weight of a negative follows its probability."""
    x, y, iou = 0.3, -0.8, 0.4  # logit of the pair, logit of another class
    logits = torch.tensor([[[x, y]]], dtype=torch.float64, requires_grad=True)
    zero = torch.tensor([0])
    loss = iou_aware_class_loss(logits, (zero, zero, zero), torch.tensor([iou], dtype=torch.float64))
    loss.backward()

    p, n = 1 / (1 + math.exp(-x)), 1 / (1 + math.exp(-y))
    t = p**0.25 * iou**0.75
    assert loss.item() == pytest.approx(t * softplus(-x) + (1 - t) * softplus(x) + n**2 * softplus(y), rel=1e-12)
    expected = [p - t, n**2 * n + 2 * n * n * (1 - n) * softplus(y)]
    assert logits.grad.flatten().tolist() == pytest.approx(expected, rel=1e-12)


def test_quality_never_falls_below_one_percent():
    logits, zero = torch.zeros(1, 1, 1, dtype=torch.float64), torch.tensor([0])
    loss = iou_aware_class_loss(logits, (zero, zero, zero), torch.zeros(1, dtype=torch.float64))
    assert loss.item() == pytest.approx(0.01 * math.log(2) + 0.99 * math.log(2), rel=1e-12)
    loss = iou_aware_class_loss(logits - 50, (zero, zero, zero), torch.zeros(1, dtype=torch.float64))
    assert loss.item() == pytest.approx(0.01 * 50, rel=1e-9)


def test_box_losses_by_hand():
    output = {
        "logits": torch.zeros(1, 2, 1, dtype=torch.float64),
        "boxes_cxcywh": torch.tensor([[[9.0, 9.0, 1.0, 1.0], [1.0, 1.0, 2.0, 2.0]]], dtype=torch.float64),
    }
    pairs = (torch.tensor([0]), torch.tensor([1]), torch.tensor([1]))  # image, query, target
    truth = torch.tensor([[5.0, 5.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]], dtype=torch.float64)
    _, box, giou = output_losses(output, torch.tensor([0, 0]), truth, pairs)
    assert box.item() == pytest.approx(2.0, rel=1e-12)
    assert giou.item() == pytest.approx(1 - (1 / 7 - 2 / 9), rel=1e-12)


def test_no_targets_in_the_batch_gives_finite_losses_with_gradient():
    outputs = random_outputs(batch=2, queries=4)
    nothing = {"labels": torch.zeros(0, dtype=torch.int64), "boxes_cxcywh": torch.zeros(0, 4)}
    losses = Criterion(4, match)(outputs, [nothing, nothing], num_boxes=1)
    losses["loss"].backward()
    assert all(loss.isfinite() for loss in losses.values())
    assert losses["loss_box"] == losses["loss_giou_enc"] == 0
    for part in (outputs, outputs["aux"][0], outputs["enc"]):
        assert part["logits"].grad.abs().min() > 0
        assert not part["boxes_cxcywh"].grad.any()


def test_the_total_is_weighted_and_divided_by_num_boxes():
    torch.manual_seed(0)
    outputs = random_outputs(batch=1, queries=6)
    targets = [{"labels": torch.tensor([0, 2]), "boxes_cxcywh": torch.rand(2, 4) * 0.4 + 0.2}]
    once = Criterion(3, match)(outputs, targets, num_boxes=1)
    other = Criterion(3, match, LossWeights(label=7.0, box=0.5, giou=3.0))(outputs, targets, num_boxes=4)
    for name in REFERENCE_NAMES:
        assert other[name].item() == pytest.approx(once[name].item() / 4, rel=1e-6)
    ends = ("", "_aux_0", "_enc")
    expected = sum(7 * other[f"loss_class{e}"] + 0.5 * other[f"loss_box{e}"] + 3 * other[f"loss_giou{e}"] for e in ends)
    assert other["loss"].item() == pytest.approx(expected.item(), rel=1e-6)


def test_outputs_of_evaluation_have_one_group_and_no_aux():
    outputs = random_outputs(batch=1, queries=3)
    del outputs["aux"]
    targets = [{"labels": torch.tensor([1]), "boxes_cxcywh": torch.tensor([[0.5, 0.5, 0.2, 0.2]])}]
    losses = Criterion(3, match)(outputs, targets, num_boxes=1)
    assert not any("aux" in name for name in losses)
    assert losses["loss"].isfinite()


def test_losses_of_bf16_logits_are_float32():
    outputs = random_outputs(batch=1, queries=3)
    for part in (outputs, outputs["aux"][0], outputs["enc"]):
        part["logits"] = part["logits"].bfloat16()
    targets = [{"labels": torch.tensor([1]), "boxes_cxcywh": torch.tensor([[0.5, 0.5, 0.2, 0.2]])}]
    losses = Criterion(3, match)(outputs, targets, num_boxes=1)
    assert {loss.dtype for loss in losses.values()} == {torch.float32}


def test_class_weights_by_hand():
    """Two queries of three logits; the first is matched with class 1, the second with class 0."""
    logits = torch.tensor([[[0.4, -0.2, 1.1], [-0.7, 0.9, 0.1]]], dtype=torch.float64)
    matched = (torch.tensor([0, 0]), torch.tensor([0, 1]), torch.tensor([1, 0]))
    iou = torch.tensor([0.5, 0.8], dtype=torch.float64)
    weights = torch.tensor([3.0, 0.25], dtype=torch.float64)

    expected = 0.0
    for query, positive in ((0, 1), (1, 0)):
        for label in range(3):
            x = logits[0, query, label].item()
            p = 1 / (1 + math.exp(-x))
            if label == positive:
                t = p**0.25 * iou[query].item() ** 0.75
                expected += weights[label].item() * (t * softplus(-x) + (1 - t) * softplus(x))
            else:
                expected += p**2 * softplus(x)
    assert iou_aware_class_loss(logits, matched, iou, weights).item() == pytest.approx(expected, rel=1e-14)
    unweighted = iou_aware_class_loss(logits, matched, iou)
    assert torch.equal(iou_aware_class_loss(logits, matched, iou, torch.ones(2)), unweighted)


def test_class_weights_enter_every_output():
    torch.manual_seed(0)
    outputs = random_outputs(batch=1, queries=6)
    targets = [{"labels": torch.tensor([0, 1]), "boxes_cxcywh": torch.rand(2, 4) * 0.4 + 0.2}]
    plain = Criterion(3, match)(outputs, targets, num_boxes=1)
    weighted = Criterion(3, match, class_weights=torch.tensor([2.0, 1.0]))(outputs, targets, num_boxes=1)
    for ending in ("", "_aux_0", "_enc"):
        assert weighted[f"loss_class{ending}"] > plain[f"loss_class{ending}"]
        assert weighted[f"loss_box{ending}"] == plain[f"loss_box{ending}"]


def test_class_weights_from_config():
    names = ("ant", "bee", "cow")
    assert find_class_weights(None, names, [1, 2, 3]) is None
    assert find_class_weights({"cow": 5}, names, [1, 2, 3]).tolist() == [1.0, 1.0, 5.0]
    auto = find_class_weights("auto", names, [16, 0, 4])  # 1/4 and 1/2, times 20 / (4 + 2)
    assert auto.tolist() == pytest.approx([5 / 6, 1.0, 5 / 3])
    assert 16 * auto[0] + 4 * auto[2] == pytest.approx(20.0)
    with pytest.raises(UserError, match=r"no class is called bea; did you mean bee\?"):
        find_class_weights({"bea": 2}, names, [1, 2, 3])
    with pytest.raises(UserError, match=r"no class is called zebra; the classes are ant, bee, cow"):
        find_class_weights({"zebra": 2}, names, [1, 2, 3])
