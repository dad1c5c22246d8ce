"""Checkpoint files: written whole or not at all, read without running anything that is in them."""

import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rfdetr_train.atomic_file import replacing
from rfdetr_train.errors import UserError

FORMAT = 1
"""Version of the content; a reader refuses a newer one."""

KINDS = {"format": int, **dict.fromkeys(("model", "optimizer", "scheduler", "loop", "label_map", "config"), dict)}
"""What a part of the content must be, if it is there."""


def save(path: Path, content: dict[str, Any]) -> None:
    """Write `content` (plain values and tensors) to `path`; a crash leaves the old file or the new one.

    Raises: UserError if the disk does not take it; the old file is whole then.
    """
    try:
        with replacing(path) as file:
            torch.save({"format": FORMAT, **content}, file)
    except (OSError, RuntimeError) as error:  # the second is torch's for a write that fails
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        before = "the file before it is whole" if path.is_file() else "there was none before"
        raise UserError(f"{path}: cannot be written ({reason}); {before}. Free space or mend the folder, then go on "
                        "with resume=auto") from error  # fmt: skip


def load(path: Path, mapped: bool = True) -> dict[str, Any]:
    """Read one of our checkpoints on the CPU; a missing, cut, foreign or newer file is a `UserError`.

    `mapped`: tensors are read when they are looked at, and the file keeps its place on the disk as long as they live.
    """
    content = load_untrusted(path, mapped=mapped)
    if "format" not in content or "loop" not in content:
        found = ", ".join(sorted(map(str, content)))[:200]
        foreign = "; of a file of the reference package a run can start: weights=FILE" if "model" in content else ""
        raise UserError(f"{path}: not a checkpoint of rfdetr_train (it holds {found}){foreign}")
    wrong = [key for key, kind in KINDS.items() if not isinstance(content.get(key, kind()), kind)]
    if wrong:
        raise UserError(f"{path}: damaged, its {wrong[0]} is a {type(content[wrong[0]]).__name__}{_previous(path)}")
    if content["format"] > FORMAT:
        raise UserError(f"{path}: written by a newer release (format {content['format']}, this one reads {FORMAT})")
    return content


def load_untrusted(path: Path, extra_types: tuple[type, ...] = (), mapped: bool = True) -> dict[str, Any]:
    """Read any `torch.save`d dict with `weights_only=True`: nothing in the file is imported or called.

    `extra_types` are plain containers that the file may also hold.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint file")
    if path.stat().st_size == 0 or not (_is_archive(path) or _is_legacy_pickle(path)):
        raise UserError(f"{path}: cut off or not a checkpoint ({path.stat().st_size} bytes){_previous(path)}")
    try:
        with torch.serialization.safe_globals(list(extra_types)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old pickles
            # mapped, looking into a large file for its config reads only that
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and _is_archive(path))
    except pickle.UnpicklingError:
        message = f"{path}: holds more than tensors and plain values, so it is not loaded (it could run code)"
        raise UserError(message) from None  # torch's own message says how to load it all the same
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]  # an EOFError says nothing
        raise UserError(f"{path}: cannot be read as a checkpoint: {reason}{_previous(path)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__}, not a checkpoint")
    return content


@contextmanager
def reading(source: str | Path, wrong: str = "damaged, what it holds cannot be used") -> Iterator[None]:
    """Turn whatever damaged content makes the block raise into a UserError, and let each of those name the file."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except UserError as error:
        if str(source) in str(error):
            raise
        raise UserError(f"{source}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{source}: {wrong} ({repr(error)[:300]})") from error


def _is_archive(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # damaged so that it seems to be one of several parts
        return False


def _is_legacy_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) == b"\x80"  # the first byte of a pickle


def _previous(path: Path) -> str:
    """The newest whole checkpoint beside a broken one of a run; its hard links are as broken as it is."""
    if run_folder_of(path) is None:
        return ""
    others = [other for other in path.parent.glob("*.pt") if not other.samefile(path) and _is_archive(other)]
    others.sort(key=lambda other: other.stat().st_mtime, reverse=True)
    return f"; the newest other one is {others[0]}" if others else ""


def nonfinite(weights: Mapping[str, Tensor]) -> list[str]:
    """The names of the weights that hold a number which is not finite."""
    return [name for name, tensor in weights.items() if not tensor.isfinite().all()]


def resolve(reference: str | Path, prefer: tuple[str, ...]) -> Path:
    """A checkpoint file from a file or a run folder; in a folder the first of `prefer` ("best", "last") that exists."""
    path = Path(reference).expanduser()
    if path.is_dir():
        candidates = [path / "checkpoints" / f"{name}.pt" for name in prefer]
        found = [candidate for candidate in candidates if candidate.is_file()]
        if not found:
            raise UserError(f"{path}: no checkpoint in this folder (looked for {', '.join(map(str, candidates))})")
        return found[0]
    if not path.is_file():
        raise UserError(f"{path}: no such file or run folder (looked for {path.resolve()})")
    return path


def run_folder_of(path: Path) -> Path | None:
    """The run folder of a checkpoint that lies where a run puts it; None for a copy elsewhere."""
    return path.parent.parent if path.parent.name == "checkpoints" else None
