"""What the data floor hands around: a picture's record, a whole split in flat arrays, a batch.

Letters: N pictures and M boxes of a split, n boxes of a picture, B pictures of a batch, R side of the square input.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rfdetr_train.boxes import xywh_to_xyxy
from rfdetr_train.data.image_file import MAX_MEGAPIXELS, read_image
from rfdetr_train.labels import LabelMap


class ImageRecord(NamedTuple):
    """One picture and its training targets (crowd regions left out)."""

    path: Path
    image_id: int
    size_px: tuple[int, int]
    """(height, width) as annotated; the boxes are in these pixels."""
    boxes_xyxy: np.ndarray
    """float32 (n, 4), inside the picture."""
    labels: np.ndarray
    """int64 (n,)."""


class Batch(NamedTuple):
    """A micro-batch, not yet normalised: bytes travel between processes and to the device four times as fast."""

    images: torch.Tensor
    """uint8 (B, 3, H, W), RGB."""
    targets: list[dict[str, Any]]
    """B dicts: boxes_cxcywh float32 (n, 4) in 0..1, fractions of the frame; labels int64 (n,); image_id int; as pairs
    (height, width) of ints size_px, annotated, and picture_px and frame_px, of the picture and its frame in the image:
    see `canvas.py`."""

    def to(self, device: torch.device) -> "Batch":
        """The batch with its tensors on `device`."""
        targets = [
            {k: v.to(device, non_blocking=True) if torch.is_tensor(v) else v for k, v in target.items()}
            for target in self.targets
        ]
        return Batch(self.images.to(device, non_blocking=True), targets)

    def cut(self, number: int) -> list["Batch"]:
        """The batch in at most `number` parts of nearly equal size; an empty one stays one."""
        size = max(1, -(-len(self.images) // number))
        starts = range(0, max(1, len(self.images)), size)
        return [Batch(self.images[s : s + size], self.targets[s : s + size]) for s in starts]

    def frames_in_view_px(self) -> list[tuple[int, int]]:
        """(height, width) of each frame in the image; all of it for targets that do not say."""
        return [target.get("frame_px", tuple(self.images.shape[-2:])) for target in self.targets]

    def padding(self) -> torch.Tensor | None:
        """(B, H, W) bool, True outside the frames; None where they fill the images."""
        height, width = self.images.shape[-2:]
        frames = self.frames_in_view_px()
        if all(frame == (height, width) for frame in frames):
            return None
        frame_heights, frame_widths = torch.tensor(frames, device=self.images.device).T[..., None]
        below = torch.arange(height, device=self.images.device) >= frame_heights
        beyond = torch.arange(width, device=self.images.device) >= frame_widths
        return below[:, :, None] | beyond[:, None, :]

    def frames_px(self) -> torch.Tensor:
        """(B, 2), height and width of the frames in annotated pixels: what the boxes are fractions of."""
        rows = []
        for target, frame_px in zip(self.targets, self.frames_in_view_px(), strict=True):
            sides = zip(target["size_px"], frame_px, target.get("picture_px", frame_px), strict=True)
            rows.append([side * frame / picture for side, frame, picture in sides])
        return torch.tensor(rows, device=self.images.device)


class FlatStrings:
    """N strings in two arrays, so that a worker process gets two buffers instead of N Python objects."""

    def __init__(self, strings: Sequence[str]) -> None:
        encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
        self._text = b"".join(encoded)
        self._ends = np.cumsum([len(part) for part in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = int(self._ends[index - 1]) if index else 0
        return self._text[start : int(self._ends[index])].decode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Split:
    """All pictures and boxes of one split. Boxes of picture i: rows offsets[i] to offsets[i + 1]."""

    name: str
    folder: Path
    """Folder that the file names start from."""
    label_map: LabelMap
    file_names: FlatStrings
    image_ids: np.ndarray
    """int64 (N,), the data set's own."""
    sizes_px: np.ndarray
    """int64 (N, 2), (height, width) as annotated."""
    boxes_xywh: np.ndarray
    """float64 (M, 4), inside the picture and not empty; exactly the annotated numbers where nothing was clipped."""
    labels: np.ndarray
    """int64 (M,)."""
    areas: np.ndarray
    """float64 (M,), square pixels, as annotated where given: COCO's size classes go by it."""
    crowd: np.ndarray
    """bool (M,): a region of many objects; counts in evaluation, is no training target."""
    offsets: np.ndarray
    """int64 (N + 1,)."""
    dropped: dict[str, int] = field(default_factory=dict)
    """What was left out, by reason."""
    max_megapixels: float = MAX_MEGAPIXELS
    """Larger pictures are not decoded."""
    skips_unreadable: bool = False
    """Pictures that cannot be read are passed over."""

    def __len__(self) -> int:
        return len(self.image_ids)

    def path(self, index: int) -> Path:
        """Where picture `index` lies."""
        return self.folder / self.file_names[index]

    def read_image(self, index: int, at_least_px: int | None = None) -> torch.Tensor:
        """Decode picture `index`, see `image_file.read_image`; its sides may differ from the annotated ones."""
        return read_image(self.path(index), self.max_megapixels, at_least_px)

    def record(self, index: int) -> ImageRecord:
        """Picture `index` (0..N-1) with its training targets."""
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        targets = ~self.crowd[rows]
        boxes_xyxy = xywh_to_xyxy(self.boxes_xywh[rows][targets]).astype(np.float32)
        height, width = (int(side) for side in self.sizes_px[index])
        image_id = int(self.image_ids[index])
        return ImageRecord(self.path(index), image_id, (height, width), boxes_xyxy, self.labels[rows][targets])

    def without(self, indices: Sequence[int], reason: str) -> "Split":
        """The split without these pictures and their boxes; `dropped[reason]` counts them."""
        keep = np.ones(len(self), dtype=bool)
        keep[list(indices)] = False
        counts = np.diff(self.offsets)
        rows = np.repeat(keep, counts)
        return replace(
            self,
            file_names=FlatStrings([self.file_names[int(i)] for i in np.flatnonzero(keep)]),
            image_ids=self.image_ids[keep],
            sizes_px=self.sizes_px[keep],
            boxes_xywh=self.boxes_xywh[rows],
            labels=self.labels[rows],
            areas=self.areas[rows],
            crowd=self.crowd[rows],
            offsets=np.concatenate([[0], np.cumsum(counts[keep])]).astype(np.int64),
            dropped={**self.dropped, reason: self.dropped.get(reason, 0) + len(set(indices))},
        )

    def to_coco(self) -> dict[str, list[dict[str, Any]]]:
        """The split as clean COCO ground truth.

        Annotations are numbered from 1 and always have area and iscrowd, since pycocotools is silently wrong with an
        id of 0 and fails without the others. Category and image ids are the data set's own.
        """
        ids, names = self.label_map.category_ids, self.label_map.names
        image_ids, owners = self.image_ids.tolist(), np.repeat(self.image_ids, np.diff(self.offsets)).tolist()
        classes = [ids[label] for label in self.labels.tolist()]
        columns = (owners, classes, *(a.tolist() for a in (self.boxes_xywh, self.areas, self.crowd.astype(int))))
        return {
            "images": [
                {"id": image_id, "file_name": self.file_names[i], "height": height, "width": width}
                for i, (image_id, (height, width)) in enumerate(zip(image_ids, self.sizes_px.tolist(), strict=True))
            ],
            "annotations": [
                {"id": n, **dict(zip(("image_id", "category_id", "bbox", "area", "iscrowd"), row, strict=True))}
                for n, row in enumerate(zip(*columns, strict=True), start=1)
            ],
            "categories": [{"id": key, "name": name} for key, name in zip(ids, names, strict=True)],
        }


class Dataset(NamedTuple):
    """The splits of a data set under one label map."""

    root: Path
    """The folder that was read, absolute."""
    splits: dict[str, Split]
    label_map: LabelMap
    format: str = "coco"
    """What its files were read as, or `shapes`."""

    def fingerprint(self) -> str:
        """16 hex digits of all names, sizes, boxes and labels; the pictures are not read."""
        digest = hashlib.sha256(repr((sorted(self.splits), self.label_map)).encode())
        for _, split in sorted(self.splits.items()):
            digest.update("\n".join(split.file_names[i] for i in range(len(split))).encode("utf-8", "surrogatepass"))
            for array in (split.sizes_px, split.boxes_xywh, split.labels, split.crowd, split.offsets):
                digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    @property
    def dropped(self) -> dict[str, dict[str, int]]:
        """What was left out: `{split: {reason: count}}`, counts of 0 left out."""
        return {name: {k: n for k, n in split.dropped.items() if n} for name, split in self.splits.items()}
