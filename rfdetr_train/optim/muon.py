"""Muon for hidden matrices and AdamW for everything else, as one optimizer."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import AdamW, Muon, Optimizer


class MuonWithAdamW(Optimizer):
    """`torch.optim.Muon` on the groups marked `use_muon: True`, `torch.optim.AdamW` on the others.

    To schedulers, hooks and checkpoints it is one optimizer: one list of `param_groups`, one `state`. The two torch
    optimizers inside own nothing; each step hands them their groups and the common state.
    """

    def __init__(self, params: list[dict[str, Any]], muon: dict[str, Any], adamw: dict[str, Any]) -> None:
        """`muon` and `adamw` are the keyword arguments of the two classes; lr and weight decay stand in the groups."""
        # The two are built on a stand-in: only their defaults and their `step` are wanted.
        self._muon = Muon([torch.zeros(1, 1)], **muon)
        self._adamw = AdamW([torch.zeros(1)], **adamw)
        super().__init__(params, {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Fill what the group leaves open from the defaults of the algorithm that it is for."""
        inner = self._muon if param_group["use_muon"] else self._adamw
        for key, value in inner.defaults.items():
            param_group.setdefault(key, value)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Both algorithms on their own groups; returns the loss of the closure, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for inner, use_muon in ((self._muon, True), (self._adamw, False)):
            # Handed over anew each time: load_state_dict replaces both the groups and the state.
            inner.param_groups = [group for group in self.param_groups if group["use_muon"] is use_muon]
            inner.state = self.state
            inner.step()
        return loss
