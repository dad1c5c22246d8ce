"""Which device a run uses, and in which number format its matrix products are taken."""

import logging
import os
import shutil
from contextlib import AbstractContextManager

import torch

from rfdetr_train import distributed
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str, key: str = "trainer.device") -> torch.device:
    """The device of `auto`, `cpu`, `cuda`, `cuda:N` or `mps`; one that is not there is refused under its `key`.

    Of several processes each gets a GPU of its own.
    """
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return distributed.own_device(accelerator or torch.device("cpu"), key)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"{key}={name}: choose auto, cpu, cuda, cuda:N or mps") from None
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= counts.get(device.type, 0):
        here = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)
        raise UserError(f"{key}={name}: this machine has {here}; use {key}=auto")
    return distributed.own_device(device, key)


def require_compiler() -> None:
    """Refuse trainer.compile where torch would find no C++ compiler in the first step."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in names if name):
        raise UserError(
            "trainer.compile=true: no C++ compiler found (g++, clang++ or $CXX); install one, or set it false"
        )


class Precision:
    """Autocast for the forward pass and, for fp16, the scaler of the loss. Boxes, costs and losses stay in float32."""

    def __init__(self, name: str, device: torch.device, key: str = "trainer.precision") -> None:
        """`name` is fp32, bf16, fp16, or auto: bf16 where the hardware multiplies it, else fp32."""
        self.name = _auto(device) if name == "auto" else name
        self.device = device
        if self.name == "fp16" and device.type == "cpu":
            raise UserError(f"{key}=fp16: a CPU has no fast fp16; use bf16 or fp32")
        if name == "bf16" and _auto(device) != "bf16":
            log.warning("%s=bf16: %s has no bf16 units, so it will be slow; fp32 is faster here", key, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.name == "fp16")

    def autocast(self) -> AbstractContextManager:
        """The context of the forward pass."""
        return torch.autocast(self.device.type, dtype=DTYPES[self.name], enabled=self.name != "fp32")

    def kept_casts(self) -> AbstractContextManager:
        """To be entered around many forward passes of weights that stay: each is then cast once, not in every pass.

        torch keeps the copies of weights that take gradients until the outermost autocast context is left.
        """
        return self.autocast()


def _auto(device: torch.device) -> str:
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        return "bf16" if able.get("avx512_bf16") or able.get("amx_bf16") else "fp32"
    return "fp32"
