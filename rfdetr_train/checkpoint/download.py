"""A file from an address: downloaded by one process, resumed where it broke off, checked before it gets its name."""

import hashlib
import http.client
import logging
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from rfdetr_train.atomic_file import put_in_place
from rfdetr_train.config.checks import is_secure
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""How long a server may be silent, while it connects and between any two pieces of the file."""
ATTEMPTS = 3
PAUSE_S = 1.0
CHUNK_BYTES = 1 << 18
WORTH_ANOTHER_TRY = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)

OnBytes = Callable[[int, int | None], None]


class Unavailable(RuntimeError):
    """The file is neither in the cache nor to be had; the message says where to put it by hand."""


def fetch_address(address: str, folder: Path, on_bytes: OnBytes) -> Path:
    """The file of `https://host/name#sha256=...` in `folder`, under a name that no other address has.

    An address without md5 or sha256 is warned of. Raises as `download` does.
    """
    bare, _, checksum = address.partition("#")
    last_part = re.sub(r"[^\w.-]", "_", bare.partition("?")[0].rpartition("/")[2], flags=re.ASCII)
    path = folder / f"{hashlib.sha256(bare.encode()).hexdigest()[:12]}-{last_part[-80:]}"
    download(bare, path, checksum.lower(), on_bytes)
    if not checksum:
        pinned = f"{bare}#{_checksum(path, 'sha256')}"
        log.warning("THE CONTENT OF %s IS NOT VERIFIED; to have it checked from now on: weights='%s'", path, pinned)
    return path


def download(
    address: str, path: Path, checksum: str, on_bytes: OnBytes = lambda done, total: None, timeout_s: float = TIMEOUT_S
) -> None:
    """Bring the file of `address` to `path`, unless it is there; `checksum` is `md5=<hex>`, `sha256=<hex>` or "".

    Of several processes one downloads and the others wait. What came before a try broke off stays as `.part`, private
    to the user; the next try goes on from there if the server can and a checksum will tell whether the file is the same
    one, else it begins afresh. `on_bytes(done, total)` is told of the progress.

    Raises:
        Unavailable: the file is not there and cannot be fetched.
        UserError: the file that is there is another one, or the folder takes none.
    """
    try:
        if _is_there(path, address, checksum):
            return
        with _lock(path):
            if not _is_there(path, address, checksum):  # another process may have brought it meanwhile
                log.info("downloading %s to %s", address, path)
                part = path.with_name(f"{path.name}.part")
                if not checksum:
                    part.unlink(missing_ok=True)
                _try_repeatedly(address, part, bool(checksum), on_bytes, timeout_s)
                if difference := _difference(part, checksum):
                    part.unlink()
                    raise ValueError(f"what came is another file: {difference}")
                put_in_place(part, path)
    except UserError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:  # urllib's own errors are OSErrors
        by_hand = f"to bring it by hand, put {address} at {path}"
        raise Unavailable(f"{address} cannot be fetched: {error}; {by_hand}") from error


def _is_there(path: Path, address: str, checksum: str) -> bool:
    if not path.is_file():
        return False
    if difference := _difference(path, checksum):
        raise UserError(
            f"{path}: is not the file of {address}: {difference}; remove it, or put that file there by hand"
        )
    log.info("%s is in the cache: %s", address, path)
    return True


def _lock(path: Path) -> AbstractContextManager:
    """The lock of `path` between processes, acquired; it ends with its process, however that ends."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return lock.acquire(timeout=0)
        except Timeout:
            log.info("%s: another process is downloading it; waiting for that one", path)
            return lock.acquire()
    except OSError as error:
        raise UserError(f"weights_dir={path.parent}: cannot be written ({error}); give another folder") from error


def _try_repeatedly(address: str, part: Path, may_go_on: bool, on_bytes: OnBytes, timeout_s: float) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _transfer(address, part, part.stat().st_size if may_go_on and part.is_file() else 0, on_bytes, timeout_s)
            return
        except WORTH_ANOTHER_TRY as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it is the answer itself, with its socket
            code = getattr(error, "code", 503)  # where nothing has answered something may yet
            if code == 416:  # the part is longer than the file has become
                part.unlink()
            if attempt == ATTEMPTS or (code < 500 and code not in (408, 416, 429)):
                raise
            log.warning("%s: %s; trying again", address, error)
            time.sleep(PAUSE_S * attempt)


def _transfer(address: str, part: Path, done: int, on_bytes: OnBytes, timeout_s: float) -> None:
    """Append to `part` what it lacks after `done` bytes, or begin it afresh where the server gives the whole file."""
    headers = {"User-Agent": "rfdetr_train", **({"Range": f"bytes={done}-"} if done else {})}
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.build_opener(_OnlySecure).open(request, timeout=timeout_s) as response:
        if response.headers.get_content_type() == "text/html":
            raise ValueError("the answer is a web page, not a file")
        if response.status == 206:
            log.info("%s: going on after %d bytes", part, done)
        else:
            done = 0
        missing = response.length  # None where the server does not say it
        _check_room(part, missing or 0)
        with open(part, "ab" if done else "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            while chunk := response.read1(CHUNK_BYTES):
                file.write(chunk)
                on_bytes(file.tell(), None if missing is None else done + missing)
            file.flush()
            os.fsync(file.fileno())
    if missing is not None and part.stat().st_size != done + missing:
        raise ConnectionError(f"cut off after {part.stat().st_size} of {done + missing} bytes")


def _check_room(part: Path, wanted_bytes: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if wanted_bytes > free:
        raise UserError(
            f"weights_dir={part.parent}: {part.stem} wants {wanted_bytes / 1e6:.0f} MB, {free / 1e6:.0f} MB are free; "
            "make room or give another folder"
        )


def _difference(path: Path, checksum: str) -> str:
    """`md5=... instead of md5=...`, or "" where the file has the checksum or needs none."""
    found = _checksum(path, checksum.partition("=")[0]) if checksum else ""
    return f"{found} instead of {checksum}" if found != checksum else ""


def _checksum(path: Path, algorithm: str) -> str:
    """`algorithm=<hex>` of a file (MD5 tells a whole file from a broken one, not a friend from a foe)."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}={digest.hexdigest()}"


class _OnlySecure(urllib.request.BaseHandler):
    """Refuses every address that is not secure, be it the first one or where that redirects to."""

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        if not is_secure(request.full_url):
            raise ValueError(f"{request.full_url} is no https address")
        return request

    ftp_request = file_request = data_request = http_request
