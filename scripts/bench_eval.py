"""Time the COCO metrics of every installed library on random detections, and hold each to pycocotools.

    python scripts/bench_eval.py                                 # 5,000 images, 500,000 detections
    python scripts/bench_eval.py --images 500 --rounds 5

The libraries take turns in each round. What is timed is what a validation does: checks, tables and means from arrays.
"""

import argparse
import contextlib
import io
import time

import numpy as np

from rfdetr_train.evaluation.backends import FASTEST_FIRST
from rfdetr_train.evaluation.coco_metrics import CocoEvaluator
from rfdetr_train.evaluation.predictions import Predictions
from rfdetr_train.loggers.console import print_table

DETECTIONS_PER_IMAGE, BOXES_PER_IMAGE, CLASSES, SIDE_PX = 100, 7, 80, 640


def random_truth(num_images: int, rng: np.random.Generator) -> dict:
    """About as many boxes, classes and crowd regions as COCO's valid split has."""
    images = [{"id": i, "file_name": f"{i}.jpg", "width": SIDE_PX, "height": SIDE_PX} for i in range(1, num_images + 1)]
    boxes = random_boxes(num_images * BOXES_PER_IMAGE, rng).tolist()
    annotations = [
        {
            "image_id": i // BOXES_PER_IMAGE + 1,
            "category_id": int(rng.integers(1, CLASSES + 1)),
            "bbox": box,
            "iscrowd": int(rng.random() < 0.01),
        }
        for i, box in enumerate(boxes)
    ]
    categories = [{"id": k, "name": str(k)} for k in range(1, CLASSES + 1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def random_boxes(count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, 4) xywh in pixels, of all three COCO sizes."""
    sizes = np.exp(rng.uniform(np.log(8), np.log(300), (count, 2)))
    return np.concatenate([rng.uniform(0, SIDE_PX - sizes), sizes], axis=1)


def random_predictions(truth: dict, rng: np.random.Generator) -> Predictions:
    """Shifted truth for a tenth of the detections, boxes anywhere for the rest."""
    num_images = len(truth["images"])
    count = num_images * DETECTIONS_PER_IMAGE
    boxes, categories = random_boxes(count, rng), rng.integers(1, CLASSES + 1, count)
    image_ids = np.repeat(np.arange(1, num_images + 1), DETECTIONS_PER_IMAGE)
    for i, annotation in enumerate(truth["annotations"]):
        row = (annotation["image_id"] - 1) * DETECTIONS_PER_IMAGE + i % BOXES_PER_IMAGE
        boxes[row] = np.abs(np.array(annotation["bbox"]) + rng.normal(0, 4, 4))
        categories[row] = annotation["category_id"]
    return Predictions(image_ids, categories, boxes, rng.random(count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    truth = random_truth(arguments.images, rng)
    predictions = random_predictions(truth, rng)
    evaluators = {name: CocoEvaluator(truth, backend=name) for name in FASTEST_FIRST}
    seconds: dict[str, list[float]] = {name: [] for name in evaluators}
    metrics = {}
    for _ in range(arguments.rounds):
        for name, evaluator in evaluators.items():
            start = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                metrics[name] = evaluator.evaluate(predictions).overall
            seconds[name].append(time.perf_counter() - start)
    reference = metrics["pycocotools"]
    rows = []
    for name, times in seconds.items():
        low, median, high = np.percentile(times, [25, 50, 75])
        error = max(abs((metrics[name][key] or 0) - (reference[key] or 0)) for key in reference)
        ratio = np.median(seconds["pycocotools"]) / median
        rows.append([name, f"{median:.2f} [{low:.2f}, {high:.2f}]", f"{ratio:.1f}x", f"{error:.1e}"])
    print_table(
        f"{len(predictions)} detections on {arguments.images} images",
        ["library", "s", "pycocotools / it", "largest difference"],
        rows,
    )


if __name__ == "__main__":
    main()
