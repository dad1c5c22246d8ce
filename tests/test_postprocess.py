import pytest
import torch

from rfdetr_train.postprocess import detections

SIZE_PX = torch.tensor([[100, 200]])  # height, width


def test_detections_are_those_of_the_reference(reference_toy):
    part = reference_toy["eval"]
    outputs = {"logits": part["pred_logits"], "boxes_cxcywh": part["pred_boxes"]}
    sizes_px = torch.stack([target["orig_size"] for target in reference_toy["targets"]])
    found = detections(outputs, sizes_px, max_detections=20)
    for actual, expected in zip(found, reference_toy["detections"], strict=True):
        assert torch.equal(actual["labels"], expected["labels"])
        torch.testing.assert_close(actual["scores"], expected["scores"], rtol=1e-6, atol=0)
        torch.testing.assert_close(actual["boxes_xyxy"], expected["boxes"], rtol=1e-6, atol=1e-5)


def test_boxes_are_scaled_and_clamped_to_the_picture():
    outputs = {
        "logits": torch.tensor([[[3.0], [2.0], [1.0]]]),
        "boxes_cxcywh": torch.tensor([[[0.5, 0.5, 0.25, 0.5], [0.0, 1.0, 0.5, 0.5], [2.0, -1.0, 0.1, 0.1]]]),
    }
    (found,) = detections(outputs, SIZE_PX, max_detections=3)
    assert found["boxes_xyxy"].tolist() == [[75, 25, 125, 75], [0, 75, 50, 100], [200, 0, 200, 0]]


def test_ties_go_to_the_lower_query_and_then_the_lower_class():
    logits = torch.zeros(1, 40, 3)
    logits[0, 7, 2] = 1.0
    boxes = torch.rand(1, 40, 4)
    (found,) = detections({"logits": logits, "boxes_cxcywh": boxes}, SIZE_PX, max_detections=8)
    assert found["labels"].tolist() == [2, 0, 1, 2, 0, 1, 2, 0]
    assert found["scores"].tolist() == pytest.approx([1 / (1 + 2.718281828**-1)] + [0.5] * 7)
    order = [7, 0, 0, 0, 1, 1, 1, 2]
    (every,) = detections({"logits": torch.zeros(1, 40, 1), "boxes_cxcywh": boxes}, SIZE_PX, max_detections=40)
    assert torch.equal(found["boxes_xyxy"], every["boxes_xyxy"][order])


def test_no_more_detections_than_pairs():
    outputs = {"logits": torch.zeros(2, 2, 3), "boxes_cxcywh": torch.zeros(2, 2, 4)}
    found = detections(outputs, SIZE_PX.repeat(2, 1), max_detections=300)
    assert [len(image["scores"]) for image in found] == [6, 6]


def test_the_last_logit_can_be_left_out():
    outputs = {"logits": torch.tensor([[[0.1, 0.2, 9.0]]]), "boxes_cxcywh": torch.zeros(1, 1, 4)}
    (found,) = detections(outputs, SIZE_PX, max_detections=3, num_labels=2)
    assert found["labels"].tolist() == [1, 0]
