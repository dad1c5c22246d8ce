"""The published COCO weights: which file, from where, and how it comes into the cache unharmed."""

import hashlib
import http.client
import logging
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rfdetr_train.atomic_file import replacing
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

HOST = "https://storage.googleapis.com/rfdetr/"
TIMEOUT_S = 5.0
CHUNK_BYTES = 1 << 20


class PublishedFile(NamedTuple):
    """One published checkpoint."""

    file_name: str
    address: str
    md5: str


PUBLISHED = {
    "nano": PublishedFile(
        "rf-detr-nano.pth", HOST + "nano_coco/checkpoint_best_regular.pth", "fb6504cce7fbdc783f7a46991f07639f"
    ),
    "small": PublishedFile(
        "rf-detr-small.pth", HOST + "small_coco/checkpoint_best_regular.pth", "fb37061c1af7bace359c91b723a8d5c1"
    ),
    "medium": PublishedFile(
        "rf-detr-medium.pth", HOST + "medium_coco/checkpoint_best_regular.pth", "7223f764a87b863f02eb8d52bf0ce2ee"
    ),
    "large": PublishedFile(
        "rf-detr-large-2026.pth", HOST + "rf-detr-large-2026.pth", "5cb72153541cbcb9aa6efa26222acc75"
    ),
    "base": PublishedFile("rf-detr-base.pth", HOST + "rf-detr-base-coco.pth", "b4d3ce46099eaed50626ede388caf979"),
}


class Unavailable(RuntimeError):
    """The file is neither in the cache nor to be had; the message says where to put it by hand."""


def fetch(variant: str, folder: Path, on_bytes: Callable[[int, int | None], None] = lambda done, total: None) -> Path:
    """The published file of `variant` in `folder`, downloaded if it is not there, its MD5 checked before use.

    `on_bytes(done, total)` is told of the progress.

    Raises:
        Unavailable: the file is not there and cannot be fetched.
        UserError: the file that is there is another one.
    """
    if variant not in PUBLISHED:
        raise Unavailable(f"there are no published weights for model={variant}")
    published = PUBLISHED[variant]
    path = folder / published.file_name
    by_hand = f"; to bring it by hand, put {published.address} at {path}"
    if path.is_file():
        if md5_of(path) != published.md5:
            raise UserError(f"{path}: is not the published file (its MD5 is {md5_of(path)}); remove it{by_hand}")
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _download(published, path, on_bytes)
    except (OSError, http.client.HTTPException, ValueError) as error:  # urllib's own errors are OSErrors
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the answer itself, with its socket
        raise Unavailable(f"{published.address} cannot be fetched: {error}{by_hand}") from error
    return path


def _download(published: PublishedFile, path: Path, on_bytes: Callable[[int, int | None], None]) -> None:
    with replacing(path) as file:
        digest = hashlib.md5(usedforsecurity=False)
        with urllib.request.urlopen(published.address, timeout=TIMEOUT_S) as response:
            length = response.headers.get("Content-Length")
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                on_bytes(file.tell(), int(length) if length else None)
        if digest.hexdigest() != published.md5:
            raise ValueError(f"what came has MD5 {digest.hexdigest()}, not {published.md5}")


def md5_of(path: Path) -> str:
    """The MD5 of a file, in hexadecimal (it tells a whole file from a broken one, not a friend from a foe)."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
