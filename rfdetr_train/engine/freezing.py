"""Parts of the model that do not train, or not before some epoch."""

import logging
from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rfdetr_train.config import FreezeConfig, FreezePartConfig
from rfdetr_train.roles import ParameterRole

log = logging.getLogger(__name__)

NamedParameters = list[tuple[str, nn.Parameter]]


def _is_frozen(norm: _BatchNorm) -> bool:
    return norm.affine and not norm.weight.requires_grad


def _keep_statistics(norm: _BatchNorm, _: object) -> None:
    """A BatchNorm that does not train normalises by what it has seen before."""
    if _is_frozen(norm):
        norm.eval()


def hold_statistics(model: nn.Module) -> None:
    """Let BatchNorms that are frozen by now keep their statistics, for as long as they are frozen."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and _is_frozen(module):
            module.register_forward_pre_hook(_keep_statistics)


class FrozenParts:
    """The parts that `freeze` names, frozen at once: build the optimizer after this."""

    def __init__(self, model: nn.Module, roles: dict[str, ParameterRole], config: FreezeConfig) -> None:
        sections: dict[str, FreezePartConfig] = {
            "encoder": config.encoder,
            "projector": config.projector,
            "decoder": config.decoder,
        }
        self.sections = {part: section for part, section in sections.items() if section.frozen_at_start}
        self.parameters: dict[str, NamedParameters] = {
            part: [(name, p) for name, p in model.named_parameters() if roles[name].part == part and p.requires_grad]
            for part in self.sections
        }
        for named in self.parameters.values():
            for _, parameter in named:
                parameter.requires_grad_(False)
        hold_statistics(model)

    @property
    def any_joins_later(self) -> bool:
        """Whether a part will train at all."""
        return any(section.until_epoch is not None for section in self.sections.values())


class Unfreezer:
    """Hands each part to the optimizer when its epoch comes."""

    def __init__(self, frozen: FrozenParts, join: Callable[[NamedParameters], None]) -> None:
        """`join` adds named parameters to the optimizer and the scheduler."""
        self.frozen = frozen
        self.join = join

    def enter_epoch(self, epoch: int) -> bool:
        """Unfreeze the parts whose `until_epoch` has come, and say whether there are any; asking again does nothing."""
        before = len(self.frozen.sections)
        for part, section in list(self.frozen.sections.items()):
            if section.until_epoch is not None and section.until_epoch <= epoch:
                del self.frozen.sections[part]
                named = self.frozen.parameters.pop(part)
                for _, parameter in named:
                    parameter.requires_grad_(True)
                self.join(named)
                log.info("epoch %d: the %s trains from now on (%d tensors)", epoch, part, len(named))
        return len(self.frozen.sections) < before
