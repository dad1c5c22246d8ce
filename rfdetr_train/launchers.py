"""What Hydra's launchers (`conf/launcher/`) leave to their jobs: the folder, a GPU of one's own, being queued again."""

import os
import platform
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import OmegaConf

from rfdetr_train.errors import UserError, require

_own_gpu: FileLock | None = None
"""Held until the process ends."""


def register() -> None:
    """Make the resolvers of `conf/launcher/*.yaml` and `conf/app.yaml` known."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    resolvers: dict[str, Callable[..., Any]] = {"from": os.path.join, "gpus_here": gpus_here, "ray_gpus": ray_gpus}
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def gpus_here(otherwise: int) -> int:
    """The number of this machine's GPUs, or `otherwise` if there is none."""
    return len(_visible_gpus()) or otherwise


def ray_gpus(*, _root_: Any) -> int:
    """1 if the Ray cluster that the launcher is to use has GPUs, so that each job gets one, else 0."""
    import ray

    if not ray.is_initialized():
        options: Any = OmegaConf.to_container(_root_.hydra.launcher.ray.init, resolve=True)
        ray.init(**options)
    return int(ray.cluster_resources().get("GPU", 0) > 0)


def prepare_job(hydra: Any, is_sweep: bool) -> None:
    """Called in a job before anything else; `hydra` is its section of the config."""
    launcher, chosen = hydra.launcher, hydra.runtime.choices.get("launcher")
    require(is_sweep or chosen is None, "launcher", chosen, "starts the jobs of a sweep only; add -m, also for one job")
    hparams = hydra.runtime.choices.get("hparams")
    require(is_sweep or hparams is None, "hparams", hparams, "is searched by a study, which is a sweep; add -m")
    for key in ("nodes", "tasks_per_node"):
        value = launcher.get(key) or 1
        require(value == 1, f"hydra.launcher.{key}", value, "would run each job so often in one folder; give 1")
    kind, cwd = str(launcher._target_).rpartition(".")[2], hydra.runtime.cwd
    if kind == "RayLauncher":  # a worker starts in a folder of Ray's
        remedy = f"is not there on {platform.node()}; start the sweep in a folder that all machines share"
        require(os.path.isdir(cwd), "hydra.runtime.cwd", cwd, remedy)
        os.chdir(cwd)
    elif kind in ("JoblibLauncher", "LocalLauncher"):
        take_own_gpu(Path(hydra.sweep.dir), _visible_gpus())


def take_own_gpu(folder: Path, gpus: list[str]) -> None:
    """Let this process see one of `gpus` that no other one with locks in `folder` has; UserError if none is left."""
    global _own_gpu
    if _own_gpu is not None or not gpus:
        return
    for number, gpu in enumerate(gpus):
        lock = FileLock(folder / f".gpu{number}.lock")
        with suppress(Timeout):
            lock.acquire(blocking=False)
            _own_gpu, os.environ["CUDA_VISIBLE_DEVICES"] = lock, gpu
            return
    remedy = f"start at most {len(gpus)} at once, hydra.launcher.n_jobs={len(gpus)}"
    raise UserError(f"hydra.launcher: all {len(gpus)} GPUs have a job of this sweep already; {remedy}")


def _visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        import torch

        named = ",".join(map(str, range(torch.cuda.device_count())))
    return [gpu for gpu in named.split(",") if gpu]


def hand_on(signal_number: int) -> None:
    """Tell who handled the signal before the run did: submitit's handler queues the job again and ends the process."""
    handler = signal.getsignal(signal_number)
    if callable(handler) and handler is not signal.default_int_handler:
        handler(signal_number, None)
