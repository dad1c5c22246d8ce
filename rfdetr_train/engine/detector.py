"""A trained detector for pictures outside a data set: `rfdetr_train.RFDETR.from_checkpoint(PATH).predict(images)`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from rfdetr_train.data.canvas import Canvas
from rfdetr_train.data.image_file import read_image
from rfdetr_train.data.sample import Batch
from rfdetr_train.data.transforms import evaluation_view
from rfdetr_train.engine.inference import detect, join_tiles, tile_corners
from rfdetr_train.engine.precision import Precision, choose_device
from rfdetr_train.engine.saved_run import TrainedModel, load_trained_model
from rfdetr_train.errors import UserError, require

NO_BOXES = np.zeros((0, 4), dtype=np.float32)
NO_LABELS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Detections:
    """What was found in one picture, best score first; k detections on the CPU."""

    boxes_xyxy: Tensor
    """float32 (k, 4), pixels of the picture."""
    scores: Tensor
    """float32 (k,), 0 to 1."""
    labels: Tensor
    """int64 (k,), from 0 in the order of the classes."""
    names: tuple[str, ...]
    """The class name of each detection."""

    def __len__(self) -> int:
        return len(self.names)

    def to_supervision(self) -> Any:
        """The same as `supervision.Detections`, where that library is installed."""
        try:
            import supervision
        except ImportError as error:
            raise UserError("to_supervision needs the library: pip install supervision") from error
        return supervision.Detections(
            xyxy=self.boxes_xyxy.numpy(),
            confidence=self.scores.numpy(),
            class_id=self.labels.numpy(),
            data={"class_name": np.array(self.names)},
        )


class Detector:
    """Finds objects in pictures of any size."""

    def __init__(self, trained: TrainedModel, device: str = "auto", precision: str = "fp32") -> None:
        self.precision = Precision(precision, choose_device(device, key="device"), key="precision")
        self.model = trained.model.to(self.precision.device)
        self.placement = trained.placement
        self.label_map = trained.label_map

    @classmethod
    def from_checkpoint(
        cls, path: str | PathLike, weights: str = "auto", device: str = "auto", precision: str = "fp32"
    ) -> "Detector":
        """The detector of a checkpoint file or a run folder (its best.pt, else its last.pt).

        weights: raw, ema, or auto, those that scored best; device: auto, cpu, cuda, cuda:N, mps; precision: auto, fp32,
        bf16, fp16. Raises UserError for what is no checkpoint.
        """
        return cls(load_trained_model(Path(path), weights), device, precision)

    @property
    def names(self) -> tuple[str, ...]:
        """The class names in the order of the labels."""
        return self.label_map.names

    def predict(
        self,
        images: Any,
        threshold: float = 0.5,
        classes: Sequence[str] | None = None,
        batch_size: int = 8,
        tile_px: int | None = None,
        tile_overlap: float = 0.2,
    ) -> list[Detections]:
        """Detect in pictures.

        Args:
            images: a picture or a sequence of them; each a path, a PIL image, or uint8 RGB as an array (height, width,
                3) or a tensor (3, height, width).
            threshold: detections below this score are left out.
            classes: names of the classes to keep; None keeps all.
            batch_size: pictures, or tiles of one, at once.
            tile_px: side of the square tiles that larger pictures are cut into; None resizes the whole picture.
            tile_overlap: least share of a tile that the next one covers too.

        Raises:
            UserError: an unknown class, a number out of its range, or a picture that cannot be read.
        """
        _in_range("threshold", threshold, 0.0, 1.0)
        _in_range("batch_size", batch_size, 1)
        _in_range("tile_px", 1 if tile_px is None else tile_px, 1)
        _in_range("tile_overlap", tile_overlap, 0.0, 0.95)
        wanted = self._labels_of(classes)
        pictures = [_as_tensor(image) for image in _as_sequence(images)]
        if tile_px is None:
            found = self._detect(pictures, batch_size)
        else:
            found = [self._detect_in_tiles(image, tile_px, tile_overlap, batch_size) for image in pictures]
        return [self._chosen(one, threshold, wanted) for one in found]

    def _labels_of(self, classes: Sequence[str] | None) -> Tensor | None:
        if classes is None:
            return None
        require(not isinstance(classes, str), "classes", classes, "give a list of names")
        unknown = [name for name in classes if name not in self.names]
        if unknown:
            raise UserError(f"classes={unknown[0]}: no class of this detector; it has {', '.join(self.names)}")
        return torch.tensor([self.names.index(name) for name in classes])

    def _detect(self, pictures: Sequence[Tensor], batch_size: int) -> list[dict[str, Tensor]]:
        """All detections in uint8 (3, height, width) each, on the CPU."""
        config, found = self.model.config, []
        for start in range(0, len(pictures), batch_size):
            images, targets = [], []
            for picture in pictures[start : start + batch_size]:
                size_px = (picture.shape[1], picture.shape[2])
                canvas = Canvas.of(picture, NO_BOXES, NO_LABELS, size_px)
                view = evaluation_view(canvas, config.resolution, self.placement)
                images.append(view.image)
                targets.append({"size_px": size_px, "picture_px": view.picture_px, "frame_px": view.frame_px})
            found += detect(self.model, config, Batch(torch.stack(images), targets), self.precision, len(self.names))
        return found

    def _detect_in_tiles(self, image: Tensor, tile_px: int, overlap: float, batch_size: int) -> dict[str, Tensor]:
        corners = tile_corners(image.shape[1], image.shape[2], tile_px, overlap)
        tiles = [image[:, top : top + tile_px, left : left + tile_px] for top, left in corners]
        return join_tiles(self._detect(tiles, batch_size), corners, limit=self.model.config.num_queries * len(tiles))

    def _chosen(self, found: dict[str, Tensor], threshold: float, wanted: Tensor | None) -> Detections:
        kept = found["scores"] >= threshold
        if wanted is not None:
            kept &= torch.isin(found["labels"], wanted)
        labels = found["labels"][kept]
        names = tuple(self.names[label] for label in labels.tolist())
        return Detections(found["boxes_xyxy"][kept], found["scores"][kept], labels, names)


def _as_sequence(images: Any) -> Sequence[Any]:
    one = isinstance(images, (str, PathLike, Image.Image)) or getattr(images, "ndim", 0) == 3
    return [images] if one else list(images)


def _as_tensor(image: Any) -> Tensor:
    """uint8 (3, height, width) of whatever `predict` takes."""
    if isinstance(image, str | PathLike):
        return read_image(image)
    if isinstance(image, Image.Image):
        image = np.array(ImageOps.exif_transpose(image).convert("RGB"))  # upright, as a path is read
    channels = 0 if isinstance(image, Tensor) else -1
    ok = str(image.dtype).endswith("uint8") and image.ndim == 3 and image.shape[channels] == 3 and 0 not in image.shape
    if not ok:
        raise UserError(
            f"predict: a picture of shape {tuple(image.shape)} and type {image.dtype}; give a path, a PIL image, or "
            "uint8 RGB as an array (height, width, 3) or a tensor (3, height, width)"
        )
    return image if isinstance(image, Tensor) else torch.from_numpy(np.array(image)).movedim(-1, 0)


def _in_range(name: str, value: Any, low: float, high: float = math.inf) -> None:
    """Refuse what is no number from `low` to `high`."""
    ok = isinstance(value, int | float) and low <= value <= high
    require(ok, name, repr(value), f"give a number from {low}" + (f" to {high}" if high < math.inf else ""))
