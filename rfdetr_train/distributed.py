"""The processes of a job: which one this is, and what they tell each other. With a single process nothing happens here.

Tensors and small numbers go by collective operations, whose time-out ends a job that hangs. What one process computes
for all (scores, a download, a file) is waited for through the store, by asking again and again: that may take any time,
and signals are handled meanwhile. Process 0 is the main one: it alone writes, logs and shows.
"""

import itertools
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler
from torch.nn.parallel import DistributedDataParallel

from rfdetr_train.errors import Interrupted, UserError

T = TypeVar("T")

TIMEOUT_MINUTES = 5.0
_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SECONDS_FOR_LAST_WORDS = 25  # whoever watches the processes kills after 30

_store: Any = None  # a dist.Store once the processes are joined
_calls = itertools.count()  # every process makes the same calls in the same order, so their numbers serve as keys


class ProcessLost(RuntimeError):
    """Another process of the job has gone."""


def size() -> int:
    """How many processes train together."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in _OF_A_LAUNCHER) else 1


def rank() -> int:
    """The number of this process, 0 to size() - 1."""
    return int(os.environ["RANK"]) if size() > 1 else 0


def is_main() -> bool:
    """Whether this is the process that writes, logs and shows."""
    return rank() == 0


def _on_this_machine() -> tuple[int, int]:
    """The number of this process among those of its machine, and how many those are."""
    return (int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])) if size() > 1 else (0, 1)


# ------------------------------------------------------------------------------------------------- joining and failing
@contextmanager
def joined(timeout_minutes: float = TIMEOUT_MINUTES) -> Iterator[None]:
    """Connect the processes for the duration of the block; a collective operation fails after timeout_minutes."""
    global _store
    if size() == 1:
        yield
        return
    timeout = timedelta(minutes=timeout_minutes)
    store, _, _ = next(dist.rendezvous("env://", timeout=timeout))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank(), world_size=size(), timeout=timeout)
    _store = dist.PrefixStore("rfdetr_train", store)
    if is_main():  # where one process fails, whoever watches ends all; the main one has to say why, and sum up
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_SECONDS_FOR_LAST_WORDS) and None)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // _on_this_machine()[1]))
    try:
        yield
    except Exception as error:
        if not _is_loss(error):
            told = (isinstance(error, UserError), f"{type(error).__name__}: {error}", traceback.format_exc())
            with suppress(RuntimeError):
                _store.compare_set("failed", "", json.dumps((rank(), str(error), *told)))  # the first one's stays
        raise
    dist.destroy_process_group()


def _is_loss(error: BaseException) -> bool:
    """Whether an error says no more than that another process has gone, or does not answer."""
    is_gloo = type(error) is RuntimeError and "gloo" in str(error)
    return isinstance(error, ProcessLost | dist.DistError) or is_gloo


def first_failure(error: Exception) -> Exception:
    """What made the job fail, where `error` ended this process: it, or that of the process which failed first."""
    if size() == 1:
        return error
    if not _is_loss(error):
        get_error_handler().record_exception(error)  # for torchrun to show
        return error
    deadline = time.monotonic() + 2
    try:
        while not _store.check(["failed"]) and time.monotonic() < deadline:
            time.sleep(0.05)
        number, message, is_of_user, summary, trace = json.loads(
            _store.get("failed") if _store.check(["failed"]) else ""
        )
    except (RuntimeError, AttributeError, ValueError):  # without a store, or told nothing
        return ProcessLost(f"another process of the job has died, or has not answered in time; {error}")
    if is_of_user:
        return UserError(message)
    first = ProcessLost(f"process {number} of the job failed with {summary}")
    first.__cause__ = ProcessLost(f"there\n{trace}")
    return first


# ------------------------------------------------------------------------------------------------------------ waiting
def _wait_for(key: str) -> bytes:
    pause = 0.001
    while not _store.check([key]):
        if _store.check(["failed"]):
            raise ProcessLost("another process has failed")
        if (number := stopped()) is not None:
            raise Interrupted(number)
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    return _store.get(key)


def from_main(make: Callable[[], T], *, per_machine: bool = False) -> T:
    """What `make` gives on the main process, or on the first one of each machine; the others wait and are told.

    Plain values that JSON holds; floats keep their bits.
    """
    if size() == 1:
        return make()
    key = f"told {next(_calls)} {os.environ.get('GROUP_RANK') if per_machine else ''}"
    if (_on_this_machine()[0] if per_machine else rank()) > 0:
        return cast(T, json.loads(_wait_for(key)))
    value = make()
    _store.set(key, json.dumps(value))
    return value


@contextmanager
def one_after_the_first() -> Iterator[None]:
    """The first process of each machine runs the block before its others, which then find what it has written."""
    key = f"first {next(_calls)} {os.environ.get('GROUP_RANK')}"
    number, others = _on_this_machine()
    if number > 0:
        _wait_for(key)
    yield
    if number == 0 and others > 1:
        _store.set(key, "")


def meet() -> None:
    """Go on when all processes are here, however long one of them takes."""
    if size() > 1:
        key = f"meeting {next(_calls)}"
        if _store.add(f"{key} arrived", 1) == size():
            _store.set(key, "")
        _wait_for(key)


def stop_all(signal_number: int) -> None:
    """Say that this process goes, stopped by a signal; those that wait then raise `Interrupted`."""
    if size() > 1:
        _store.set("stopped", str(signal_number))


def stopped() -> int | None:
    """The signal by which a process was stopped, if one was."""
    return int(_store.get("stopped")) if size() > 1 and _store.check(["stopped"]) else None


# ------------------------------------------------------------------------------------------------- numbers and tensors
def sums(numbers: Sequence[float]) -> list[float]:
    """Each number summed over all processes, in float64."""
    return add_up(torch.tensor(numbers, dtype=torch.float64)).tolist() if size() > 1 else list(numbers)


def add_up(tensor: Tensor) -> Tensor:
    """The tensor summed over all processes, in its place."""
    if size() > 1:
        dist.all_reduce(tensor)
    return tensor


def gather(value: T) -> list[T]:
    """The value of every process, in their order; on others than the main one no more than their own."""
    values: list[Any] = [value] + [None] * (size() - 1)
    if size() > 1:
        dist.gather_object(value, values if is_main() else None)
    return values if is_main() else [value]


def own_share(items: list[T]) -> list[T]:
    """This process's run of neighbours; the shares of all differ by one item at most, and the first are the longer."""
    return [items[i] for i in np.array_split(np.arange(len(items)), size())[rank()]]


# ------------------------------------------------------------------------------------------------ devices and networks
def own_device(device: torch.device, key: str) -> torch.device:
    """The GPU of this process, one for each; the CPU is for all."""
    number, on_machine = _on_this_machine()
    if size() == 1 or device.type == "cpu":
        return device
    if device.type != "cuda" or device.index is not None:
        raise UserError(f"{key}={device}: {size()} processes cannot share it; use {key}=cuda or {key}=cpu")
    if on_machine > torch.cuda.device_count():
        raise UserError(
            f"{key}={device}: {on_machine} processes want a GPU each, this machine has {torch.cuda.device_count()}; "
            f"start fewer, or use {key}=cpu"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def share_of_memory(free: int, device: torch.device) -> int:
    """What each process may fill of `free` bytes of `device`."""
    return free if device.type == "cuda" else free // _on_this_machine()[1]


def parallel(model: nn.Module, all_used: bool = True) -> nn.Module:
    """What to call in place of `model`: its backward pass leaves the mean of all processes' gradients in `.grad`.

    all_used: every parameter that trains takes part in the loss.

    To be made anew when parameters are frozen or no longer so. A BatchNorm normalises by each process's own share; the
    running statistics are the main process's.
    """
    if size() == 1:
        return model
    return DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=not all_used)


def exchanging(network: nn.Module, now: bool) -> AbstractContextManager:
    """The context of a forward and backward pass whose gradients are exchanged now, or only added up."""
    return nullcontext() if now or size() == 1 else cast(DistributedDataParallel, network).no_sync()


@torch.no_grad()
def take_buffers_of_main(model: nn.Module) -> None:
    """Give every process the main one's running statistics, so that all score the network that is saved."""
    for buffer in model.buffers() if size() > 1 else ():
        dist.broadcast(buffer, 0)


def draw_own_numbers(seed: int, step: int) -> None:
    """Let a step's random numbers, of dropout, differ between processes; the main one's go on, as they are saved."""
    if not is_main():
        stream = np.random.SeedSequence(seed, spawn_key=(rank(), step))
        torch.manual_seed(int(stream.generate_state(1, np.uint64)[0]))


class _Silent:
    """Takes every call and does nothing; false, and a context."""

    def __getattr__(self, name: str) -> Callable[..., "_Silent"]:
        return lambda *arguments, **named: self

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def only_on_main(make: Callable[..., T], *arguments: Any) -> T:
    """`make(*arguments)` on the main process; on others an object that takes the same calls and does nothing."""
    return make(*arguments) if is_main() else cast(T, _Silent())
