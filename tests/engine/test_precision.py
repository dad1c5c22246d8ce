"""The device that a key means."""

import pytest
import torch

from rfdetr_train.engine.precision import Precision, choose_device
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
