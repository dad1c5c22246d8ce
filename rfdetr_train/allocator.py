"""What the C library does with the memory that a process frees."""

import ctypes
import logging
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
log = logging.getLogger(__name__)


def keep_freed_memory(largest_kept_bytes: int = 2**30, kept_bytes: int = 2**31 - 1) -> None:
    """Let this process use again what it frees: blocks up to `largest_kept_bytes`, at most `kept_bytes` at the end.

    By itself glibc takes large blocks from the system anew, which must clear each of their pages; in a training step
    on a CPU that is up to a fifth of the time. Where there is no glibc nothing happens.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, largest_kept_bytes)
        libc.mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        log.debug("glibc keeps freed blocks of up to %d MiB, %d MiB in all", largest_kept_bytes >> 20, kept_bytes >> 20)
