import torch

from rfdetr_train.boxes import apply_deltas
from rfdetr_train.models.heads import box_head, class_head
from rfdetr_train.models.two_stage import TwoStage, make_anchors

CPU = torch.device("cpu")


def random_two_stage(num_groups: int) -> TwoStage:
    two_stage = TwoStage(8, num_groups, class_head(8, 3), box_head(8))
    with torch.no_grad():
        for parameter in two_stage.parameters():
            parameter.normal_(std=0.5)
    return two_stage


def test_anchors_are_cell_centres_with_the_size_of_their_level():
    anchors, valid = make_anchors([(2, 4), (1, 2)], CPU)
    expected = [[x, y, 0.05, 0.05] for y in (0.25, 0.75) for x in (0.125, 0.375, 0.625, 0.875)]
    expected += [[0.25, 0.5, 0.1, 0.1], [0.75, 0.5, 0.1, 0.1]]
    torch.testing.assert_close(anchors, torch.tensor(expected))
    assert anchors.dtype == torch.float32
    assert valid.all()


def test_anchors_at_the_border_of_a_large_grid_and_of_a_high_level_are_invalid():
    anchors, valid = make_anchors([(1, 64)], CPU)  # first centre 1/128, below the margin of 0.01
    assert valid.tolist() == [False] + [True] * 62 + [False]
    assert not anchors[0].any()
    assert make_anchors([(49, 49)], CPU)[1].all()
    assert (~make_anchors([(50, 50)], CPU)[1]).sum() == 196  # 0.5 / 50 is not above the margin: the border of 4 x 49
    sizes = make_anchors([(1, 1)] * 6, CPU)[1]
    assert sizes.tolist() == [True] * 5 + [False]  # 0.05 * 2^5 exceeds the picture


def test_each_group_picks_its_best_tokens_over_all_levels():
    torch.manual_seed(0)
    two_stage, grids = random_two_stage(num_groups=3), [(4, 4), (2, 2)]
    memory = torch.randn(2, 20, 8)
    selection = two_stage(memory, grids, num_picks=5, num_groups=2)
    assert selection.logits.shape == (2, 10, 3)

    anchors, _ = make_anchors(grids, CPU)
    for group, selector in enumerate(two_stage.groups[:2]):
        embedded = selector.norm(selector.project(memory))
        logits, boxes = selector.class_embed(embedded), apply_deltas(selector.box_embed(embedded), anchors)
        for image in range(2):
            order = sorted(range(20), key=lambda token: -logits[image, token].max().item())[:5]
            mine = slice(group * 5, group * 5 + 5)
            torch.testing.assert_close(selection.logits[image, mine], logits[image, order])
            torch.testing.assert_close(selection.boxes_cxcywh[image, mine], boxes[image, order])


def test_gradients_are_those_of_computing_all_tokens():
    torch.manual_seed(1)
    two_stage, grids = random_two_stage(num_groups=1), [(4, 4)]
    memory = torch.randn(1, 16, 8, requires_grad=True)
    selection = two_stage(memory, grids, num_picks=3, num_groups=1)
    (selection.logits.sum() + selection.boxes_cxcywh.sum()).backward()
    actual = [memory.grad.clone(), *(parameter.grad.clone() for parameter in two_stage.parameters())]

    memory.grad = None
    two_stage.zero_grad()
    selector = two_stage.groups[0]
    embedded = selector.norm(selector.project(memory))
    logits, boxes = (
        selector.class_embed(embedded),
        apply_deltas(selector.box_embed(embedded), make_anchors(grids, CPU)[0]),
    )
    picks = logits.amax(-1).topk(3, dim=1).indices[0]
    (logits[:, picks].sum() + boxes[:, picks].sum()).backward()
    torch.testing.assert_close(actual, [memory.grad, *(parameter.grad for parameter in two_stage.parameters())])
    assert (memory.grad.abs().sum(-1) > 0).sum() == 3


def test_an_invalid_token_counts_as_zero_memory_and_has_no_box():
    torch.manual_seed(2)
    two_stage = random_two_stage(num_groups=1)
    memory = torch.randn(1, 64, 8)
    changed = memory.clone()
    changed[0, [0, 63]] += 5.0
    before, after = (two_stage(m, [(1, 64)], num_picks=64, num_groups=1) for m in (memory, changed))
    assert torch.equal(before.logits, after.logits)
    assert (before.boxes_cxcywh == 0).all(-1).sum() == 2


def test_ranking_under_autocast_leaves_the_weights_their_gradients():
    two_stage = random_two_stage(num_groups=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        two_stage(torch.randn(1, 16, 8), [(4, 4)], num_picks=3, num_groups=1).logits.sum().backward()
    assert two_stage.groups[0].project.weight.grad.abs().max() > 0
    assert two_stage.groups[0].class_embed.weight.grad.abs().max() > 0


def test_initial_projection_is_xavier():
    weight = TwoStage(8, 1, class_head(8, 3), box_head(8)).groups[0].project.weight
    bound = (6 / 16) ** 0.5
    assert 0.8 * bound < weight.abs().max() <= bound
