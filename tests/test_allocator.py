"""The C library's setting, by the page faults of a process of its own."""

import subprocess
import sys

import pytest

MEASURE = """
import resource
from rfdetr_train.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        a, b = b"x" * {size}, b"y" * {size}
        del a, b
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory({arguments})
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
@pytest.mark.parametrize(
    ("arguments", "size"), [("32 << 20, 256 << 20", 20_000_000), ("", 100_000_000)], ids=["workers", "training"]
)
def test_freed_memory_is_kept(arguments: str, size: int):
    """Two buffers, ten times, have 20 size / 4096 pages, which are fetched twice at most, not ten times."""
    measure = MEASURE.format(size=size, arguments=arguments)
    output = subprocess.run([sys.executable, "-c", measure], capture_output=True, text=True, check=True).stdout
    assert int(output) < 4 * size / 4096 + 1000
