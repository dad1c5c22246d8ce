"""SWA's learning rate (arXiv 1803.05407): constant in the late epochs, behind any other schedule."""

from collections.abc import Mapping

from torch.optim.swa_utils import SWALR

from rfdetr_train.config import SwaConfig
from rfdetr_train.errors import UserError
from rfdetr_train.optim.scheduler_state import loadable, plain
from rfdetr_train.optim.schedulers import ManagedScheduler
from rfdetr_train.state_dicts import State, set_lr


class SwaScheduler(ManagedScheduler):
    """Two schedules, one after the other: the run's own until `start_epoch` epochs are over, then torch's `SWALR`.

    SWALR steps at the end of an epoch. It starts from the rates that the run's own schedule has reached and moves them,
    over `anneal_epochs` epochs, to `lr_factor` of each group's initial rate, where they stay.
    """

    def __init__(self, before: ManagedScheduler, config: SwaConfig) -> None:
        """`before` is the run's own schedule."""
        super().__init__(before.optimizer, before.scheduler)
        self.before = before
        self.config = config
        self.epochs = 0
        """Epochs that are over."""
        self.swa: SWALR | None = None
        """None while the run's own schedule is in charge."""

    def step(self) -> None:
        if self.swa is None:
            self.before.step()

    def epoch_end(self) -> None:
        self.epochs += 1
        if self.epochs < self.config.start_epoch:
            self.before.epoch_end()
            return
        if self.swa is None:
            self.swa = self._start_swa()
        self.swa.step()

    def evaluated(self, metrics: Mapping[str, float | None]) -> None:
        if self.swa is None:
            self.before.evaluated(metrics)

    def state_dict(self) -> State:
        """`_schedulers` holds the state of the run's own schedule and, once SWA has begun, SWALR's."""
        children = [self.before.state_dict(), *([plain(self.swa.state_dict())] if self.swa else [])]
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
            self.swa = self._start_swa()
            self.swa.load_state_dict(loadable(self.swa, swa[0]))
            # The run's own schedule has set the groups to its rates, but SWALR goes on from its own.
            for group, lr in zip(self.optimizer.param_groups, swa[0]["_last_lr"], strict=True):
                set_lr(group, lr)

    def check_extensible(self) -> None:
        raise UserError("freeze: no part can join a run with ema=swa; freeze it throughout or use ema=default")

    def _start_swa(self) -> SWALR:
        rates = [group["initial_lr"] * self.config.lr_factor for group in self.optimizer.param_groups]
        return SWALR(self.optimizer, swa_lr=rates, anneal_epochs=self.config.anneal_epochs)  # type: ignore[arg-type]
