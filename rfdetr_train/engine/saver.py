"""When a run is saved, and under which names."""

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rfdetr_train.atomic_file import put_in_place, replacing
from rfdetr_train.checkpoint import files
from rfdetr_train.config import CheckpointConfig
from rfdetr_train.errors import UserError, listed

log = logging.getLogger(__name__)


class Saver:
    """Writes `last.pt`, the newest; `best.pt`, after the best evaluation, and `step-NNNNNN.pt` are links to it."""

    def __init__(self, folder: Path, config: CheckpointConfig, content: Callable[[], dict[str, Any]]) -> None:
        """`content()` gives what a checkpoint holds at this moment."""
        self.folder = folder
        self.last = folder / "last.pt"
        self.best = folder / "best.pt"
        self.config = config
        self.content = content
        self._saved_at = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)

    def check_space(self, checkpoint_bytes: int) -> None:
        """Look, before training, whether the disk has room. Raises: UserError if not even for one checkpoint."""
        free = shutil.disk_usage(self.folder).free
        files_at_once = 3 + self.config.keep  # the last, the best, the one being written, the numbered ones
        sizes = f"a checkpoint takes about {checkpoint_bytes / 2**20:.1f} MiB, {free / 2**20:.1f} MiB are free"
        if checkpoint_bytes > free:
            raise UserError(f"{self.folder}: {sizes}; free space, or give a run_dir on another disk")
        if files_at_once * checkpoint_bytes > free:
            log.warning("%s: %s, and the run may keep %d at once (checkpoint.keep)", self.folder, sizes, files_at_once)

    def due_after_step(self, step: int) -> bool:
        """Whether `checkpoint.every_steps` or `every_minutes` asks for a save now."""
        by_steps = self.config.every_steps is not None and step % self.config.every_steps == 0
        minutes = (time.monotonic() - self._saved_at) / 60
        return by_steps or (self.config.every_minutes is not None and minutes >= self.config.every_minutes)

    def due_after_epoch(self, epoch: int) -> bool:
        """Whether `checkpoint.every_epochs` asks for a save after epoch `epoch` (from 0)."""
        return (epoch + 1) % self.config.every_epochs == 0

    def adopt(self, parent: Path, best: dict[str, Any] | None) -> None:
        """Begin with the checkpoint that the run resumes from, and with the best weights beside it.

        So the new folder is whole from the first second, and has a `best.pt` even if nothing gets better.
        """
        if best is not None:
            holders = [path for path in (parent, parent.with_name("best.pt")) if _holds(path, best)]
            if not holders:
                log.warning("%s: the weights of the best evaluation (%s) are not beside it", parent, best)
            elif holders[0] != self.best:
                _link(holders[0], self.best)
        if parent != self.last:
            _link(parent, self.last)

    def save(self, step: int, is_best: bool = False) -> None:
        """Write `last.pt` now. Raises: UserError for weights that are not finite, which replace no good ones."""
        content = self.content()
        if broken := files.nonfinite(content.get("model", {})):
            raise UserError(f"step {step} has made weights that are not finite ({listed(broken)}), so they are not "
                            f"saved; {self.last} is as it was; lower optimizer.lr, and resume it")  # fmt: skip
        if not self.folder.is_dir():
            raise UserError(f"{self.folder}: has been removed while the run went on; nothing is left to go on from")
        files.save(self.last, content)
        self._saved_at = time.monotonic()
        log.debug("saved %s after step %d", self.last, step)
        if is_best:
            _link(self.last, self.best)
        if self.config.keep:
            _link(self.last, self.folder / f"step-{step:06d}.pt")
            self._drop_old()

    def _drop_old(self) -> None:
        numbered = sorted(self.folder.glob("step-*.pt"), key=lambda path: path.stat().st_mtime_ns)
        for path in numbered[: -self.config.keep]:
            path.unlink()


def _holds(path: Path, best: dict[str, Any]) -> bool:
    """Whether the checkpoint at `path` was saved right after the evaluation `best`."""
    if not path.is_file():
        return False
    loop = files.load(path)["loop"]
    return loop["best"] == best and loop["step"] == best["step"]


def _link(source: Path, target: Path) -> None:
    """Make `target` the same file as `source` without writing its bytes again; a later `source` leaves it alone."""
    if target.exists() and target.samefile(source):
        return  # renaming one name of a file to another one of its does nothing, and would leave both
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
        put_in_place(temporary, target)
    except OSError:  # a file system without hard links
        with replacing(target) as copy, source.open("rb") as original:
            shutil.copyfileobj(original, copy)
