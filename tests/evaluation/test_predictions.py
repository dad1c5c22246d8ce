"""Predictions as arrays, and the way to and from COCO's result format."""

import torch
from coco_results import predictions_of

from rfdetr_train.evaluation.predictions import Predictions
from rfdetr_train.labels import LabelMap


def test_results_are_plain_and_drop_the_label_without_target():
    detection = {
        "boxes_xyxy": torch.tensor([[10.0, 20.0, 40.5, 60.25], [0.0, 0.0, 5.0, 5.0]]),
        "scores": torch.tensor([0.75, 0.5]),
        "labels": torch.tensor([1, 2]),
    }
    results = Predictions.from_detections({4: detection}, LabelMap((3, 90), ("ant", "zebra"))).to_results()
    assert results == [{"image_id": 4, "category_id": 90, "bbox": [10.0, 20.0, 30.5, 40.25], "score": 0.75}]
    assert all(type(value) is float for value in (*results[0]["bbox"], results[0]["score"]))


def test_there_and_back():
    results = [
        {"image_id": 7, "category_id": 3, "bbox": [1.5, 2.0, 3.0, 4.0], "score": 0.1},
        {"image_id": 2, "category_id": 90, "bbox": [0.0, 0.0, 1.0, 1.0], "score": 0.9},
    ]
    assert predictions_of(results).to_results() == results
    assert predictions_of([]).to_results() == []
