"""SWA's constant rate in the late epochs, behind any other schedule (arXiv 1803.05407)."""

from collections.abc import Mapping
from typing import Any

from torch.optim.swa_utils import SWALR

from rfdetr_train.config import SwaConfig
from rfdetr_train.errors import UserError
from rfdetr_train.optim.schedulers import ManagedScheduler

State = dict[str, Any]


class SwaScheduler(ManagedScheduler):
    """The run's own schedule up to `start_epoch`, then torch's `SWALR`, which steps once an epoch."""

    def __init__(self, before: ManagedScheduler, config: SwaConfig) -> None:
        super().__init__(before.optimizer, before.scheduler)
        self.before = before
        self.config = config
        self.epochs = 0
        self.swa: SWALR | None = None

    def step(self) -> None:
        if self.swa is None:
            self.before.step()

    def epoch_end(self) -> None:
        self.epochs += 1
        if self.epochs < self.config.start_epoch:
            self.before.epoch_end()
            return
        if self.swa is None:
            self.swa = self._new_swa()
        self.swa.step()

    def evaluated(self, metrics: Mapping[str, float | None]) -> None:
        if self.swa is None:
            self.before.evaluated(metrics)

    def state_dict(self) -> State:
        children = [self.before.state_dict(), *([self.swa.state_dict()] if self.swa else [])]
        return {"kind": "SWA", "epochs": self.epochs, "_schedulers": children}

    def load_state_dict(self, state: State) -> None:
        if state.get("kind") != "SWA":
            raise UserError(
                "resume: the checkpoint's run had no SWA; resume it with its own ema, or start from its weights"
            )
        before, *swa = state["_schedulers"]
        self.epochs = state["epochs"]
        self.before.load_state_dict(before)
        if swa:
            self.swa = self._new_swa()
            self.swa.load_state_dict(swa[0])
            for group, lr in zip(self.optimizer.param_groups, swa[0]["_last_lr"], strict=True):
                group["lr"] = lr

    def check_extensible(self) -> None:
        raise UserError("freeze: no part can join a run with ema=swa; freeze it throughout or use ema=default")

    def _new_swa(self) -> SWALR:
        rates = [group["initial_lr"] * self.config.lr_factor for group in self.optimizer.param_groups]
        return SWALR(self.optimizer, swa_lr=rates, anneal_epochs=self.config.anneal_epochs)  # type: ignore[arg-type]
