"""What a detector found on a data set, as flat arrays with the data set's own ids; N detections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfdetr_train.boxes import xyxy_to_xywh
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap


@dataclass(frozen=True)
class Predictions:
    """Detections of any number of images, those of an image in the order in which they were found."""

    image_ids: np.ndarray
    """int64 (N,)."""
    category_ids: np.ndarray
    """int64 (N,)."""
    boxes_xywh: np.ndarray
    """float64 (N, 4), pixels of the image."""
    scores: np.ndarray
    """float64 (N,), 0 to 1."""

    def __len__(self) -> int:
        return len(self.scores)

    @classmethod
    def from_detections(cls, detections: Mapping[int, Mapping[str, Any]], label_map: LabelMap) -> "Predictions":
        """From image id -> tensors boxes_xyxy (k, 4) in pixels, scores (k,) and labels (k,).

        Labels from the number of classes on belong to the logit that has no target and are left out.
        """
        empty = {"boxes_xyxy": np.zeros((0, 4)), "scores": np.zeros(0), "labels": np.zeros(0, np.int64)}
        parts = [empty, *detections.values()]
        boxes, scores, labels = (
            np.concatenate([np.asarray(part[key]) for part in parts]) for key in ("boxes_xyxy", "scores", "labels")
        )
        counts = [len(found["scores"]) for found in detections.values()]
        image_ids = np.repeat(np.array([int(image_id) for image_id in detections], dtype=np.int64), counts)
        known = labels < len(label_map.category_ids)
        boxes = boxes[known].astype(np.float64)  # widths in float64 lose nothing
        category_ids = np.array(label_map.category_ids, dtype=np.int64)[labels[known]]
        return cls(image_ids[known], category_ids, xyxy_to_xywh(boxes), scores[known].astype(np.float64))

    def select(self, which: np.ndarray) -> "Predictions":
        """Those of a bool array (N,)."""
        return Predictions(
            *(getattr(self, key)[which] for key in ("image_ids", "category_ids", "boxes_xywh", "scores"))
        )

    def to_results(self) -> list[dict[str, Any]]:
        """COCO's result format, plain values."""
        columns = (self.image_ids.tolist(), self.category_ids.tolist(), self.boxes_xywh.tolist(), self.scores.tolist())
        return [
            dict(zip(("image_id", "category_id", "bbox", "score"), row, strict=True))
            for row in zip(*columns, strict=True)
        ]

    def check(self, image_ids: Sequence[int], category_ids: Sequence[int]) -> None:
        """Refuse ids that the truth does not list, and numbers that mean nothing (UserError)."""
        for key, own, known in (
            ("image_id", self.image_ids, image_ids),
            ("category_id", self.category_ids, category_ids),
        ):
            unknown = np.flatnonzero(~np.isin(own, known))
            if unknown.size:
                first = unknown[0]
                raise UserError(
                    f"a result of image {self.image_ids[first]} has {key}={own[first]}, which the truth does not list"
                )
        good = np.isfinite(self.boxes_xywh).all(1) & np.isfinite(self.scores) & (self.boxes_xywh[:, 2:] >= 0).all(1)
        if not good.all():
            first = np.flatnonzero(~good)[0]
            raise UserError(
                f"image {self.image_ids[first]} has a prediction with score={self.scores[first]} and box (xywh) "
                f"{self.boxes_xywh[first].tolist()}: numbers must be finite and sizes not negative; if the training "
                "diverged, lower optimizer.lr or take trainer.precision=fp32"
            )
