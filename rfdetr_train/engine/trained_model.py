"""A trained detector from its checkpoint alone: what evaluating, predicting and exporting begin with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.fit import select_logits
from rfdetr_train.checkpoint.reference_run import known_classes, read_checkpoint
from rfdetr_train.checkpoint.starting_weights import best_kind
from rfdetr_train.config import ModelConfig
from rfdetr_train.data.canvas import Placement
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap
from rfdetr_train.models.lora import merged_state_dict
from rfdetr_train.models.rfdetr import RFDETR, build_model


@dataclass(frozen=True)
class TrainedModel:
    """A detector with the weights of a checkpoint, and what else the file says of it."""

    model: RFDETR
    """On the CPU, in evaluation mode."""
    label_map: LabelMap
    path: Path
    """The checkpoint file."""
    weights: str
    """Which of its weights: raw or ema."""
    saved: dict[str, Any]
    """The whole content of the file: config, loop, data_root, versions and so on."""

    @property
    def config(self) -> dict[str, Any]:
        """The config of its run; empty for a file of the reference package."""
        return self.saved["config"] or {}

    @property
    def placement(self) -> Placement:
        """How its pictures are brought to the size of its input."""
        return Placement.of(self.config.get("data", {}).get("resize", "stretch"), self.model.config)

    def state_dict(self) -> dict[str, Tensor]:
        """The weights as they leave this program: our names, adapters merged."""
        return merged_state_dict(self.model)


def load_trained_model(reference: str | Path, weights: str = "auto") -> TrainedModel:
    """The detector of a run folder (its best.pt, else its last.pt), a checkpoint file, or one of the reference package.

    `weights` is raw, ema, or auto: those that scored best when the checkpoint was written. Nothing but the file is
    needed, wherever it lies. Raises `UserError` for a file that is no checkpoint, one of the reference that does not
    tell its sizes and classes, or one that holds no average where `ema` asks.
    """
    path = files.resolve(reference, prefer=("best", "last"))
    saved = read_checkpoint(path)
    kind = _choose_weights(weights, saved, path)
    state = saved["model"] if kind == "raw" else saved["ema"]["model"]
    if "recipe" in saved:  # the reference's: logits by category id, or a class that is not named
        label_map, logits = known_classes(saved, path)
        state = select_logits(state, logits)
    else:
        label_map = LabelMap.from_plain(saved["label_map"])
    model = build_model(ModelConfig(**saved["model_config"]), len(label_map.names))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        told = f"of the sizes that {'its model_name stands for' if 'recipe' in saved else 'it tells'}"
        first = str(error).partition("\n")[2].strip()[:150]
        raise UserError(
            f"{path}: its weights are not {told}; a run of a model that fits them can begin from them, weights={path} "
            f"({first} ...)"
        ) from error
    return TrainedModel(model.eval(), label_map, path, kind, saved)


def _choose_weights(wanted: str, saved: dict[str, Any], path: Path) -> str:
    if wanted == "auto":
        return best_kind(saved)
    if wanted == "ema" and not (saved["ema"] and saved["ema"]["num_updates"]):
        raise UserError(f"weights=ema: {path} holds no average; use weights=raw")
    return wanted
