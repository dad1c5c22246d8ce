"""Parts of the model that do not train, or not before some epoch."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rfdetr_train.config import FreezeConfig, FreezePartConfig
from rfdetr_train.roles import ParameterRole

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

    def thaw(self, epoch: int) -> dict[str, NamedParameters]:
        """Unfreeze the parts whose `until_epoch` has come: part -> its parameters. Asking again gives none."""
        until = {part: section.until_epoch for part, section in self.sections.items()}
        due = [part for part, first_epoch in until.items() if first_epoch is not None and first_epoch <= epoch]
        for part in due:
            del self.sections[part]
            for _, parameter in self.parameters[part]:
                parameter.requires_grad_(True)
        return {part: self.parameters.pop(part) for part in due}
