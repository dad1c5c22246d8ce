"""The box of a COCO annotation: taken, derived from a segmentation, clipped to the picture."""

from typing import Any

import numpy as np
from pycocotools import mask as rle

from rfdetr_train.data.coco_tables import AnnotationRow
from rfdetr_train.errors import UserError


def annotated_box(row: AnnotationRow, size_px: tuple[int, int]) -> list[float]:
    """The annotation's bbox, or the box around its segmentation: xywh in pixels, not yet clipped.

    Raises: UserError if the segmentation is neither polygons nor a run-length code of a picture of `size_px`.
    """
    if row.bbox is not None:
        return row.bbox
    try:
        if isinstance(row.segmentation, dict):
            return _box_of_run_lengths(row.segmentation, size_px)
        return _box_of_polygons(row.segmentation)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"annotation {row.annotation_id}: the segmentation cannot be read: {error}") from error


def _box_of_polygons(polygons: Any) -> list[float]:
    """The exact extent; pycocotools would round it to the pixels of a drawn mask."""
    points = np.concatenate([np.asarray(polygon, dtype=np.float64).reshape(-1, 2) for polygon in polygons])
    if not np.isfinite(points).all():
        raise ValueError("a coordinate is not finite")
    low, high = points.min(axis=0), points.max(axis=0)
    return [*low.tolist(), *(high - low).tolist()]


def _box_of_run_lengths(code: dict, size_px: tuple[int, int]) -> list[float]:
    if list(code["size"]) != list(size_px):
        raise ValueError(f"its size {code['size']} is not the picture's {list(size_px)} (height, width)")
    if isinstance(code["counts"], list):
        counts = np.asarray(code["counts"])
        if counts.min(initial=0) < 0 or counts.sum() != size_px[0] * size_px[1]:
            raise ValueError("its run lengths do not add up to the picture")
        code = rle.frPyObjects(code, *size_px)
    return rle.toBbox(code).tolist()


def clip_boxes(boxes_xywh: np.ndarray, sizes_px: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Clip boxes to their pictures.

    Args: boxes_xywh (M, 4) in pixels; sizes_px (M, 2), (height, width) of each box's picture.
    Returns: the clipped boxes (M, 4), those that lay inside unchanged to the bit, and bool (M,), which were clipped. A
    box with nothing inside its picture gets a width or height of 0 or less.
    """
    corners = np.concatenate([boxes_xywh[:, :2], boxes_xywh[:, :2] + boxes_xywh[:, 2:]], axis=1)
    limits = np.tile(sizes_px[:, ::-1], (1, 2))
    inside = np.clip(corners, 0, limits)
    clipped = (inside != corners).any(axis=1)
    as_xywh = np.concatenate([inside[:, :2], inside[:, 2:] - inside[:, :2]], axis=1)
    return np.where(clipped[:, None], as_xywh, boxes_xywh), clipped
