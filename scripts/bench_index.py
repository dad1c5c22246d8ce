"""Time and memory of reading a COCO file of train2017's size: `python scripts/bench_index.py FOLDER`, twice.

The first call writes the file (180 MB, with a polygon of four points for each box).
"""

import json
import pickle
import resource
import sys
import time
from pathlib import Path

import numpy as np

from rfdetr_train.config import DataConfig
from rfdetr_train.data.coco import ROBOFLOW_FILE
from rfdetr_train.data.dataset import read_dataset

IMAGES, BOXES = 118_287, 860_001


def write(file: Path) -> None:
    """Random boxes under ids in no order."""
    rng = np.random.default_rng(0)
    ids = rng.permutation(600_000)[:IMAGES].tolist()
    boxes = rng.uniform(2, 240, (BOXES, 4)).round(2).tolist()
    owners, classes = rng.integers(IMAGES, size=BOXES).tolist(), rng.integers(1, 81, size=BOXES).tolist()
    url = "http://images.cocodataset.org/train2017/{:012d}.jpg"
    images = [
        {"file_name": f"{i:012d}.jpg", "coco_url": url.format(i), "height": 480, "width": 640, "id": i} for i in ids
    ]
    annotations = [
        {
            "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
            "area": w * h,
            "iscrowd": 0,
            "image_id": ids[owner],
            "bbox": [x, y, w, h],
            "category_id": category,
            "id": number,
        }
        for number, ((x, y, w, h), owner, category) in enumerate(zip(boxes, owners, classes, strict=True), start=1)
    ]
    categories = [{"id": number, "name": f"class {number}"} for number in range(1, 81)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))


def peak_mb() -> float:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    root = Path(sys.argv[1])
    if not (root / "train" / ROBOFLOW_FILE).is_file():
        write(root / "train" / ROBOFLOW_FILE)
        sys.exit("written; call again to measure, in a process that has not grown by writing")
    imports_mb, started = peak_mb(), time.process_time()
    train = read_dataset(DataConfig("coco", format="coco", root=str(root)), ("train",)).splits["train"]
    print(f"{time.process_time() - started:.1f} s of processor time")
    worker_mb = len(pickle.dumps(train)) / 1e6
    print(f"peak {peak_mb():.0f} MB, of which imports {imports_mb:.0f} MB; a worker gets {worker_mb:.0f} MB")
