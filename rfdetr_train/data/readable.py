"""Pictures by index, where a file may have gone or broken since the check before the run."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from rfdetr_train.data.canvas import Canvas
from rfdetr_train.data.sample import ImageRecord, Split
from rfdetr_train.errors import UserError

MOST_IN_A_ROW = 100
"""Neighbours that are tried in the place of a picture; where they have all gone, so has the folder."""


class Read(NamedTuple):
    """A picture that could be read."""

    record: ImageRecord
    canvas: Canvas


class ReadablePictures:
    """Reads the pictures of a split; of those that cannot be read under data.on_error=skip it keeps the messages."""

    def __init__(self, split: Split, read: Callable[[int], torch.Tensor]) -> None:
        """`read` gives the picture of an index, or raises UserError."""
        self._split, self._read = split, read
        self.unreadable: list[str] = []

    def at(self, index: int) -> Read | None:
        """Picture `index`; None for one that cannot be read and is skipped. Raises: UserError if it is not skipped."""
        record = self._split.record(index)
        try:
            return Read(record, Canvas.of(self._read(index), record.boxes_xyxy, record.labels, record.size_px))
        except UserError as error:
            if not self._split.skips_unreadable:
                raise
            self.unreadable.append(str(error))
            return None

    def at_or_after(self, index: int) -> Read:
        """Picture `index`, or the next in the split that can be read, which depends on nothing but the files.

        Raises: UserError for one that is not skipped, and if none is found.
        """
        candidates = range(index, index + min(len(self._split), MOST_IN_A_ROW))
        for candidate in candidates:
            try:
                found = self.at(candidate % len(self._split))
            except UserError as error:
                remedy = "restore it and go on with resume=auto, also with data.on_error=skip to do without it"
                raise UserError(f"{error}; it could be read before the run: {remedy}") from error
            if found is not None:
                return found
        raise UserError(f"{self.unreadable[-1]}; nor can the {len(candidates) - 1} pictures next to it be read, which "
                        "could be before the run: restore them and go on with resume=auto")  # fmt: skip
