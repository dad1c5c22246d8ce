"""Images a second of the train pipeline on one core: python scripts/bench_data.py --reference-python PATH --data ROOT.

Files to normalised float32 batches of 4 by the reference recipe at one resolution (flip, and for half of the pictures
resize, crop, resize): ours, ours with data.cache=ram, and the reference package's. Each runs in a process of one thread
with the memory settings of its own loader's workers. They take turns, a pass over the pictures each; processor time
counts, the first pass does not.
Generated photographs are measured besides --data. Without --reference-python ours runs alone.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from turns import Arm, command_line, quartiles, ratios, serve, show, take_turns, write_report

BATCH = 4
GENERATED = {"640x480": (640, 480, 40), "1920x1080": (1920, 1080, 16), "4000x3000": (4000, 3000, 6)}
"""By name: width, height, how many pictures."""


def main() -> None:
    """Measure, or be one of the measured processes."""
    parser = command_line("Images a second of the train pipeline on one core.")
    parser.add_argument("--reference-python", help="a Python that has the reference package, rfdetr")
    parser.add_argument("--data", type=Path, help="a COCO data set in Roboflow's layout")
    parser.add_argument("--side", type=int, default=384, help="of the square views, px")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", nargs=2, metavar=("ARM", "ROOT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        arm, root = arguments.serve
        serve(one_pass(ARMS[arm](Path(root), arguments.side)))
        return
    with tempfile.TemporaryDirectory() as folder:
        roots = {arguments.data.name: arguments.data} if arguments.data else {}
        roots |= {name: generate(Path(folder) / name, *sizes) for name, sizes in GENERATED.items()}
        rows = [compare(name, root, arguments) for name, root in roots.items()]
    show(f"images a second on one core at {arguments.side} px", [key for key in rows[0] if "clock" not in key], rows)
    write_report(arguments, rows)


def ours(root: Path, side_px: int, cached: bool = False) -> Callable[[int], int]:
    """One epoch of this package's train loader, as its workers run it."""
    import torch

    from rfdetr_train.allocator import keep_freed_memory
    from rfdetr_train.config import AugmentationConfig, DataConfig
    from rfdetr_train.data.dataset import read_dataset
    from rfdetr_train.data.loader import TrainLoader
    from rfdetr_train.data.picture_cache import open_cache
    from rfdetr_train.data.transforms import normalise, source_side_px
    from rfdetr_train.data.workers import KEPT_BY_WORKERS

    torch.set_num_threads(1)
    keep_freed_memory(*KEPT_BY_WORKERS)
    recipe = AugmentationConfig(name="reference", horizontal_flip=0.5, resize_crop=0.5)
    split = read_dataset(DataConfig(name="auto", root=str(root))).splits["train"]
    needed_px = source_side_px(side_px, recipe)
    cache = open_cache(split, needed_px, "ram", root, lambda done, total: None) if cached else None
    sizes = {"batch_size": BATCH, "accumulation_steps": 1, "seed": 0, "num_workers": 0}
    loader = TrainLoader(split, recipe, [side_px], **sizes, cache=cache)
    return lambda epoch: sum(len(normalise(batch.images)) for step in loader.epoch(epoch) for batch in step)


def reference(root: Path, side_px: int) -> Callable[[int], int]:
    """One pass over the reference package's train data set, collated as its loader does."""
    import torch
    from rfdetr.datasets.coco import build_roboflow_from_coco
    from rfdetr.utilities.tensors import make_collate_fn

    torch.set_num_threads(1)
    options = {"square_resize_div_64": True, "segmentation_head": False, "multi_scale": False, "expanded_scales": True}
    dataset = build_roboflow_from_coco(
        "train", SimpleNamespace(dataset_dir=str(root), patch_size=16, num_windows=2, **options), side_px
    )
    collate = make_collate_fn(block_size=32)

    def run(_epoch: int) -> int:
        for start in range(0, len(dataset), BATCH):
            collate([dataset[index] for index in range(start, min(start + BATCH, len(dataset)))])
        return len(dataset)

    return run


ARMS: dict[str, Callable[[Path, int], Callable[[int], int]]] = {
    "ours": ours,
    "cached": partial(ours, cached=True),
    "reference": reference,
}


def one_pass(run: Callable[[int], int]) -> Callable[[int], tuple[float, float]]:
    """A pass as an answer: its images a second of processor time, and of the clock."""

    def answer(epoch: int) -> tuple[float, float]:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        images = run(epoch)
        return images / (time.process_time() - cpu_s), images / (time.perf_counter() - wall_s)

    return answer


def compare(name: str, root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The arms in turn on one data set, the first pass of each not counted."""
    pythons = {"ours": sys.executable, "cached": sys.executable, "reference": arguments.reference_python}
    served = ["--side", str(arguments.side), "--serve"]
    with ExitStack() as stack:
        arms = {
            arm: stack.enter_context(Arm(__file__, [*served, arm, str(root)], python))
            for arm, python in pythons.items()
            if python
        }
        rates = take_turns(arms, arguments.rounds)
    row: dict[str, Any] = {"pictures": name}
    for arm in arms:
        row[arm] = quartiles(rate for rate, _ in rates[arm])
        row[f"{arm}, by the clock"] = quartiles(rate for _, rate in rates[arm])
    if "reference" in arms:
        row["ratio"] = ratios(*([rate for rate, _ in rates[arm]] for arm in ("ours", "reference")))
    return row


def generate(root: Path, width: int, height: int, count: int) -> Path:
    """Photographs of a kind: noise with natural pictures' spectrum 1/f, rectangles as objects, JPEG of quality 90."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    spectrum = 1 / np.maximum(frequency, 1 / max(height, width))
    images, annotations = [], []
    for split in ("train", "valid"):
        (root / split).mkdir(parents=True)
        for number in range(1, count + 1 if split == "train" else 2):
            phases = np.exp(2j * np.pi * rng.random(spectrum.shape))
            grey = np.fft.irfft2(spectrum * phases, s=(height, width))
            pixels = np.repeat((128 + 50 * grey / grey.std()).clip(0, 255)[..., None], 3, axis=2).astype(np.uint8)
            images.append({"id": number, "file_name": f"{number}.jpg", "width": width, "height": height})
            for _ in range(8):
                w, h = (int(side) for side in rng.integers(20, height // 3, 2))
                x, y = int(rng.integers(0, width - w)), int(rng.integers(0, height - h))
                pixels[y : y + h, x : x + w] = rng.integers(0, 255, 3)
                box = {"id": len(annotations) + 1, "image_id": number, "category_id": 1, "bbox": [x, y, w, h]}
                annotations.append({**box, "area": w * h, "iscrowd": 0})
            Image.fromarray(pixels).save(root / split / f"{number}.jpg", quality=90)
        table = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "rectangle"}]}
        (root / split / "_annotations.coco.json").write_text(json.dumps(table))
        images, annotations = [], []
    return root


if __name__ == "__main__":
    main()
