import math
from itertools import permutations

import pytest
import torch

from rfdetr_train import matcher
from rfdetr_train.matcher import LARGE_COST, CostWeights, match, pairwise_costs


def outputs_of(batch: int, queries: int, classes: int = 3) -> dict:
    boxes = torch.rand(batch, queries, 4) * 0.4 + 0.2
    return {"logits": torch.randn(batch, queries, classes), "boxes_cxcywh": boxes}


def targets_of(*counts: int, classes: int = 3) -> list[dict]:
    return [{"labels": torch.randint(classes, (n,)), "boxes_cxcywh": torch.rand(n, 4) * 0.4 + 0.2} for n in counts]


def pairs_of_image(matching, image: int) -> list[tuple[int, int]]:
    mine = matching.image == image
    return list(zip(matching.query[mine].tolist(), matching.target[mine].tolist(), strict=True))


def test_matching_is_that_of_the_reference(reference_toy, reference_targets):
    """All three outputs at once; the reference's indices are those of the last layer, per image."""
    train = reference_toy["train"]
    parts = [train, train["aux"][0], train["enc"]]
    outputs = [{"logits": part["pred_logits"], "boxes_cxcywh": part["pred_boxes"]} for part in parts]
    matchings = match(outputs, reference_targets, num_groups=3)
    assert len(matchings) == 3

    first_target = 0
    for image, (queries, targets) in enumerate(reference_toy["indices"]):
        expected = list(zip(queries.tolist(), (targets + first_target).tolist(), strict=True))
        assert pairs_of_image(matchings[0], image) == expected
        first_target += len(reference_targets[image]["labels"])


def test_cost_by_hand():
    logit = 0.4
    output = {
        "logits": torch.tensor([[[9.0, logit]]], dtype=torch.float64),
        "boxes_cxcywh": torch.tensor([[[1.0, 1.0, 2.0, 2.0]]]).double(),
    }
    target = {"labels": torch.tensor([1]), "boxes_cxcywh": torch.tensor([[2.0, 2.0, 2.0, 2.0]]).double()}
    p = 1 / (1 + math.exp(-logit))
    label = 0.25 * (1 - p) ** 2 * -math.log(p) - 0.75 * p**2 * -math.log(1 - p)
    giou = 1 / 7 - 2 / 9
    cost = pairwise_costs([output], [target], CostWeights(label=2, box=5, giou=2))
    assert cost.shape == (1, 1, 1, 1)
    assert cost.item() == pytest.approx(2 * label + 5 * 2.0 - 2 * giou, rel=1e-12)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_each_group_gets_the_cheapest_assignment(count):
    torch.manual_seed(count)
    output, targets = outputs_of(1, 8), targets_of(count)
    cost = pairwise_costs([output], targets, CostWeights())[0, 0]
    (matching,) = match([output], targets, num_groups=2)
    for group in (range(4), range(4, 8)):
        cheapest = min(sum(cost[q, t].item() for t, q in enumerate(p)) for p in permutations(group, count))
        mine = [(q, t) for q, t in pairs_of_image(matching, 0) if q in group]
        assert sorted(t for _, t in mine) == list(range(count))
        assert sum(cost[q, t].item() for q, t in mine) == pytest.approx(cheapest, rel=1e-6)


def test_more_targets_than_queries_use_every_query_once():
    (matching,) = match([outputs_of(1, 6)], targets_of(5), num_groups=2)
    assert matching.query.tolist() == [0, 1, 2, 3, 4, 5]
    for group in (matching.target[:3], matching.target[3:]):
        assert len(set(group.tolist())) == 3


def test_an_image_without_targets_between_others():
    (matching,) = match([outputs_of(3, 4)], targets_of(2, 0, 1), num_groups=1)
    assert matching.image.tolist() == [0, 0, 2]
    assert sorted(matching.target[:2].tolist()) == [0, 1]
    assert matching.target[2].item() == 2  # counted over all images


def test_crowded_pictures_are_matched_in_slices_of_queries(monkeypatch):
    """The same costs to the bit, and never more of them at once than the limit."""
    torch.manual_seed(0)
    outputs, targets = [outputs_of(2, 12), outputs_of(2, 12)], targets_of(5, 3)
    whole = match(outputs, targets, num_groups=3)
    sizes, real = [], matcher.pairwise_costs
    monkeypatch.setattr(matcher, "MOST_COSTS", 100)
    monkeypatch.setattr(
        matcher, "pairwise_costs", lambda *arguments: sizes.append(real(*arguments).numel()) or real(*arguments)
    )
    sliced = match(outputs, targets, num_groups=3)
    assert sizes == [100, 100, 40]  # 2 outputs x 2 pictures x 12 queries x 5 targets
    assert all(
        torch.equal(a, b) for one, other in zip(whole, sliced, strict=True) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("value", [1e30, -1e30, 3e38, 1e-45, 0.0])
def test_any_number_finds_a_matching(value):
    torch.manual_seed(0)
    output, targets = outputs_of(2, 6), targets_of(3, 2)
    output["logits"][0], output["boxes_cxcywh"][0, :4] = value, value
    (matching,) = match([output], targets, num_groups=1)
    assert sorted(matching.target.tolist()) == [0, 1, 2, 3, 4]


def test_no_targets_at_all():
    matchings = match([outputs_of(2, 4)] * 2, targets_of(0, 0), num_groups=2)
    assert [index.shape for matching in matchings for index in matching] == [(0,)] * 6


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_cost_that_is_not_finite_is_avoided(value):
    torch.manual_seed(0)
    output, targets = outputs_of(1, 4), targets_of(2)
    output["boxes_cxcywh"][0, :2] = value
    costs = pairwise_costs([output], targets, CostWeights())
    assert (costs[0, 0, :2] == LARGE_COST).all()
    (matching,) = match([output], targets, num_groups=1)
    assert matching.query.tolist() == [2, 3]


def test_the_order_of_the_targets_does_not_matter():
    torch.manual_seed(0)
    output, targets = outputs_of(1, 10), targets_of(4)
    turned = [{name: values.flip(0) for name, values in targets[0].items()}]
    (matching,), (other) = match([output], targets, 1), match([output], turned, 1)[0]
    assert matching.query.tolist() == other.query.tolist()
    assert matching.target.tolist() == [3 - t for t in other.target.tolist()]


def test_costs_of_bf16_logits_are_float32():
    output = outputs_of(1, 4)
    output["logits"] = output["logits"].bfloat16()
    assert pairwise_costs([output], targets_of(2), CostWeights()).dtype == torch.float32
