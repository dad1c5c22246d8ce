"""The device that a key means, and the copies of weights that autocast makes."""

import sys
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn
from torch.profiler import profile

from rfdetr_train.engine.precision import Precision, choose_device, require_compiler
from rfdetr_train.errors import UserError


def test_a_device_by_its_name() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    accelerated = torch.accelerator.is_available()
    assert (choose_device("auto").type != "cpu") == accelerated


@pytest.mark.parametrize(
    ("name", "words"),
    [("cuda:99", "trainer.device=cuda:99: this machine has"), ("tpu0", "trainer.device=tpu0: choose")],
)
def test_a_device_that_is_not_there_is_refused(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_device(name)


def test_fp16_on_a_cpu_is_refused() -> None:
    with pytest.raises(UserError, match=r"trainer\.precision=fp16: a CPU has no fast fp16"):
        Precision("fp16", torch.device("cpu"))


def test_weights_are_cast_once_for_many_passes() -> None:
    layer, x = nn.Linear(64, 32), torch.randn(2, 64)
    precision = Precision("bf16", torch.device("cpu"))

    def casts(outer: AbstractContextManager) -> int:
        with profile(record_shapes=True) as seen, torch.no_grad(), outer:
            for _ in range(3):
                with precision.autocast():
                    layer(x)
        return sum(event.name == "aten::_to_copy" and [32, 64] in event.input_shapes for event in seen.events())

    assert casts(nullcontext()) == 3
    assert casts(precision.kept_casts()) == 1


def test_compiling_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"trainer.compile=true: no C\+\+ compiler"):
        require_compiler()
    monkeypatch.setenv("CXX", sys.executable)
    require_compiler()
