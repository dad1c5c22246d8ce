"""COCO detection metrics: pycocotools, the reference, kept from the inputs for which it is silently wrong.

What the raw library does with them: an annotation with id 0, or two with equal ids, counts as missed; no predictions
raise IndexError; a missing `area` or `iscrowd` raises KeyError; a NaN score sorts anywhere; its summary is -1 unless
100 detections count. So the truth is copied and numbered anew, bad results are refused, and the metrics are read from
the precision and recall tables instead of the summary.
"""

import contextlib
import io
import logging
import math
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap

log = logging.getLogger(__name__)

Metric = float | None
"""A plain float from 0 to 1, or None where the metric does not exist."""

RECALL_DETECTIONS = (1, 10, 100)  # AR1, AR10, AR100: the names of the metrics files
IOU_50, IOU_75 = 0, 5  # rows of the IoU thresholds 0.50, 0.55, ..., 0.95
ALL_AREAS, SMALL, MEDIUM, LARGE = range(4)  # columns of pycocotools' area ranges, cut at 32^2 and 96^2 pixels


@dataclass
class CocoMetrics:
    """The score of one set of results.

    A metric is None when nothing defines it (no truth of that size, a class without truth, AR100 when fewer than 100
    detections count); with truth and without predictions it is 0.0. Means are over the classes that have truth.
    """

    overall: dict[str, Metric]
    """AP (IoU 0.50 to 0.95), AP50, AP75, APs, APm, APl, AR1, AR10, AR100; for another max_dets M also AR<M>."""
    per_class: list[dict[str, Any]]
    """For each category, by rising id: category_id, name, AP, AP50, AR100, num_boxes (crowd regions not counted)."""


class CocoEvaluator:
    """Scores any number of result lists against one truth."""

    def __init__(self, truth: dict, max_dets: int = 100):
        """Take a COCO truth and the number of detections, of one class in one image, that count.

        `truth` holds `images`, `annotations` (bbox in xywh pixels) and `categories`; it is not changed. AP is measured
        at `max_dets`; AR1, AR10 and AR100 always at 1, 10 and 100 detections.
        """
        self.max_dets = max_dets
        self._truth = _coco(_clean_truth(truth))
        self._categories = sorted(self._truth.dataset["categories"], key=lambda category: category["id"])
        boxes = [a for a in self._truth.dataset["annotations"] if not a["iscrowd"]]
        self._num_boxes = Counter(box["category_id"] for box in boxes)
        _warn_of_unreachable_boxes(boxes, max_dets)

    def evaluate(self, results: list[dict]) -> CocoMetrics:
        """Score results in COCO format: image_id, category_id, bbox (xywh, pixels), score.

        Raises UserError for an id that the truth lacks, and for a score or a box that is not finite.
        """
        predictions = _clean_results(results, self._truth.imgs, self._truth.cats)
        precision, recall = self._tables(predictions)
        return CocoMetrics(
            overall={
                "AP": _mean(precision[..., ALL_AREAS]),
                "AP50": _mean(precision[IOU_50, ..., ALL_AREAS]),
                "AP75": _mean(precision[IOU_75, ..., ALL_AREAS]),
                "APs": _mean(precision[..., SMALL]),
                "APm": _mean(precision[..., MEDIUM]),
                "APl": _mean(precision[..., LARGE]),
                **{f"AR{dets}": _mean(values) for dets, values in recall.items()},
            },
            per_class=[
                {
                    "category_id": category["id"],
                    "name": category.get("name", str(category["id"])),
                    "AP": _mean(precision[:, :, k, ALL_AREAS]),
                    "AP50": _mean(precision[IOU_50, :, k, ALL_AREAS]),
                    "AR100": _mean(recall[100][:, k]),
                    "num_boxes": self._num_boxes[category["id"]],
                }
                for k, category in enumerate(self._categories)
            ],
        )

    def _tables(self, predictions: list[dict]) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Precision (10 IoU thresholds, 101 recalls, K classes, 4 areas) at max_dets; recall (10, K) by detections.

        -1 marks what has no truth.
        """
        images, categories = self._truth.dataset["images"], self._truth.dataset["categories"]
        scored = _coco({"images": images, "categories": categories, "annotations": predictions})
        evaluation = COCOeval(self._truth, scored, iouType="bbox")
        counted = sorted({dets for dets in RECALL_DETECTIONS if dets < self.max_dets} | {self.max_dets})
        evaluation.params.maxDets = counted
        with _silence():
            evaluation.evaluate()
            evaluation.accumulate()
        recall = evaluation.eval["recall"][:, :, ALL_AREAS]
        at = {dets: recall[..., counted.index(dets)] for dets in counted}
        nothing = np.full(recall.shape[:2], -1.0)
        return evaluation.eval["precision"][..., -1], {d: at.get(d, nothing) for d in (*RECALL_DETECTIONS, *counted)}


def coco_results(detections: Sequence[dict], image_ids: Sequence[int], label_map: LabelMap) -> list[dict]:
    """Detections of a batch in COCO result format, with the data set's own category ids.

    Each detection holds tensors boxes_xyxy (k, 4) in pixels of the image, scores (k,) and labels (k,). Labels from the
    number of classes on belong to the logit that has no target and are dropped.
    """
    results = []
    for image_id, found in zip(image_ids, detections, strict=True):
        boxes_xyxy = found["boxes_xyxy"].cpu().double()  # widths in float64 lose nothing
        rows = zip(boxes_xyxy.tolist(), found["scores"].tolist(), found["labels"].tolist(), strict=True)
        results += [
            {
                "image_id": int(image_id),
                "category_id": label_map.category_ids[label],
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "score": score,
            }
            for (x1, y1, x2, y2), score, label in rows
            if label < len(label_map.category_ids)
        ]
    return results


def _clean_truth(truth: dict) -> dict:
    """A copy with annotations numbered from 1 and with area and iscrowd; ids as plain ints."""
    images = [{**image, "id": int(image["id"])} for image in truth["images"]]
    categories = [{**category, "id": int(category["id"])} for category in truth["categories"]]
    _refuse_repeated_ids("image", images)
    _refuse_repeated_ids("category", categories)
    annotations = [_clean_annotation(number, a) for number, a in enumerate(truth["annotations"], start=1)]
    image_ids, category_ids = {i["id"] for i in images}, {c["id"] for c in categories}
    for source, annotation in zip(truth["annotations"], annotations, strict=True):
        _refuse_unknown_ids(f"annotation {source.get('id', '(no id)')}", annotation, image_ids, category_ids)
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


def _clean_results(results: list[dict], image_ids: Container[int], category_ids: Container[int]) -> list[dict]:
    cleaned = []
    for number, result in enumerate(results, start=1):
        box = [float(value) for value in result["bbox"]]
        prediction = {
            "id": number,
            "image_id": int(result["image_id"]),
            "category_id": int(result["category_id"]),
            "bbox": box,
            "area": box[2] * box[3],
            "score": float(result["score"]),
            "iscrowd": 0,
        }
        _refuse_unknown_ids("a result", prediction, image_ids, category_ids)
        _refuse_bad_numbers(prediction)
        cleaned.append(prediction)
    return cleaned


def _refuse_repeated_ids(kind: str, entries: list[dict]) -> None:
    repeated = [key for key, count in Counter(entry["id"] for entry in entries).items() if count > 1]
    if repeated:
        raise UserError(f"{kind} id {repeated[0]} appears twice in the truth: give each {kind} its own id")


def _refuse_unknown_ids(place: str, box: dict, image_ids: Container[int], category_ids: Container[int]) -> None:
    for key, known in (("image_id", image_ids), ("category_id", category_ids)):
        if box[key] not in known:
            raise UserError(f"{place} of image {box['image_id']} has {key}={box[key]}, which the truth does not list")


def _refuse_bad_numbers(prediction: dict) -> None:
    box, score = prediction["bbox"], prediction["score"]
    if not all(math.isfinite(value) for value in (*box, score)) or box[2] < 0 or box[3] < 0:
        raise UserError(
            f"image {prediction['image_id']} has a prediction with score={score} and box (xywh) {box}: numbers must be "
            "finite and sizes not negative; if the training diverged, lower optimizer.lr or take trainer.precision=fp32"
        )


def _warn_of_unreachable_boxes(boxes: list[dict], max_dets: int) -> None:
    """No detector reaches AP 1 where an image has more boxes of a class than detections count."""
    crowded = {key: n for key, n in Counter((b["image_id"], b["category_id"]) for b in boxes).items() if n > max_dets}
    if crowded:
        (image_id, category_id), most = max(crowded.items(), key=lambda item: item[1])
        log.warning(
            "evaluation.max_dets=%d: %d image(s) have more boxes of one class, image %d has %d of category %d; the "
            "surplus counts as missed; raise evaluation.max_dets to count it",
            max_dets,
            len({image for image, _ in crowded}),
            image_id,
            most,
            category_id,
        )


def _mean(table: np.ndarray) -> Metric:
    """Mean over what has truth; None where nothing has."""
    known = table[table > -1]
    return float(known.mean()) if known.size else None


def _coco(dataset: dict) -> COCO:
    coco = COCO()
    coco.dataset = dataset
    with _silence():
        coco.createIndex()
    return coco


def _silence() -> contextlib.AbstractContextManager:
    return contextlib.redirect_stdout(io.StringIO())
