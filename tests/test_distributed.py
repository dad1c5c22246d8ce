"""What processes tell each other; one process is told what it says itself."""

import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from launch import in_processes

from rfdetr_train import distributed
from rfdetr_train.errors import Interrupted, UserError


def as_process(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name, value in zip(names, (rank, size, 0, rank, size, "localhost", 1), strict=True):
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 4, 7, 15])
def test_shares_are_a_partition_in_order_whose_first_parts_are_the_longer(
    monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    items, shares = list(range(count)), []
    for rank in range(size):
        as_process(monkeypatch, rank, size)
        shares.append(distributed.own_share(items))
    assert [item for share in shares for item in share] == items
    lengths = [len(share) for share in shares]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


def test_one_process_hears_itself() -> None:
    model = torch.nn.Linear(1, 1)
    with distributed.joined(), distributed.one_after_the_first():
        assert (distributed.rank(), distributed.size(), distributed.is_main()) == (0, 1, True)
        assert distributed.sums([0.1, 2]) == [0.1, 2]
        assert distributed.gather("a") == ["a"]
        assert distributed.from_main(lambda: Path("a")) == Path("a")
        assert distributed.parallel(model) is model
        distributed.meet()
    state = torch.get_rng_state()
    distributed.draw_own_numbers(1, 2)
    assert torch.equal(torch.get_rng_state(), state)
    error = KeyError("a")
    assert distributed.first_failure(error) is error


def test_a_device_that_processes_cannot_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    as_process(monkeypatch, 1, 3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert distributed.own_device(torch.device("cpu"), "device") == torch.device("cpu")
    with pytest.raises(UserError, match=r"device=cuda: 3 processes want a GPU each, this machine has 2; start fewer"):
        distributed.own_device(torch.device("cuda"), "device")
    with pytest.raises(UserError, match="device=cuda:1: 3 processes cannot share it; use device=cuda or device=cpu"):
        distributed.own_device(torch.device("cuda", 1), "device")
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert distributed.own_device(torch.device("cuda"), "device") == torch.device("cuda", 1)
    assert chosen == [1]


def exchanges(folder: Path) -> dict[str, Any]:
    """All of them in one job, since its start takes seconds; with a collective time-out of three seconds."""
    rank = int(os.environ["RANK"])
    seen: dict[str, Any] = {}
    with distributed.joined(timeout_minutes=0.05):
        seen["sums"] = distributed.sums([1, 10.0**rank])
        seen["gathered"] = [value.tolist() for value in distributed.gather(torch.full((rank,), rank))]
        seen["told"] = distributed.from_main(lambda: {"AP": math.pi / 7, "none": None, "rank": rank})
        seen["of the machine"] = distributed.from_main(lambda: rank, per_machine=True)
        with distributed.one_after_the_first():
            seen["there before"] = (folder / "written").exists()
            if rank == 0:
                time.sleep(0.3)
                (folder / "written").touch()
        if rank == 1:
            time.sleep(4)  # longer than a collective operation may take
        distributed.meet()
        seen["in time"] = distributed.sums([1])
        torch.manual_seed(0)
        distributed.draw_own_numbers(seed=3, step=4)
        seen["random"] = torch.rand(1).item()
        norm = torch.nn.BatchNorm1d(1)
        norm.running_mean.fill_(rank + 1.0)
        distributed.take_buffers_of_main(norm)
        seen["buffers"] = norm.running_mean.item()
        distributed.meet()
        with suppress(Interrupted):
            distributed.stop_all(15) if rank == 2 else distributed.meet()
        seen["stopped"] = distributed.stopped()
    return seen


def test_what_three_processes_tell_each_other(tmp_path: Path) -> None:
    first, *_ = every = in_processes(3, exchanges, tmp_path)
    assert all(seen["sums"] == [3, 111] for seen in every)
    assert [seen["gathered"] for seen in every] == [[[], [1], [2, 2]], [[1]], [[2, 2]]]
    assert all(seen["told"] == {"AP": math.pi / 7, "none": None, "rank": 0} for seen in every)
    assert all(seen["of the machine"] == 0 for seen in every)
    assert [seen["there before"] for seen in every] == [False, True, True]
    assert all(seen["in time"] == [3] for seen in every)
    assert all(seen["stopped"] == 15 for seen in every)
    torch.manual_seed(0)
    assert first["random"] == torch.rand(1).item()
    assert len({seen["random"] for seen in every}) == 3
    assert all(seen["buffers"] == 1.0 for seen in every)


def failing() -> tuple[str, str]:
    try:
        with distributed.joined(timeout_minutes=0.5):
            if distributed.rank() == 1:
                raise OSError("a.png: is no picture")
            distributed.sums([1]) if distributed.rank() == 0 else distributed.meet()
    except Exception as error:
        first = distributed.first_failure(error)
        return type(first).__name__, str(first)
    return "none", ""


def test_all_know_why_the_first_one_failed() -> None:
    first, second, third = in_processes(3, failing)
    assert second == ("OSError", "a.png: is no picture")
    assert first == third == ("ProcessLost", "process 1 of the job failed with OSError: a.png: is no picture")
