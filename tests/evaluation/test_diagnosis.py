"""Curves, confusions, calibration and TIDE's errors of two pictures, worked by hand."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from coco_results import predictions_of

from rfdetr_train.evaluation.coco_metrics import CocoEvaluator
from rfdetr_train.evaluation.diagnosis import Diagnosis, diagnose

BOXES = [  # image, category, box, crowd
    (1, 1, [0, 0, 100, 100], 0),
    (1, 1, [200, 200, 50, 50], 0),
    (1, 2, [300, 300, 50, 50], 0),
    (1, 1, [400, 0, 100, 100], 1),
    (2, 2, [0, 0, 30, 30], 0),
]
FOUND = [  # image, category, box, score
    (1, 1, [0, 0, 100, 100], 0.9),  # right
    (1, 1, [0, 2, 100, 100], 0.8),  # the same object again
    (1, 1, [300, 300, 50, 50], 0.7),  # the other class
    (1, 1, [200, 200, 50, 15], 0.65),  # IoU 0.3
    (1, 2, [500, 500, 20, 20], 0.6),  # nothing there
    (1, 1, [410, 10, 40, 40], 0.95),  # part of a crowd: does not count
]
TRUTH = {
    "images": [{"id": i, "width": 640, "height": 640, "file_name": f"{i}.jpg"} for i in (1, 2)],
    "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
    "annotations": [
        {"image_id": image, "category_id": category, "bbox": box, "iscrowd": crowd}
        for image, category, box, crowd in BOXES
    ],
}
PREDICTIONS = predictions_of(
    [{"image_id": i, "category_id": c, "bbox": box, "score": score} for i, c, box, score in FOUND]
)


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    found = diagnose(CocoEvaluator(TRUTH).truth, PREDICTIONS, max_dets=100)
    assert found is not None
    return found


def test_curves_and_best_thresholds(diagnosis):
    everything, a, b = diagnosis.curves
    assert (everything.name, everything.num_boxes, a.num_boxes, b.num_boxes) == ("all", 4, 2, 2)
    assert everything.scores == [0.9, 0.8, 0.7, 0.65, 0.6]
    assert everything.precision == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert everything.recall == [1 / 4] * 5
    assert everything.best == {"threshold": 0.9, "precision": 1.0, "recall": 0.25, "f1": pytest.approx(0.4)}
    assert a.best == {"threshold": 0.9, "precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3)}
    assert b.best is None


def test_confusion_counts_from_the_best_threshold_on(diagnosis):
    assert diagnosis.confusion["names"] == ["a", "b", "background"]
    assert diagnosis.confusion["threshold"] == 0.9
    assert diagnosis.confusion["matrix"] == [[1, 0, 1], [0, 0, 2], [0, 0, 0]]


def test_calibration(diagnosis):
    gaps = [0.1, 0.8, 0.7, 0.625, 0.625]  # of 0.9 right, 0.8, 0.7, and 0.65 with 0.6 in one bin, all wrong
    assert diagnosis.calibration["expected_error"] == pytest.approx(sum(gaps) / 5)
    assert diagnosis.calibration["largest_error"] == pytest.approx(0.8)
    assert sum(row["count"] for row in diagnosis.calibration["bins"]) == 5


def test_errors_of_each_kind(diagnosis):
    counts = {name: error["count"] for name, error in diagnosis.errors.items()}
    assert counts == {
        "classification": 1, "localisation": 1, "both": 0, "duplicate": 1, "background": 1, "missed": 1,
    }  # fmt: skip
    lost = {name: error["AP50_lost"] for name, error in diagnosis.errors.items()}
    # class a has AP 51/101 (recall 1/2 at precision 1), class b 0; the mean of both counts
    assert lost["localisation"] == pytest.approx(50 / 101 * (2 / 4) / 2)  # a second right one at rank 4
    assert lost["classification"] == pytest.approx(51 / 101 / 2)  # a right one of b at rank 1
    assert lost["duplicate"] == pytest.approx(0.0)


def test_images(diagnosis):
    assert diagnosis.images[1] == {"right": 1, "wrong": 4, "missed": 2, "F1": pytest.approx(0.25),
                                   "AP50": diagnosis.images[1]["AP50"]}  # fmt: skip
    assert (diagnosis.images[2]["right"], diagnosis.images[2]["missed"]) == (0, 1)


def test_values_are_plain(diagnosis):
    json.dumps(asdict(diagnosis))


def test_class_agnostic_takes_a_wrong_class_for_right():
    metrics = CocoEvaluator(TRUTH).class_agnostic(PREDICTIONS)
    # ranks 1 and 3 are right of four objects: precision 1 up to recall 1/4, 2/3 up to 1/2
    assert metrics["AP50"] == pytest.approx((26 + 25 * 2 / 3) / 101)


@pytest.mark.parametrize("max_dets", [1, 300])
def test_no_predictions_and_no_truth(max_dets):
    nothing = predictions_of([])
    found = diagnose(CocoEvaluator(TRUTH).truth, nothing, max_dets)
    assert found is not None
    assert found.errors["missed"]["count"] == 4
    assert found.curves[0].best is None
    assert np.array(found.confusion["matrix"])[:, -1].tolist() == [2, 2, 0]
    empty = CocoEvaluator(TRUTH | {"annotations": []}).truth
    assert diagnose(empty, PREDICTIONS, max_dets) is None
