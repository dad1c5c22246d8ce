"""What the C library does with the memory that a process frees."""

import ctypes
import logging
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
log = logging.getLogger(__name__)


def keep_freed_memory(largest_kept_bytes: int = 2**30, kept_bytes: int = 2**31 - 1) -> None:
    """Let this process use again what it frees: blocks up to `largest_kept_bytes`, at most `kept_bytes` at the end.

    By itself glibc takes large blocks from the system anew, which must clear each of their pages; in a training step
    on a CPU that is up to a fifth of the time. Where there is no glibc nothing happens, nor in one before 2.35, which
    refuses blocks above 32 MiB.
    """
    if sys.platform != "linux" or not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return
    if libc.mallopt(_M_MMAP_THRESHOLD, largest_kept_bytes):  # alone, the other would fix this one at 128 KiB
        libc.mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        log.debug("glibc keeps freed blocks of up to %d MiB, %d MiB in all", largest_kept_bytes >> 20, kept_bytes >> 20)
    else:
        log.debug(
            "this glibc does not keep freed blocks of %d MiB: a newer one trains faster", largest_kept_bytes >> 20
        )
