"""Batches from worker processes, the same to the bit for any number of workers.

A worker gets a `_Request` (which draws of pictures, what side, which epoch) and needs nothing else to answer it.
"""

import logging
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from rfdetr_train.config import AugmentationConfig
from rfdetr_train.data.canvas import Source
from rfdetr_train.data.picture_cache import PictureCache
from rfdetr_train.data.placement import STRETCH, Placement, SizePx
from rfdetr_train.data.plan import count_steps, draws_of_epoch, plan_epoch, sample_rng, scale_of_step
from rfdetr_train.data.sample import Batch, ImageRecord, Split
from rfdetr_train.data.transforms import View, evaluation_view, source_side_px, training_view
from rfdetr_train.data.user_transforms import build_transforms
from rfdetr_train.data.workers import death_explained, prepare_worker, shareable, worker_context
from rfdetr_train.errors import UserError

_PRELOADED = ("torch", "torchvision.transforms.v2", __name__)  # what a worker needs

log = logging.getLogger(__name__)


class _Request(NamedTuple):
    """One micro-batch, as a worker gets it."""

    draws: list[int]
    """As `plan_epoch` numbers them; the indices of the pictures in evaluation."""
    side_px: int
    epoch: int | None
    """None: evaluation, nothing random."""


class _Packed(NamedTuple):
    """One micro-batch, as a worker sends it: a single tensor in shared memory, the small things as plain bytes.

    A tensor per target would cost a file descriptor each, and large batches run out of them.
    """

    images: torch.Tensor
    boxes_cxcywh: np.ndarray  # float32 (n of all pictures, 4)
    labels: np.ndarray  # int64 (n of all pictures,)
    counts: list[int]
    image_ids: list[int]
    sizes_px: list[SizePx]
    pictures_px: list[SizePx]
    frames_px: list[SizePx]


class _Reader(TorchDataset):
    """Answers requests, in a worker or in the main process."""

    def __init__(
        self,
        split: Split,
        augmentation: AugmentationConfig | None = None,
        seed: int = 0,
        read: Callable[[int], torch.Tensor] | None = None,
        num_epochs: int | None = None,
        placement: Placement = STRETCH,
    ) -> None:
        """`read` gives the picture of an index; without it each is decoded whole from its file."""
        self._split, self._augmentation, self._seed, self._num_epochs = split, augmentation, seed, num_epochs
        self._read, self._placement = read or split.read_image, placement
        self._extra = build_transforms(augmentation.extra) if augmentation else []

    def __getitem__(self, request: _Request) -> _Packed | str:
        """The micro-batch, or the message of a UserError: one raised in a worker would arrive inside a traceback."""
        try:
            return self._pack(request)
        except UserError as error:
            return str(error)

    def _pack(self, request: _Request) -> _Packed:
        records = [self._split.record(draw % len(self._split)) for draw in request.draws]
        views = [self._view(*pair, request) for pair in zip(request.draws, records, strict=True)]
        return _Packed(
            images=shareable(torch.stack([view.image for view in views])),
            boxes_cxcywh=torch.cat([view.boxes_cxcywh for view in views]).numpy(),
            labels=torch.cat([view.labels for view in views]).numpy(),
            counts=[len(view.labels) for view in views],
            image_ids=[record.image_id for record in records],
            sizes_px=[record.size_px for record in records],
            pictures_px=[view.picture_px for view in views],
            frames_px=[view.frame_px for view in views],
        )

    def _view(self, draw: int, record: ImageRecord, request: _Request) -> View:
        index = draw % len(self._split)
        source = self._source(index, record)
        if self._augmentation is None or request.epoch is None:
            return evaluation_view(*source, request.side_px, self._placement)
        rng = sample_rng(self._seed, request.epoch, draw)
        recipe = self._augmentation.in_epoch(request.epoch, self._num_epochs)

        def another() -> Source:
            other = int(rng.integers(len(self._split)))
            return self._source(other, self._split.record(other))

        return training_view(*source, request.side_px, recipe, rng, another, self._extra, self._placement)

    def _source(self, index: int, record: ImageRecord) -> Source:
        try:
            return self._read(index), record.boxes_xyxy, record.labels, record.size_px
        except UserError as error:
            remedy = "; it could be read before the run: restore it and go on with resume=auto"
            raise UserError(f"{error}{remedy * (self._augmentation is not None)}") from error


class _Pipeline:
    """A torch DataLoader over requests; its workers live until `close`."""

    def __init__(self, reader: _Reader, num_workers: int, pin_memory: bool) -> None:
        self._requests: list[_Request] = []  # what the next iteration asks for
        self._loader: DataLoader | None = DataLoader(
            reader,
            batch_size=None,
            sampler=self._requests,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            multiprocessing_context=worker_context(_PRELOADED) if num_workers else None,
            worker_init_fn=prepare_worker,
            collate_fn=_unchanged,
            pin_memory=pin_memory,
            generator=torch.Generator(),  # else each iteration draws from the global one
        )

    def batches(self, requests: Sequence[_Request]) -> Generator[Batch, None, None]:
        """The answers in order. Raises: UserError that names a picture which cannot be read, and if a worker dies."""
        assert self._loader is not None, "the loader is closed"
        self._requests[:] = requests
        with death_explained():
            for packed in self._loader:
                if isinstance(packed, str):
                    raise UserError(packed)
                yield _unpack(packed)

    def close(self) -> None:
        """End the workers."""
        self._loader = None  # the last reference: torch ends them when the loader goes


class TrainLoader:
    """Random views of a train split, one list of micro-batches per optimizer step."""

    def __init__(
        self,
        split: Split,
        augmentation: AugmentationConfig,
        scales: Sequence[int],
        *,
        batch_size: int,
        accumulation_steps: int,
        seed: int,
        num_workers: int,
        num_epochs: int | None = None,
        pin_memory: bool = False,
        cache: PictureCache | None = None,
        draws_per_picture: np.ndarray | None = None,
        placement: Placement = STRETCH,
        share: Callable[[list[int]], list[int]] = list,
    ) -> None:
        """`scales`: the sides in pixels that a step's is drawn from, heights where `placement` knows of other widths;
        one side for a fixed resolution.

        `num_epochs`: epochs of the run, the last of which may be augmented less; None for a run without end. `cache`:
        of this split, for views of these scales. `draws_per_picture`: as of `plan_epoch`. `share`: which draws of a
        micro-batch are read here, where others read the rest; there may be none, and then it has no pictures.
        """
        self._plan_arguments = (len(split), batch_size, accumulation_steps, seed)
        self._scales, self._seed, self._draws_per_picture = list(scales), seed, draws_per_picture
        self._placement, self._share = placement, share
        self.images_per_epoch = draws_of_epoch(len(split), draws_per_picture)
        workers = _useful_workers(num_workers, -(-self.images_per_epoch // batch_size))
        from_files = partial(
            split.read_image, at_least_px=source_side_px(max(placement.view_px(max(scales))), augmentation)
        )
        reader = _Reader(split, augmentation, seed, cache.read_image if cache else from_files, num_epochs, placement)
        self._pipeline = _Pipeline(reader, workers, pin_memory)
        self.steps_per_epoch = count_steps(self.images_per_epoch, batch_size, accumulation_steps)

    def epoch(self, epoch: int, start_step: int = 0) -> Generator[list[Batch], None, None]:
        """The steps of `epoch` (from 0), beginning at its step `start_step` (from 0): the micro-batches of each.

        Raises: UserError for an empty split, and for a picture that cannot be read, with its path.
        """
        steps = self._requests(epoch)[start_step:]
        batches = self._pipeline.batches([request for step in steps for request in step if request.draws])
        with closing(batches):
            for step in steps:
                yield [next(batches) if request.draws else self._no_pictures(request) for request in step]

    def _no_pictures(self, request: _Request) -> Batch:
        return Batch(torch.zeros(0, 3, *self._placement.view_px(request.side_px), dtype=torch.uint8), [])

    def _requests(self, epoch: int) -> list[list[_Request]]:
        first_step = epoch * self.steps_per_epoch
        sides = (scale_of_step(self._seed, step, self._scales) for step in count(first_step))
        plan = plan_epoch(*self._plan_arguments, epoch, self._draws_per_picture)
        return [
            [_Request(self._share(draws), side, epoch) for draws in step]
            for step, side in zip(plan, sides, strict=False)
        ]

    def close(self) -> None:
        """End the workers."""
        self._pipeline.close()

    def __enter__(self) -> "TrainLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def evaluation_batches(
    split: Split,
    resolution_px: int,
    *,
    batch_size: int,
    num_workers: int,
    pin_memory: bool = False,
    placement: Placement = STRETCH,
    first: int = 0,
    every: int = 1,
) -> Generator[Batch, None, None]:
    """All pictures of a split in order, resized to resolution_px; the workers end with the iteration.

    Of the batches those numbered first, first + every and so on: `every` processes read all of them together.

    Raises: UserError that names a picture which cannot be read.
    """
    starts = range(0, len(split), batch_size)
    indices = [list(range(start, min(start + batch_size, len(split)))) for start in starts[first::every]]
    reader = _Reader(split, placement=placement)
    pipeline = _Pipeline(reader, _useful_workers(num_workers, len(indices)), pin_memory)
    with closing(pipeline), closing(pipeline.batches([_Request(i, resolution_px, None) for i in indices])) as batches:
        yield from batches


def _useful_workers(asked: int, num_batches: int) -> int:
    """No more workers than there are batches; more than twice the processors are said to be of no use."""
    processors = os.cpu_count() or 1
    if asked > 2 * processors:
        log.warning(
            "data.num_workers=%d: this machine has %d processors; more workers only cost memory", asked, processors
        )
    return min(asked, num_batches)


def _unchanged(packed: Any) -> Any:
    """In place of torch's collation, which would make tensors of the arrays."""
    return packed


def _unpack(packed: _Packed) -> Batch:
    boxes = torch.from_numpy(packed.boxes_cxcywh).split(packed.counts)
    labels = torch.from_numpy(packed.labels).split(packed.counts)
    columns = (boxes, labels, packed.image_ids, packed.sizes_px, packed.pictures_px, packed.frames_px)
    names = ("boxes_cxcywh", "labels", "image_id", "size_px", "picture_px", "frame_px")
    return Batch(packed.images, [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])
