"""COCO detection metrics, by libraries that are kept from the inputs for which they are silently wrong.

What pycocotools, the reference, does with them: an annotation with id 0, or two with equal ids, counts as missed; no
predictions raise IndexError; a missing `area` or `iscrowd` raises KeyError; a NaN score sorts anywhere; its summary is
-1 unless 100 detections count. So the truth is copied and numbered anew, bad results are refused, and the metrics are
read from the precision and recall tables instead of the summary.
"""

import logging
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rfdetr_train.evaluation.backends import choose_backend, compute_tables
from rfdetr_train.evaluation.predictions import Predictions

log = logging.getLogger(__name__)

Metric = float | None
"""A plain float from 0 to 1, or None where the metric does not exist."""

RECALL_DETECTIONS = (1, 10, 100)  # AR1, AR10, AR100: the names of the metrics files
IOU_50, IOU_75 = 0, 5  # rows of the IoU thresholds 0.50, 0.55, ..., 0.95
ALL_AREAS, SIZES = 0, {"s": 1, "m": 2, "l": 3}  # columns of pycocotools' area ranges, cut at 32^2 and 96^2 pixels


@dataclass
class CocoMetrics:
    """The score of one set of results.

    A metric is None when nothing defines it (no truth of that size, a class without truth, AR100 when fewer than 100
    detections count); with truth and without predictions it is 0.0. Means are over the classes that have truth.
    """

    overall: dict[str, Metric]
    """COCO's twelve: AP (IoU 0.50 to 0.95), AP50, AP75, APs, APm, APl, AR1, AR10, AR100, ARs, ARm, ARl; for another
    max_dets M also AR<M>."""
    per_class: list[dict[str, Any]]
    """For each category, by rising id: category_id, name, AP, AP50, AR100 (and AR<M>), num_boxes (without crowds)."""


class CocoEvaluator:
    """Scores any number of predictions against one truth."""

    def __init__(self, truth: dict, max_dets: int = 100, backend: str = "auto"):
        """Take a COCO truth and the number of detections, of one class in one image, that count.

        `truth` holds `images`, `annotations` (bbox in xywh pixels) and `categories`; it is not changed. AP is measured
        at `max_dets`; AR1, AR10 and AR100 always at 1, 10 and 100 detections. `backend` as `choose_backend` takes it.
        """
        self.max_dets = max_dets
        self.truth = _clean_truth(truth)
        self.backend = choose_backend(backend)
        self._categories = sorted(self.truth["categories"], key=lambda category: category["id"])
        boxes = [a for a in self.truth["annotations"] if not a["iscrowd"]]
        self._num_boxes = Counter(box["category_id"] for box in boxes)
        _warn_of_unreachable_boxes(boxes, max_dets)

    def evaluate(self, predictions: Predictions) -> CocoMetrics:
        """Score predictions; UserError for an id that the truth lacks, and for a score or a box that is not finite."""
        predictions.check(*([entry["id"] for entry in self.truth[key]] for key in ("images", "categories")))
        precision, recall = self._tables(self.truth, predictions)
        most = recall[self.max_dets]
        return CocoMetrics(
            overall={
                "AP": _mean(precision[..., ALL_AREAS]),
                "AP50": _mean(precision[IOU_50, ..., ALL_AREAS]),
                "AP75": _mean(precision[IOU_75, ..., ALL_AREAS]),
                **{f"AP{size}": _mean(precision[..., area]) for size, area in SIZES.items()},
                **{f"AR{dets}": _mean(values[..., ALL_AREAS]) for dets, values in recall.items()},
                **{f"AR{size}": _mean(most[..., area]) for size, area in SIZES.items()},
            },
            per_class=[
                {
                    "category_id": category["id"],
                    "name": category.get("name", str(category["id"])),
                    "AP": _mean(precision[:, :, k, ALL_AREAS]),
                    "AP50": _mean(precision[IOU_50, :, k, ALL_AREAS]),
                    **{f"AR{d}": _mean(recall[d][:, k, ALL_AREAS]) for d in dict.fromkeys((100, self.max_dets))},
                    "num_boxes": self._num_boxes[category["id"]],
                }
                for k, category in enumerate(self._categories)
            ],
        )

    def class_agnostic(self, predictions: Predictions) -> dict[str, Metric]:
        """AP and AP50 with all classes taken for one: how well objects are found, whatever they are called."""
        one = {"id": 1, "name": "object"}
        annotations = [{**annotation, "category_id": 1} for annotation in self.truth["annotations"]]
        truth = {"images": self.truth["images"], "annotations": annotations, "categories": [one]}
        nameless = replace(predictions, category_ids=np.ones_like(predictions.category_ids))
        precision, _ = self._tables(truth, nameless)
        return {"AP": _mean(precision[..., ALL_AREAS]), "AP50": _mean(precision[IOU_50, ..., ALL_AREAS])}

    def _tables(self, truth: dict, predictions: Predictions) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Precision (10 IoU thresholds, 101 recalls, K classes, 4 areas) at max_dets; recall (10, K, 4) by detections.

        -1 marks what has no truth.
        """
        counted = sorted({dets for dets in RECALL_DETECTIONS if dets < self.max_dets} | {self.max_dets})
        num_classes = len(truth["categories"])
        recall = dict.fromkeys((*RECALL_DETECTIONS, *counted), np.full((10, num_classes, 4), -1.0))
        if not (truth["images"] and num_classes):  # nothing to count, and some libraries fail on it
            return np.full((10, 101, num_classes, 4), -1.0), recall
        precision, table = compute_tables(self.backend, truth, predictions, counted)
        return precision, recall | {dets: table[..., place] for place, dets in enumerate(counted)}


def _clean_truth(truth: dict) -> dict:
    """A copy with annotations numbered from 1 and with area and iscrowd; ids as plain ints."""
    images = [{**image, "id": int(image["id"])} for image in truth["images"]]
    categories = [{**category, "id": int(category["id"])} for category in truth["categories"]]
    annotations = [_clean_annotation(number, a) for number, a in enumerate(truth["annotations"], start=1)]
    for key, entries in (("image_id", images), ("category_id", categories)):
        known = {entry["id"] for entry in entries}
        assert len(known) == len(entries), f"{key}: one is given twice"
        assert known.issuperset(annotation[key] for annotation in annotations), f"{key}: one is not listed"
    return {"images": images, "categories": categories, "annotations": annotations}


def _clean_annotation(number: int, annotation: dict) -> dict:
    x, y, width, height = (float(value) for value in annotation["bbox"])
    area = annotation.get("area")
    return {
        "id": number,  # never 0: pycocotools takes a match with id 0 for none
        "image_id": int(annotation["image_id"]),
        "category_id": int(annotation["category_id"]),
        "bbox": [x, y, width, height],
        "area": width * height if area is None else float(area),
        "iscrowd": int(annotation.get("iscrowd") or 0),
    }


def _warn_of_unreachable_boxes(boxes: list[dict], max_dets: int) -> None:
    """No detector reaches AP 1 where an image has more boxes of a class than detections count."""
    crowded = {key: n for key, n in Counter((b["image_id"], b["category_id"]) for b in boxes).items() if n > max_dets}
    if crowded:
        (image_id, category_id), most = max(crowded.items(), key=lambda item: item[1])
        message = "evaluation.max_dets=%d: %d image(s) have more boxes of one class, image %d has %d of category %d; "
        message += "the surplus counts as missed; raise evaluation.max_dets to count it"
        log.warning(message, max_dets, len({image for image, _ in crowded}), image_id, most, category_id)


def _mean(table: np.ndarray) -> Metric:
    """Mean over what has truth; None where nothing has."""
    known = table[table > -1]
    return float(known.mean()) if known.size else None
