"""What kinds of errors a detector makes, at IoU 0.5: curves, the best threshold, confusions, calibration, TIDE.

hotcoco matches and counts; detections on crowd regions are neither right nor wrong, and are left out of everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfdetr_train.evaluation.backends import hotcoco_evaluation, numbered
from rfdetr_train.evaluation.predictions import Predictions

IOU = 0.5  # of a detection that is right
BACKGROUND_IOU = 0.1  # below it a detection touches nothing (TIDE, arXiv 2008.08115)
CURVE_POINTS = 101  # of a curve as it is kept
CALIBRATION_BINS = 10
TIDE_NAMES = {"Cls": "classification", "Loc": "localisation", "Both": "both", "Dupe": "duplicate",
              "Bkg": "background", "Miss": "missed"}  # fmt: skip
CALIBRATION_NAMES = {"low": "bin_lower", "high": "bin_upper", "score": "avg_confidence",
                     "precision": "avg_accuracy", "count": "count"}  # fmt: skip
IMAGE_NAMES = {"right": "tp", "wrong": "fp", "missed": "fn", "F1": "f1", "AP50": "ap"}


@dataclass
class Curve:
    """Precision and recall of one class (or of all) as the score threshold falls; plain floats."""

    name: str
    num_boxes: int
    scores: list[float]
    precision: list[float]
    recall: list[float]
    best: dict[str, float] | None
    """threshold, precision, recall and f1 where F1 is largest (the highest such threshold); None without truth or
    without a right detection."""


@dataclass
class Diagnosis:
    """All of it, as plain values."""

    curves: list[Curve]
    """All classes together first, then each class by rising category id."""
    confusion: dict[str, Any]
    """`matrix`: rows truth, columns prediction, both by rising category id and then background; `names` of rows and
    columns; the score `threshold` from which detections count."""
    calibration: dict[str, Any]
    """`expected_error` and `largest_error` of score against precision; `bins` of low, high, mean score, precision,
    count."""
    errors: dict[str, dict[str, float]]
    """TIDE's six kinds: how many, and the AP50 that mending all of one kind would gain."""
    images: dict[int, dict[str, float]]
    """Image id -> right, wrong and missed boxes, F1, AP50: to find the best and the worst pictures."""


def diagnose(truth: dict, predictions: Predictions, max_dets: int) -> Diagnosis | None:
    """Diagnose `predictions` against a clean COCO `truth` (numbered annotations with area and iscrowd).

    The `max_dets` best detections of a class in an image count. None where there is no truth to measure against.
    """
    if not any(not annotation["iscrowd"] for annotation in truth["annotations"]):
        return None
    image_ids = sorted(image["id"] for image in truth["images"])
    truth, predictions = numbered(truth, predictions)
    evaluation = hotcoco_evaluation(truth, predictions)
    evaluation.params.maxDets = [1, max_dets] if max_dets > 1 else [1]
    evaluation.evaluate()
    evaluation.accumulate()
    found = evaluation.image_diagnostics(iou_thr=IOU)
    is_right = np.full(len(predictions), np.nan)  # NaN: on a crowd region, or beyond max_dets
    for number, status in found["dt_status"].items():
        is_right[number - 1] = status == "tp"
    curves = _curves(truth, predictions, is_right)
    threshold = curves[0].best["threshold"] if curves[0].best else 0.5
    calibration = evaluation.calibration(n_bins=CALIBRATION_BINS, iou_threshold=IOU)
    tide = evaluation.tide_errors(pos_thr=IOU, bg_thr=BACKGROUND_IOU)
    return Diagnosis(
        curves=curves,
        confusion=_confusion(truth, predictions.select(~np.isnan(is_right)), threshold),
        calibration={
            "expected_error": calibration["ece"],
            "largest_error": calibration["mce"],
            "bins": [_renamed(row, CALIBRATION_NAMES) for row in calibration["bins"]],
        },
        errors={
            name: {"count": tide["counts"][theirs], "AP50_lost": tide["delta_ap"][theirs]}
            for theirs, name in TIDE_NAMES.items()
        },
        images={
            image_ids[number - 1]: _renamed(row, IMAGE_NAMES) for number, row in sorted(found["img_summary"].items())
        },
    )


def _renamed(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {ours: row[theirs] for ours, theirs in names.items()}


def _curves(truth: dict, predictions: Predictions, is_right: np.ndarray) -> list[Curve]:
    owners = np.array([a["category_id"] for a in truth["annotations"] if not a["iscrowd"]])
    counted = ~np.isnan(is_right)
    curves = [_curve("all", len(owners), predictions.scores[counted], is_right[counted])]
    for category in sorted(truth["categories"], key=lambda category: category["id"]):
        own = counted & (predictions.category_ids == category["id"])
        num_boxes = int((owners == category["id"]).sum())
        curves.append(_curve(str(category["name"]), num_boxes, predictions.scores[own], is_right[own]))
    return curves


def _curve(name: str, num_boxes: int, scores: np.ndarray, is_right: np.ndarray) -> Curve:
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], np.cumsum(is_right[order])
    last_of_score = np.flatnonzero(np.append(scores[:-1] != scores[1:], True)) if len(scores) else np.zeros(0, int)
    scores, right, found = scores[last_of_score], right[last_of_score], last_of_score + 1
    if not num_boxes or not right.any():
        return Curve(name, num_boxes, [], [], [], None)
    precision, recall = right / found, right / num_boxes
    f1 = 2 * right / (found + num_boxes)
    top = int(f1.argmax())
    best = {"threshold": scores[top], "precision": precision[top], "recall": recall[top], "f1": f1[top]}
    kept = np.unique(np.linspace(0, len(scores) - 1, CURVE_POINTS).round().astype(int))
    points = [values[kept].tolist() for values in (scores, precision, recall)]
    return Curve(name, num_boxes, points[0], points[1], points[2], {key: float(best[key]) for key in best})


def _confusion(truth: dict, predictions: Predictions, threshold: float) -> dict[str, Any]:
    evaluation = hotcoco_evaluation(truth, predictions)
    result = evaluation.confusion_matrix(iou_thr=IOU, max_det=max(1, len(predictions)), min_score=threshold)
    names = [*map(str, result["cat_names"]), "background"]
    return {"matrix": result["matrix"].astype(int).tolist(), "names": names, "threshold": threshold}
