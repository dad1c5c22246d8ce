"""The libraries that can compute COCO's precision and recall tables, and which one does.

pycocotools is the reference; the others give the same numbers to 1e-9 in a fraction of the time. All are silently
wrong, or fail, on truth without ids, areas or crowd flags, so they are given none (see `coco_metrics`).
"""

import contextlib
import importlib.util
import io
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rfdetr_train.errors import UserError
from rfdetr_train.evaluation.predictions import Predictions

FASTEST_FIRST = ("hotcoco", "faster_coco_eval", "pycocotools")


def choose_backend(wanted: str) -> str:
    """The library that `evaluation.backend` means; auto is the fastest that is installed."""
    if wanted == "auto":
        return next(name for name in FASTEST_FIRST if importlib.util.find_spec(name))
    if importlib.util.find_spec(wanted) is None:
        extra = wanted.replace("_", "-")
        raise UserError(f"evaluation.backend={wanted}: is not installed; pip install {extra}, or take auto")
    return wanted


def compute_tables(
    backend: str, truth: dict, predictions: Predictions, max_dets: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """COCO's tables of `predictions` against a clean `truth`; `max_dets`, M numbers of detections, rises.

    Over T = 10 IoU thresholds (0.50 to 0.95), K categories and 4 area ranges: precision (T, 101, K, 4) at 101 recalls
    and the largest number of detections, recall (T, K, 4, M); -1 marks what has no truth.
    """
    truth, predictions = numbered(truth, predictions)
    with _silence():
        evaluation = _EVALUATIONS[backend](truth, predictions)
        evaluation.params.maxDets = max_dets
        evaluation.evaluate()
        evaluation.accumulate()
    return np.asarray(evaluation.eval["precision"])[..., -1], np.asarray(evaluation.eval["recall"])


def numbered(truth: dict, predictions: Predictions) -> tuple[dict, Predictions]:
    """The same with images and categories numbered from 1 in the order of their ids.

    A data set's own ids may be negative, which hotcoco refuses, or lose digits in its float64 rows.
    """
    images, categories = (sorted(entry["id"] for entry in truth[key]) for key in ("images", "categories"))
    image_number, category_number = ({key: n for n, key in enumerate(ids, 1)} for ids in (images, categories))
    annotations = [
        {**a, "image_id": image_number[a["image_id"]], "category_id": category_number[a["category_id"]]}
        for a in truth["annotations"]
    ]
    return {
        "images": [{**image, "id": image_number[image["id"]]} for image in truth["images"]],
        "categories": [{**category, "id": category_number[category["id"]]} for category in truth["categories"]],
        "annotations": annotations,
    }, replace(
        predictions,
        image_ids=np.searchsorted(images, predictions.image_ids) + 1,
        category_ids=np.searchsorted(categories, predictions.category_ids) + 1,
    )


def hotcoco_evaluation(truth: dict, predictions: Predictions) -> Any:
    """hotcoco's evaluation, which also tells kinds of errors; not yet run. It takes what `numbered` gives."""
    from hotcoco import COCO, COCOeval

    coco = COCO(truth)
    rows = (predictions.image_ids, predictions.boxes_xywh, predictions.scores, predictions.category_ids)
    found = coco.load_res(np.column_stack(rows).reshape(-1, 7))
    return COCOeval(coco, found, "bbox")


def _pycocotools(truth: dict, predictions: Predictions) -> Any:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    return COCOeval(_indexed(COCO(), truth), _indexed(COCO(), _as_dataset(truth, predictions)), "bbox")


def _faster_coco_eval(truth: dict, predictions: Predictions) -> Any:
    from faster_coco_eval import COCO, COCOeval_faster

    found = _indexed(COCO(), _as_dataset(truth, predictions))
    return COCOeval_faster(_indexed(COCO(), truth), found, "bbox")


_EVALUATIONS: dict[str, Callable[[dict, Predictions], Any]] = {
    "hotcoco": hotcoco_evaluation,
    "faster_coco_eval": _faster_coco_eval,
    "pycocotools": _pycocotools,
}


def _as_dataset(truth: dict, predictions: Predictions) -> dict:
    """Detections as annotations of the truth's images, as the libraries' own `loadRes` makes them."""
    areas = (predictions.boxes_xywh[:, 2] * predictions.boxes_xywh[:, 3]).tolist()
    annotations = [
        {**result, "id": number, "area": area, "iscrowd": 0}
        for number, (result, area) in enumerate(zip(predictions.to_results(), areas, strict=True), start=1)
    ]
    return {"images": truth["images"], "categories": truth["categories"], "annotations": annotations}


def _indexed(coco: Any, dataset: dict) -> Any:
    coco.dataset = dataset
    coco.createIndex()
    return coco


@contextlib.contextmanager
def _silence() -> Any:
    level = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
