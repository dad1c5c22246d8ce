"""Parameter groups: give every trainable parameter its learning rate and weight decay, then join equal ones.

Rates follow the layer-wise decay of the RF-DETR recipe (arXiv 2511.09554): the encoder's fall from its last layer down
to its embeddings. Joining parameters of equal hyperparameters changes no update, only the number of kernels.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import nn

from rfdetr_train.config import OptimizerConfig, ParameterRule
from rfdetr_train.errors import UserError
from rfdetr_train.roles import ParameterRole
from rfdetr_train.state_dicts import group_names

NamedParameters = Iterable[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class AnnotatedParameter:
    """A trainable parameter with the hyperparameters it must have, whatever group it ends in."""

    name: str
    parameter: nn.Parameter
    lr: float
    weight_decay: float
    place: str
    """Where it sits, for group names: `encoder.block3`, `decoder`, ..."""
    hidden_matrix: bool
    """As in its role."""


class GroupRow(NamedTuple):
    """One line of the table of parameter groups."""

    name: str
    lr: float
    weight_decay: float
    tensors: int
    parameters: int


def annotate(
    named_parameters: NamedParameters, roles: dict[str, ParameterRole], config: OptimizerConfig
) -> list[AnnotatedParameter]:
    """Every trainable parameter once, in the order given; frozen ones are left out, of tied ones the first name stays.

    roles is of the whole model, also where only a part of its parameters is given. Raises UserError for a rule of the
    config whose pattern is no regular expression or matches no name in the model.
    """
    named_parameters = list(named_parameters)
    top = max((role.layers_above for role in roles.values() if role.part == "encoder"), default=0)
    first_names = {id(parameter): name for name, parameter in reversed(named_parameters)}
    annotated = [
        AnnotatedParameter(
            name=name,
            parameter=parameter,
            lr=_learning_rate(roles[name], config),
            weight_decay=config.weight_decay if _decays(parameter, roles[name], config.no_decay) else 0.0,
            place=_place(roles[name], top),
            hidden_matrix=roles[name].hidden_matrix,
        )
        for name, parameter in named_parameters
        if parameter.requires_grad and first_names[id(parameter)] == name
    ]
    for rule in config.rules:
        annotated = _apply_rule(rule, annotated, roles)
    return annotated


def group(
    annotated: Sequence[AnnotatedParameter], merge: bool, split_hidden_matrices: bool = False
) -> list[dict[str, Any]]:
    """Groups for `torch.optim`: `params`, `param_names`, `group_name`, `lr`, `weight_decay`, in order of appearance.

    merge joins parameters of equal (lr, weight_decay); without it each parameter is a group of its own, named after it.
    split_hidden_matrices keeps hidden matrices apart and marks each group with `use_muon`.
    """
    members: dict[tuple[object, ...], list[AnnotatedParameter]] = {}
    for item in annotated:
        matrix = split_hidden_matrices and item.hidden_matrix
        key = (item.lr, item.weight_decay, matrix) if merge else (item.name,)
        members.setdefault(key, []).append(item)
    groups: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    for items in members.values():
        name = _group_name(items, split_hidden_matrices) if merge else items[0].name
        seen[name] += 1  # own rules can give one place several rates
        groups.append(
            {
                "params": [item.parameter for item in items],
                "param_names": [item.name for item in items],
                "lr": items[0].lr,
                "weight_decay": items[0].weight_decay,
                "group_name": name if seen[name] == 1 else f"{name}.{seen[name]}",
                **({"use_muon": items[0].hidden_matrix} if split_hidden_matrices else {}),
            }
        )
    check_groups(groups, annotated)
    return groups


def check_groups(groups: Sequence[dict[str, Any]], annotated: Sequence[AnnotatedParameter]) -> None:
    """Assert that the groups hold every annotated parameter exactly once, with exactly the hyperparameters it has."""
    counts = Counter(id(parameter) for one_group in groups for parameter in one_group["params"])
    twice = [item.name for item in annotated if counts[id(item.parameter)] > 1]
    assert not twice, f"in two parameter groups: {twice}"
    missing = [item.name for item in annotated if not counts[id(item.parameter)]]
    assert not missing, f"in no parameter group: {missing}"
    assert len(counts) == len(annotated), f"{len(counts)} parameters in groups, {len(annotated)} annotated"
    expected = {item.name: (item.lr, item.weight_decay) for item in annotated}
    for one_group in groups:
        for name in one_group["param_names"]:
            assert expected[name] == (one_group["lr"], one_group["weight_decay"]), f"{name} lost its hyperparameters"


def group_table(groups: Sequence[dict[str, Any]]) -> list[GroupRow]:
    """Rows for printing: of groups as made here, or of an optimizer's `param_groups` (then with the present rates)."""
    return [
        GroupRow(
            name=name,
            lr=float(one_group["lr"]),
            weight_decay=float(one_group.get("weight_decay", 0.0)),
            tensors=len(one_group["params"]),
            parameters=sum(parameter.numel() for parameter in one_group["params"]),
        )
        for name, one_group in zip(group_names(groups), groups, strict=True)
    ]


def _learning_rate(role: ParameterRole, config: OptimizerConfig) -> float:
    if role.part == "encoder":
        # Multiplied in the reference implementation's order, so that its rates are met to the last bit.
        return config.encoder_lr * config.layer_decay**role.layers_above * config.component_decay**2
    if role.part == "decoder":
        return config.lr * config.component_decay
    return config.lr


def _decays(parameter: nn.Parameter, role: ParameterRole, no_decay: str) -> bool:
    if no_decay == "reference":
        return role.part != "encoder" or role.kind not in ("norm", "bias", "embedding")
    if no_decay == "matrices_only":
        return parameter.ndim >= 2
    return True


def _place(role: ParameterRole, top: int) -> str:
    """The embeddings lie under all `top` layers, block i under top - 1 - i, the final norm under none."""
    if role.part != "encoder":
        return role.part
    if role.kind == "embedding":
        return "encoder.embeddings"
    return f"encoder.block{top - 1 - role.layers_above}" if role.layers_above else "encoder.norm"


def _apply_rule(
    rule: ParameterRule, annotated: list[AnnotatedParameter], all_names: Iterable[str]
) -> list[AnnotatedParameter]:
    """Frozen names may match too: a rule stays valid while its parameters wait to be trained."""
    try:
        pattern = re.compile(rule.pattern)
    except re.error as error:
        raise UserError(f"optimizer.rules.pattern={rule.pattern!r}: is no regular expression ({error})") from error
    if not any(pattern.search(name) for name in all_names):
        examples = ", ".join(list(all_names)[:3])
        raise UserError(f"optimizer.rules.pattern={rule.pattern!r}: matches no parameter; names look like {examples}")

    def ruled(item: AnnotatedParameter) -> AnnotatedParameter:
        lr = item.lr if rule.lr is None else rule.lr
        return replace(
            item,
            lr=lr if rule.lr_factor is None else lr * rule.lr_factor,
            weight_decay=item.weight_decay if rule.weight_decay is None else rule.weight_decay,
        )

    return [ruled(item) if pattern.search(item.name) else item for item in annotated]


def _group_name(items: list[AnnotatedParameter], say_muon: bool) -> str:
    """`encoder.block3.no_decay`: the place of the members, or their parts where they come from several places."""
    places = list(dict.fromkeys(item.place for item in items))
    if len(places) > 1:
        places = sorted({place.split(".")[0] for place in places})
    suffix = "" if items[0].weight_decay else ".no_decay"
    return "+".join(places) + suffix + (".muon" if say_muon and items[0].hidden_matrix else "")
