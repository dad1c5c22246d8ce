import math

import pytest
import torch

from rfdetr_train.boxes import apply_deltas, at_least_float32, cxcywh_to_xyxy, iou_and_giou


def test_formats_by_hand():
    boxes_cxcywh = torch.tensor([[0.5, 0.25, 0.5, 0.125], [3.0, 4.0, 0.0, 2.0]])
    boxes_xyxy = cxcywh_to_xyxy(boxes_cxcywh)
    assert boxes_xyxy.tolist() == [[0.25, 0.1875, 0.75, 0.3125], [3.0, 3.0, 3.0, 5.0]]


def test_a_negative_size_counts_as_zero():
    assert cxcywh_to_xyxy(torch.tensor([0.5, 0.5, -0.25, 0.5])).tolist() == [0.5, 0.25, 0.5, 0.75]


def test_deltas_move_by_the_size_and_scale_by_their_exponential():
    references = torch.tensor([0.5, 0.25, 0.2, 0.1], dtype=torch.float64)
    deltas = torch.tensor([1.0, -2.0, math.log(3), 0.0], dtype=torch.float64)
    torch.testing.assert_close(apply_deltas(deltas, references), torch.tensor([0.7, 0.05, 0.6, 0.1]).double())


def test_boxes_of_bf16_deltas_are_float32():
    deltas = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.bfloat16)
    boxes = apply_deltas(deltas, torch.tensor([0.5, 0.5, 0.1, 0.1]))
    assert boxes.dtype == torch.float32
    assert boxes[2].item() == pytest.approx(0.1 * math.e, rel=1e-6)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float64, torch.float64)],
)
def test_precision_is_raised_never_lowered(dtype, expected):
    assert at_least_float32(torch.zeros(1, dtype=dtype)).dtype == expected


@pytest.mark.parametrize(
    ("a", "b", "iou", "giou"),
    [
        ([0, 0, 2, 2], [0, 0, 2, 2], 1.0, 1.0),
        ([0, 0, 2, 2], [1, 1, 3, 3], 1 / 7, 1 / 7 - 2 / 9),
        ([0, 0, 1, 1], [2, 0, 3, 1], 0.0, -1 / 3),
        ([0, 0, 4, 4], [1, 1, 2, 3], 2 / 16, 2 / 16),
        ([1, 1, 1, 1], [1, 1, 1, 1], 0.0, 0.0),  # two points: nothing is divided by zero
    ],
)
def test_iou_and_giou_by_hand(a, b, iou, giou):
    actual = iou_and_giou(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    assert [value.item() for value in actual] == pytest.approx([iou, giou], abs=1e-12)


def test_iou_broadcasts_to_all_pairs():
    a = torch.tensor([[0.0, 0, 2, 2], [5, 5, 6, 6]])
    b = torch.tensor([[0.0, 0, 2, 2], [1, 1, 3, 3], [5, 5, 6, 6]])
    iou, giou = iou_and_giou(a[:, None], b[None])
    torch.testing.assert_close(iou, torch.tensor([[1, 1 / 7, 0], [0, 0, 1]]))
    assert giou.shape == (2, 3)
