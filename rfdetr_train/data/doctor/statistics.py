"""A data set in numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rfdetr_train.config import ModelConfig
from rfdetr_train.data.doctor.boxes import sides_in_view_px
from rfdetr_train.data.doctor.examined import ExaminedSplit
from rfdetr_train.data.doctor.measure import Measured
from rfdetr_train.data.placement import Placement

SIDE_EDGES_PX = [0, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
ASPECT_EDGES = [0, 0.125, 0.25, 0.35, 0.5, 0.7, 0.9, 1.1, 1.4, 2, 2.8, 4, 8]
COUNT_EDGES = [0, 1, 2, 3, 5, 8, 12, 20, 30, 50, 100, 200, 300, 500, 1000]
MOST_SIZES = 5


def describe_splits(splits: Mapping[str, ExaminedSplit], model: ModelConfig, placement: Placement) -> dict[str, Any]:
    """Plain values: `splits` by name, and `histograms` by name, {edges, counts: {split: [...]}}.

    A bin goes from its edge to the next one, that not included; the last one has no end.
    """
    return {
        "splits": {name: _describe(split) for name, split in splits.items()},
        "histograms": {
            "box_sides_px": _histogram(SIDE_EDGES_PX, splits, lambda s: sides_in_view_px(s, model, placement)),
            "box_aspects": _histogram(ASPECT_EDGES, splits, _box_aspects),
            "boxes_per_picture": _histogram(COUNT_EDGES, splits, lambda s: s.boxes_per_picture[s.readable]),
            "picture_aspects": _histogram(ASPECT_EDGES, splits, _picture_aspects),
        },
    }


def _describe(split: ExaminedSplit) -> dict[str, Any]:
    sizes = Counter(f"{p.size_px[1]}x{p.size_px[0]}" for p in split.pictures if isinstance(p, Measured))
    common = dict(sizes.most_common(MOST_SIZES))
    return {
        "source": str(split.raw.source),
        "pictures": len(split.pictures),
        "boxes": len(split.raw.boxes_xywh),
        "crowds": int(split.raw.crowd.sum()),
        "sizes": common,
        "pictures_of_other_sizes": sizes.total() - sum(common.values()),
    }


def _box_aspects(split: ExaminedSplit) -> np.ndarray:
    """Width over height, of the boxes that have both."""
    sizes = split.raw.boxes_xywh[split.rows, 2:]
    sizes = sizes[(sizes > 0).all(axis=1)]
    return sizes[:, 0] / sizes[:, 1]


def _picture_aspects(split: ExaminedSplit) -> np.ndarray:
    sizes = np.array([p.size_px for p in split.pictures if isinstance(p, Measured)], dtype=np.float64).reshape(-1, 2)
    return sizes[:, 1] / sizes[:, 0]


def _histogram(edges: Sequence[float], splits: Mapping[str, ExaminedSplit], values_of: Any) -> dict[str, Any]:
    counts = {name: np.histogram(values_of(split), [*edges, np.inf])[0].tolist() for name, split in splits.items()}
    return {"edges": list(edges), "counts": counts}
