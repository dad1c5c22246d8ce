"""RF-DETR (arXiv 2511.09554): backbone -> projector -> two-stage selection -> decoder -> heads.

Letters in the shapes: B batch, H x W pixels of the input, Q queries of a group, G groups, N queries in all
(G Q in training, Q in evaluation), D hidden width, C class logits, S tokens of the feature map, h x w its grid.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rfdetr_train.boxes import apply_deltas
from rfdetr_train.config import ModelConfig
from rfdetr_train.errors import UserError
from rfdetr_train.models.backbone import build_backbone
from rfdetr_train.models.decoder import Decoder
from rfdetr_train.models.heads import box_head, class_head
from rfdetr_train.models.padding import padding_of_levels
from rfdetr_train.models.parameter_roles import parameter_roles
from rfdetr_train.models.projector import Projector
from rfdetr_train.models.two_stage import TwoStage
from rfdetr_train.models.windowed_vit import WindowedViT
from rfdetr_train.roles import ParameterRole


class RFDETR(nn.Module):
    """The whole detector; the attributes carry the names of its parts."""

    def __init__(self, config: ModelConfig, num_classes: int, pretrained: bool = False) -> None:
        super().__init__()
        self.num_classes = num_classes
        width = config.hidden_dim
        self.backbone = build_backbone(config, pretrained)
        if isinstance(self.backbone, WindowedViT):  # a checkpoint says them, whatever null will mean
            config = replace(config, feature_blocks=list(self.backbone.feature_blocks))
        self.config = config
        self.projector = Projector(self.backbone.channels, config)
        self.class_embed = class_head(width, num_classes + 1)
        self.box_embed = box_head(width)
        self.two_stage = TwoStage(width, config.group_detr, self.class_embed, self.box_embed)
        self.decoder = Decoder(config, len(config.levels))
        self.query_feat = nn.Embedding(config.group_detr * config.num_queries, width)
        self.refpoint_embed = nn.Embedding(config.group_detr * config.num_queries, 4)
        nn.init.zeros_(self.refpoint_embed.weight)

    def forward(self, images: Tensor, padding: Tensor | None = None) -> dict[str, Any]:
        """Detect.

        Args:
            images: (B, config.input_channels, H, W) float32, normalised by ImageNet's mean and standard deviation; H
                and W divide by `config.stride`.
            padding: (B, H, W) bool, True to the right of and below the picture, where `images` hold 0; None: nothing
                is padded.

        Returns:
            `logits` (B, N, C), of which the last class has no target, and `boxes_cxcywh` (B, N, 4), float32, fractions
            of the picture without its padding (exactly: of the tokens that it touches), not bounded; `enc`, the same
            two of the two-stage selection; in training `aux`, a list with the same two of each decoder layer before
            the last. N = Q in evaluation, G Q in training.

        Raises:
            UserError: a side does not divide by the stride, or the feature map has fewer tokens than the Q queries.
        """
        self._check_input(images)
        num_groups = self.config.group_detr if self.training else 1
        num_queries = num_groups * self.config.num_queries
        maps = self.projector(self.backbone(images))
        grids = [(level.shape[2], level.shape[3]) for level in maps]
        memory = torch.cat([level.flatten(2).transpose(1, 2) for level in maps], dim=1)

        padded = None if padding is None else padding_of_levels(padding, grids)

        picked = self.two_stage(memory, grids, self.config.num_queries, num_groups, padded)
        references = apply_deltas(self.refpoint_embed.weight[:num_queries], picked.boxes_cxcywh.detach())
        queries = self.query_feat.weight[:num_queries].expand(len(images), -1, -1)
        hidden = self.decoder(queries, references, memory, grids, num_groups, padded)

        outputs: dict[str, Any] = self._predict(hidden[-1], references)
        if self.training:
            outputs["aux"] = [self._predict(layer, references) for layer in hidden[:-1]]
        outputs["enc"] = {"logits": picked.logits, "boxes_cxcywh": picked.boxes_cxcywh}
        return outputs

    @property
    def all_used(self) -> bool:
        """Whether every parameter takes part in the outputs; those of blocks behind the last feature block do not."""
        backbone = self.backbone
        return not isinstance(backbone, WindowedViT) or backbone.feature_blocks[-1] == len(backbone.vit.blocks)

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """What every parameter is, by its name."""
        return parameter_roles(self, self.backbone.layers_above())

    def recompute_activations(self) -> None:
        """Keep of a training step's forward pass only what enters each block and layer; backward computes the rest."""
        self.decoder.recompute = True
        if isinstance(self.backbone, WindowedViT):
            self.backbone.recompute = True

    def compile_blocks(self, backend: str = "inductor") -> None:
        """Let torch.compile fuse the operations inside each block and layer.

        Each on its own: one compilation serves all that are alike, and what depends on the data, such as the two-stage
        selection, stays as it is. A second size of pictures compiles once more, for every size; at torch's limit of
        recompilations (torch._dynamo.config.recompile_limit) a block goes on uncompiled, and torch says so.
        """
        blocks = [*self.backbone.vit.blocks] if isinstance(self.backbone, WindowedViT) else []
        for block in [*blocks, *self.decoder.layers]:
            block.compile(backend=backend)

    def _predict(self, hidden: Tensor, references_cxcywh: Tensor) -> dict[str, Tensor]:
        """Heads, shared by all layers: (B, N, D) -> logits and boxes."""
        boxes_cxcywh = apply_deltas(self.box_embed(hidden), references_cxcywh)
        return {"logits": self.class_embed(hidden), "boxes_cxcywh": boxes_cxcywh}

    def _check_input(self, images: Tensor) -> None:
        height, width = images.shape[-2:]
        stride, num_queries = self.config.stride, self.config.num_queries
        if height % stride or width % stride:
            raise UserError(f"input of {height} x {width} pixels: both sides must divide by {stride}")
        tokens = self.config.num_tokens(height, width)
        if tokens < num_queries:
            raise UserError(
                f"input of {height} x {width} pixels: its {tokens} tokens are fewer than model.num_queries="
                f"{num_queries}; lower num_queries or raise the resolution"
            )


def build_model(config: ModelConfig, num_classes: int, pretrained: bool = False) -> RFDETR:
    """A detector of `num_classes` classes, with C = num_classes + 1 logits, on the CPU, with initial values.

    Only with `pretrained` does its backbone get timm's weights, which may be downloaded: `config.pretrained` says what
    training starts from, and plays no part where the weights come from a checkpoint.
    """
    return RFDETR(config, num_classes, pretrained)
