"""The published weights' names and ours: one table, used in both directions; and how the reference groups its names.

timm holds query, key and value of an attention block as one `qkv`, in this order; `mask_token` is never used, so it is
dropped on the way in and zero on the way out. All this serves weights, and whatever else is stored per parameter in the
parameter's shape, such as an optimizer's moments.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rfdetr_train.errors import UserError

_VIT, _BLOCK = "backbone.0.encoder.encoder.", "backbone.0.encoder.encoder.encoder.layer.{i}."
_DECODER = "transformer.decoder."
_LAYER, _OUR_LAYER = "transformer.decoder.layers.{i}.", "decoder.layers.{i}."
CLASS_TOKEN = "backbone.vit.cls_token"
MASK_TOKEN = f"{_VIT}embeddings.mask_token"
IGNORED = frozenset({MASK_TOKEN, "_kp_active_mask"})
THIRDS = ("query", "key", "value")


def _level(number: str, ours: str) -> list[tuple[str, str]]:
    """The rows of one feature level of the projector."""
    stage, resizer = f"backbone.0.projector.stages.{number}.", f"backbone.0.projector.stages_sampling.{number}.{{i}}.0."
    return [
        (f"{resizer}conv.{{rest}}", f"{ours}resizers.{{i}}.conv.{{rest}}"),
        (f"{resizer}bn.{{rest}}", f"{ours}resizers.{{i}}.norm.{{rest}}"),
        (f"{resizer}{{rest}}", f"{ours}resizers.{{i}}.{{rest}}"),
        (f"{stage}0.cv1.conv.{{rest}}", f"{ours}c2f.split.conv.{{rest}}"),
        (f"{stage}0.cv1.bn.{{rest}}", f"{ours}c2f.split.norm.{{rest}}"),
        (f"{stage}0.cv2.conv.{{rest}}", f"{ours}c2f.join.conv.{{rest}}"),
        (f"{stage}0.cv2.bn.{{rest}}", f"{ours}c2f.join.norm.{{rest}}"),
        (f"{stage}0.m.{{i}}.cv{{j}}.conv.{{rest}}", f"{ours}c2f.bottlenecks.{{i}}.conv{{j}}.conv.{{rest}}"),
        (f"{stage}0.m.{{i}}.cv{{j}}.bn.{{rest}}", f"{ours}c2f.bottlenecks.{{i}}.conv{{j}}.norm.{{rest}}"),
        (f"{stage}1.{{rest}}", f"{ours}norm.{{rest}}"),
    ]


# Reference name, our name; the first row that fits decides. {i}, {j} and {k} are numbers, {rest} is the end of a name
# and {third} one of THIRDS.
TABLE = (
    (f"{_VIT}embeddings.cls_token", CLASS_TOKEN),
    (f"{_VIT}embeddings.position_embeddings", "backbone.vit.pos_embed"),
    (f"{_VIT}embeddings.patch_embeddings.projection.{{rest}}", "backbone.vit.patch_embed.proj.{rest}"),
    (f"{_BLOCK}norm{{j}}.{{rest}}", "backbone.vit.blocks.{i}.norm{j}.{rest}"),
    (f"{_BLOCK}attention.attention.{{third}}.{{rest}}", "backbone.vit.blocks.{i}.attn.qkv.{rest}"),
    (f"{_BLOCK}attention.output.dense.{{rest}}", "backbone.vit.blocks.{i}.attn.proj.{rest}"),
    (f"{_BLOCK}layer_scale{{j}}.lambda1", "backbone.vit.blocks.{i}.ls{j}.gamma"),
    (f"{_BLOCK}mlp.fc{{j}}.{{rest}}", "backbone.vit.blocks.{i}.mlp.fc{j}.{rest}"),
    (f"{_VIT}layernorm.{{rest}}", "backbone.vit.norm.{rest}"),
    *_level("0", "projector."),
    *_level("{k}", "projector.others.{k}."),
    ("transformer.enc_output.{i}.{rest}", "two_stage.groups.{i}.project.{rest}"),
    ("transformer.enc_output_norm.{i}.{rest}", "two_stage.groups.{i}.norm.{rest}"),
    ("transformer.enc_out_class_embed.{i}.{rest}", "two_stage.groups.{i}.class_embed.{rest}"),
    ("transformer.enc_out_bbox_embed.{i}.{rest}", "two_stage.groups.{i}.box_embed.{rest}"),
    (f"{_LAYER}self_attn.in_proj_{{rest}}", f"{_OUR_LAYER}self_attention.in_projection.{{rest}}"),
    (f"{_LAYER}self_attn.out_proj.{{rest}}", f"{_OUR_LAYER}self_attention.out_projection.{{rest}}"),
    (f"{_LAYER}cross_attn.value_proj.{{rest}}", f"{_OUR_LAYER}cross_attention.value_projection.{{rest}}"),
    (f"{_LAYER}cross_attn.output_proj.{{rest}}", f"{_OUR_LAYER}cross_attention.output_projection.{{rest}}"),
    (f"{_LAYER}cross_attn.{{rest}}", f"{_OUR_LAYER}cross_attention.{{rest}}"),
    (f"{_LAYER}norm{{j}}.{{rest}}", f"{_OUR_LAYER}norm{{j}}.{{rest}}"),
    (f"{_LAYER}linear{{j}}.{{rest}}", f"{_OUR_LAYER}linear{{j}}.{{rest}}"),
    (f"{_DECODER}norm.{{rest}}", "decoder.norm.{rest}"),
    (f"{_DECODER}ref_point_head.{{rest}}", "decoder.position_head.{rest}"),
    ("refpoint_embed.weight", "refpoint_embed.weight"),
    ("query_feat.weight", "query_feat.weight"),
    ("class_embed.{rest}", "class_embed.{rest}"),
    ("bbox_embed.{rest}", "box_embed.{rest}"),
)


class OurName(NamedTuple):
    """Where a reference tensor goes."""

    name: str
    """The parameter's name in our model."""
    third: int | None
    """0, 1 or 2: it is the query's, key's or value's third of a joined tensor (first dimension); None: all of it."""


def our_name(reference_name: str) -> OurName:
    """Translate one name.

    Raises UserError where the table does not know it.
    """
    name, fields = _translate(reference_name, _FROM_REFERENCE)
    return OurName(name, THIRDS.index(fields["third"]) if "third" in fields else None)


def reference_names(name: str) -> list[str]:
    """The reference name of one of our parameters, or the three names of a joined one in their order.

    Raises UserError where the table does not know it.
    """
    template, _ = _translate(name, _TO_REFERENCE, third="{third}")
    return [template.format(third=third) for third in THIRDS] if "{third}" in template else [template]


def from_reference(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the reference's names -> under ours, query, key and value joined.

    Raises UserError where a name is unknown, or a joined tensor lacks one of its thirds.
    """
    found: dict[str, dict[int | None, Tensor]] = {}
    for reference_name, tensor in state.items():
        if reference_name not in IGNORED:
            name, third = our_name(reference_name)
            found.setdefault(name, {})[third] = tensor
    return {name: _join(name, tensors) for name, tensors in found.items()}


def to_reference(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `from_reference`, with a `mask_token` of zeros beside the class token.

    Raises UserError where a name is unknown.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in state.items():
        names = reference_names(name)
        result |= {part_name: part.clone() for part_name, part in zip(names, tensor.chunk(len(names)), strict=True)}
    if CLASS_TOKEN in state:
        result[MASK_TOKEN] = torch.zeros_like(state[CLASS_TOKEN][0])
    return result


def _join(name: str, tensors: dict[int | None, Tensor]) -> Tensor:
    if None in tensors:
        return tensors[None]
    missing = [third for index, third in enumerate(THIRDS) if index not in tensors]
    if missing:
        raise UserError(f"reference weights for {name} lack {', '.join(missing)}; the file is not complete")
    return torch.cat([tensors[index] for index in range(len(THIRDS))])


def _pattern(template: str) -> re.Pattern[str]:
    groups = {"i": r"\d+", "j": r"\d+", "k": r"\d+", "rest": ".+", "third": "|".join(THIRDS)}
    pattern = re.escape(template)
    for field, expression in groups.items():
        pattern = pattern.replace(re.escape(f"{{{field}}}"), f"(?P<{field}>{expression})", 1)
    return re.compile(pattern)


def _patterns(pairs: Iterable[tuple[str, str]]) -> list[tuple[re.Pattern[str], str]]:
    return [(_pattern(source), target) for source, target in pairs]


_FROM_REFERENCE = _patterns(TABLE)
_TO_REFERENCE = _patterns((ours, reference) for reference, ours in TABLE)


def _translate(name: str, patterns: list[tuple[re.Pattern[str], str]], **extra: str) -> tuple[str, dict[str, str]]:
    for pattern, target in patterns:
        if found := pattern.fullmatch(name):
            return target.format(**found.groupdict(), **extra), found.groupdict()
    raise UserError(f"{name}: no parameter of RF-DETR detection weights has this name; another kind of model?")


def reference_order(names: Iterable[str]) -> list[str]:
    """The order of the reference's single-parameter groups, from its parameter names in the order of its state dict."""
    names = list(names)
    encoder = [name for name in names if name.startswith("backbone.0.encoder.")]
    decoder = [name for name in names if name.startswith("transformer.decoder.")]
    elsewhere = [name for name in names if not name.startswith(("backbone.0.encoder.", "transformer.decoder."))]
    return elsewhere + encoder + decoder


def reference_groups(
    order: Iterable[str], *, layer_decay: float = 0.8, component_decay: float = 0.7, weight_decay: float = 1e-4
) -> list[list[str]]:
    """How newer releases of the reference join the single-parameter groups `order`: those of equal hyperparameters.

    Of the recipe only matters which parameters come out equal.
    """

    def key(name: str) -> tuple[object, ...]:
        if not name.startswith("backbone.0.encoder."):
            return ("decoder",) if name.startswith("transformer.decoder.") and component_decay != 1 else ("elsewhere",)
        block = re.search(r"\.layer\.(\d+)\.", name)
        depth = block[1] if block else "embeddings" if "embeddings" in name else "norm"
        decays = not any(part in name for part in ("bias", "norm", "embeddings"))
        return "encoder", depth if layer_decay != 1 else "", decays if weight_decay else True

    joined: dict[tuple[object, ...], list[str]] = {}
    for name in order:
        joined.setdefault(key(name), []).append(name)
    return list(joined.values())
