"""A run as its checkpoint file tells it, ours or, as far as it goes, one of the reference package; and its detector."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rfdetr_train.adapters import merge_adapters
from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.fit import LogitNames, select_logits
from rfdetr_train.checkpoint.reference_run import known_classes, read_checkpoint, read_run
from rfdetr_train.checkpoint.starting_weights import best_kind
from rfdetr_train.config import ModelConfig
from rfdetr_train.data.canvas import Placement
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap
from rfdetr_train.models.rfdetr import RFDETR, build_model

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedRun:
    """The content of a checkpoint, and what it means; where the file says nothing, so do the answers."""

    path: Path
    content: dict[str, Any]
    """As `read_checkpoint` gives it."""

    @classmethod
    def read(cls, path: Path) -> "SavedRun":
        """For its weights. Raises: UserError for a file that is no checkpoint."""
        return cls(path, read_checkpoint(path))

    @classmethod
    def to_resume(cls, path: Path) -> "SavedRun":
        """To go on from. Raises: UserError for a file without the states of optimizer and scheduler, too."""
        return cls(path, read_run(path))

    def __getitem__(self, part: str) -> Any:
        return self.content[part]

    @property
    def is_of_reference(self) -> bool:
        """Whether the reference package wrote it; it then has a `recipe`, under our keys."""
        return "recipe" in self.content

    @property
    def config(self) -> dict[str, Any]:
        """The config of the run; empty for one of the reference."""
        return self["config"] or {}

    def changes(self, versions: dict[str, str]) -> list[str]:
        """Which of the versions were others: the same bits need the same ones of all these."""
        before = self.content.get("versions") or {}
        return [f"{key} {before[key]} (here {now})" for key, now in versions.items() if before.get(key, now) != now]

    def logit_names(self, wanted: Sequence[str]) -> LogitNames | None:
        """The class of each logit, None of one that has none; of a file that does not say, `wanted` if as many."""
        names = self["class_names"]
        if names is None and len(self["model"]["class_embed.bias"]) == len(wanted) + 1:
            log.warning("%s: does not say its classes; they are as many as here, so they are taken to be the same: %s",
                        self.path, ", ".join(wanted[:20]))  # fmt: skip
            return (*wanted, None)
        return names

    def detector(self, weights: str) -> tuple[str, LabelMap, dict[str, Tensor]]:
        """The kind that raw, ema or auto (what scored best) mean here, the classes, and the weights for exactly these.

        Raises: UserError for a file without an average where `ema` asks, or that does not tell its classes.
        """
        kind = best_kind(self.content) if weights == "auto" else weights
        if kind == "ema" and not (self["ema"] and self["ema"]["num_updates"]):
            raise UserError(f"weights=ema: {self.path} holds no average; use weights=raw")
        state = self["model"] if kind == "raw" else self["ema"]["model"]
        if self.is_of_reference:  # logits by category id, or a class that is not named
            label_map, logits = known_classes(self.content, self.path)
            return kind, label_map, select_logits(state, logits)
        return kind, LabelMap.from_plain(self["label_map"]), state


@dataclass(frozen=True)
class TrainedModel:
    """A detector with the weights of a checkpoint, and what else the file says of it."""

    model: RFDETR
    """On the CPU, in evaluation mode."""
    label_map: LabelMap
    weights: str
    """Which of its weights: raw or ema."""
    saved: SavedRun
    """The file: path, config, loop, data_root, versions and so on."""

    @property
    def placement(self) -> Placement:
        """How its pictures are brought to the size of its input."""
        return Placement.of(self.saved.config.get("data", {}).get("resize", "stretch"), self.model.config)

    def state_dict(self) -> dict[str, Tensor]:
        """The weights as they leave this program: our names, adapters merged."""
        return merge_adapters(self.model.state_dict(), self.model.config.lora_alpha)


def load_trained_model(reference: str | Path, weights: str = "auto") -> TrainedModel:
    """The detector of a run folder (its best.pt, else its last.pt), a checkpoint file, or one of the reference package.

    `weights` is raw, ema, or auto: those that scored best when the checkpoint was written. Nothing but the file is
    needed, wherever it lies. Raises `UserError` for a file that is no checkpoint, one of the reference that does not
    tell its sizes and classes, or one that holds no average where `ema` asks.
    """
    saved = SavedRun.read(files.resolve(reference, prefer=("best", "last")))
    with files.reading(saved.path):
        kind, label_map, state = saved.detector(weights)
        model = build_model(ModelConfig(**saved["model_config"]), len(label_map.names))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        told = f"of the sizes that {'its model_name stands for' if saved.is_of_reference else 'it tells'}"
        first = str(error).partition("\n")[2].strip()[:150]
        raise UserError(
            f"{saved.path}: its weights are not {told}; a run of a model that fits them can begin from them, "
            f"weights={saved.path} ({first} ...)"
        ) from error
    return TrainedModel(model.eval(), label_map, kind, saved)
