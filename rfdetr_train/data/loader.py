"""Batches from worker processes, the same to the bit for any number of workers.

A worker gets a `_Request` (which draws of pictures, what side, which epoch) and needs nothing else to answer it.
"""

import logging
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from rfdetr_train.config import AugmentationConfig
from rfdetr_train.data.canvas import STRETCH, Canvas, Placement
from rfdetr_train.data.picture_cache import PictureCache
from rfdetr_train.data.plan import count_steps, draws_of_epoch, plan_epoch, sample_rng, scale_of_step
from rfdetr_train.data.readable import ReadablePictures
from rfdetr_train.data.sample import Batch, Split
from rfdetr_train.data.stages import build_transforms
from rfdetr_train.data.transforms import View, evaluation_view, source_side_px, training_view
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


class _Answer(NamedTuple):
    """What a worker makes of a request."""

    batch: Batch
    """Its targets hold arrays, which travel as plain bytes: a tensor per target would cost a file descriptor each, and
    large batches run out of them."""
    unreadable: list[str]
    """What is wrong with pictures that were passed over."""


@dataclass(eq=False)
class _BatchMaker(TorchDataset):
    """Answers requests, in a worker or in the main process."""

    split: Split
    augmentation: AugmentationConfig | None = None
    seed: int = 0
    read: Callable[[int], torch.Tensor] | None = None
    """Gives the picture of an index; without it each is decoded whole from its file."""
    num_epochs: int | None = None
    placement: Placement = STRETCH

    def __post_init__(self) -> None:
        self._pictures = ReadablePictures(self.split, self.read or self.split.read_image)
        self._extra = build_transforms(self.augmentation.extra) if self.augmentation else []

    def __getitem__(self, request: _Request) -> _Answer | str:
        """The micro-batch, or the message of a UserError: one raised in a worker would arrive inside a traceback."""
        self._pictures.unreadable = []
        try:
            samples = [sample for draw in request.draws if (sample := self._sample(draw, request))]
            nothing = torch.zeros(0, 3, *self.placement.view_px(request.side_px), dtype=torch.uint8)
            images = shareable(torch.stack([image for image, _ in samples]) if samples else nothing)
        except UserError as error:
            return str(error)
        return _Answer(Batch(images, [target for _, target in samples]), self._pictures.unreadable)

    def _sample(self, draw: int, request: _Request) -> tuple[torch.Tensor, dict[str, Any]] | None:
        """A view and its target; None for a picture that is passed over in evaluation."""
        index = draw % len(self.split)
        if self.augmentation is None or request.epoch is None:
            found = self._pictures.at(index)
            if found is None:
                return None
            view = evaluation_view(found.canvas, request.side_px, self.placement)
        else:
            found = self._pictures.at_or_after(index)
            view = self._training_view(found.canvas, draw, request.side_px, request.epoch, self.augmentation)
        target = {
            "boxes_cxcywh": view.boxes_cxcywh.numpy(),
            "labels": view.labels.numpy(),
            "image_id": found.record.image_id,
            "size_px": found.record.size_px,
            "picture_px": view.picture_px,
            "frame_px": view.frame_px,
        }
        return view.image, target

    def _training_view(
        self, canvas: Canvas, draw: int, side_px: int, epoch: int, augmentation: AugmentationConfig
    ) -> View:
        rng = sample_rng(self.seed, epoch, draw)
        recipe = augmentation.in_epoch(epoch, self.num_epochs)

        def another() -> Canvas:
            return self._pictures.at_or_after(int(rng.integers(len(self.split)))).canvas

        return training_view(canvas, side_px, recipe, rng, another, self._extra, self.placement)


class _Pipeline:
    """A torch DataLoader over requests; its workers live until `close`."""

    def __init__(self, maker: _BatchMaker, num_workers: int, pin_memory: bool = False) -> None:
        self._asked: list[_Request] = []  # by the next iteration
        self._unreadable: set[str] = set()
        self._loader: DataLoader | None = DataLoader(
            maker,
            batch_size=None,
            sampler=self._asked,
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
        self._asked[:] = requests
        with death_explained():
            for answer in self._loader:
                if isinstance(answer, str):
                    raise UserError(answer)
                self._tell(answer.unreadable)
                yield _with_tensors(answer.batch)

    def _tell(self, unreadable: list[str]) -> None:
        for message in unreadable:
            if message not in self._unreadable:
                self._unreadable.add(message)
                count = len(self._unreadable)
                log.warning("PICTURE SKIPPED (data.on_error=skip), number %d since the check: %s", count, message)

    def close(self) -> None:
        """End the workers."""
        self._loader = None  # the last reference: torch ends them when the loader goes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TrainLoader(_Pipeline):
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
        read = cache.read_image if cache else from_files
        maker = _BatchMaker(split, augmentation, seed, read, num_epochs, placement)
        super().__init__(maker, workers, pin_memory)
        self.steps_per_epoch = count_steps(self.images_per_epoch, batch_size, accumulation_steps)

    def epoch(self, epoch: int, start_step: int = 0) -> Generator[list[Batch], None, None]:
        """The steps of `epoch` (from 0), beginning at its step `start_step` (from 0): the micro-batches of each.

        Raises: UserError for an empty split, and for a picture that cannot be read, with its path.
        """
        steps = self._requests_of(epoch)[start_step:]
        batches = self.batches([request for step in steps for request in step if request.draws])
        with closing(batches):
            for step in steps:
                yield [next(batches) if request.draws else self._no_pictures(request) for request in step]

    def _no_pictures(self, request: _Request) -> Batch:
        return Batch(torch.zeros(0, 3, *self._placement.view_px(request.side_px), dtype=torch.uint8), [])

    def _requests_of(self, epoch: int) -> list[list[_Request]]:
        first_step = epoch * self.steps_per_epoch
        sides = (scale_of_step(self._seed, step, self._scales) for step in count(first_step))
        plan = plan_epoch(*self._plan_arguments, epoch, self._draws_per_picture)
        return [
            [_Request(self._share(draws), side, epoch) for draws in step]
            for step, side in zip(plan, sides, strict=False)
        ]


def evaluation_batches(
    split: Split,
    resolution_px: int,
    *,
    batch_size: int,
    num_workers: int,
    placement: Placement = STRETCH,
    first: int = 0,
    every: int = 1,
) -> Generator[Batch, None, None]:
    """All pictures of a split in order, resized to resolution_px; the workers end with the iteration.

    One that is skipped is missing in its batch, which may be left without pictures.

    Of the batches those numbered first, first + every and so on: `every` processes read all of them together.

    Raises: UserError that names a picture which cannot be read.
    """
    starts = range(0, len(split), batch_size)
    indices = [list(range(start, min(start + batch_size, len(split)))) for start in starts[first::every]]
    maker = _BatchMaker(split, placement=placement)
    requests = [_Request(of_batch, resolution_px, None) for of_batch in indices]
    pipeline = _Pipeline(maker, _useful_workers(num_workers, len(indices)))
    with pipeline, closing(pipeline.batches(requests)) as batches:
        yield from batches


def _useful_workers(asked: int, num_batches: int) -> int:
    """No more workers than there are batches; more than twice the processors are said to be of no use."""
    processors = os.cpu_count() or 1
    if asked > 2 * processors:
        log.warning(
            "data.num_workers=%d: this machine has %d processors; more workers only cost memory", asked, processors
        )
    return min(asked, num_batches)


def _unchanged(answer: Any) -> Any:
    """In place of torch's collation, which would make tensors of the arrays."""
    return answer


def _with_tensors(batch: Batch) -> Batch:
    targets = [
        {key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for key, value in target.items()}
        for target in batch.targets
    ]
    return Batch(batch.images, targets)
