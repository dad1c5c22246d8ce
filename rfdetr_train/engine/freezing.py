"""Parts of the model that do not train, or not before some epoch."""

import logging
from collections.abc import Callable

from torch import nn

from rfdetr_train.config import FreezeConfig, FreezePartConfig
from rfdetr_train.roles import ParameterRole

log = logging.getLogger(__name__)


class Freezer:
    """Freezes at once what `freeze` asks for, and hands a part to the optimizer when its epoch comes."""

    def __init__(self, model: nn.Module, roles: dict[str, ParameterRole], config: FreezeConfig) -> None:
        self.parameters = dict(model.named_parameters())
        self.roles = roles
        self.frozen: dict[str, FreezePartConfig] = {}
        self.join: Callable[[list[tuple[str, nn.Parameter]]], None] | None = None
        """What adds named parameters to the optimizer and the scheduler; set once these exist."""
        for part in ("encoder", "projector", "decoder"):
            section: FreezePartConfig = getattr(config, part)
            if section.frozen_at_start:
                self.frozen[part] = section
                self._set_trainable(part, False)

    @property
    def has_parts_to_join(self) -> bool:
        """Whether a part will join the optimizer later."""
        return any(section.until_epoch is not None for section in self.frozen.values())

    def enter_epoch(self, epoch: int) -> None:
        """Unfreeze the parts whose `until_epoch` has come; asking again does nothing."""
        due = [part for part, s in self.frozen.items() if s.until_epoch is not None and s.until_epoch <= epoch]
        for part in due:
            del self.frozen[part]
            named = self._set_trainable(part, True)
            assert self.join is not None
            self.join(named)
            log.info("epoch %d: the %s trains from now on (%d tensors)", epoch, part, len(named))

    def _set_trainable(self, part: str, trainable: bool) -> list[tuple[str, nn.Parameter]]:
        named = [(name, p) for name, p in self.parameters.items() if self.roles[name].part == part]
        for _, parameter in named:
            parameter.requires_grad_(trainable)
        return named
