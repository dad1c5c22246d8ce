"""Hydra's side of `config/`: its dataclasses under the names that `conf/*.yaml` calls `/schema/...`, and back to them.

Back means: a config that Hydra has composed is checked once more, made into dataclasses, and saved as `config.yaml`.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from rfdetr_train import config
from rfdetr_train.errors import UserError, did_you_mean


def _choices(base: type) -> dict[str, type]:
    """The sections of a kind by the name of their choice."""
    kinds: list[Any] = [kind for kind in vars(config).values() if isinstance(kind, type) and issubclass(kind, base)]
    return {kind.name: kind for kind in kinds if kind.name != config.MISSING}


OPTIMIZERS, SCHEDULERS = _choices(config.OptimizerConfig), _choices(config.SchedulerConfig)
GROUPS: dict[str, dict[str, type]] = {
    "optimizer": OPTIMIZERS,
    "scheduler": SCHEDULERS,
    "warmup": _choices(config.WarmupConfig),
    "data": {**dict.fromkeys((*config.FORMATS, "auto"), config.DataConfig), "shapes": config.ShapesDataConfig},
    "ema": _choices(config.AveragingConfig),
}
COMMANDS: dict[str, type] = {
    "train": config.TrainConfig,
    "evaluate": config.EvaluateConfig,
    "predict": config.PredictConfig,
    "export": config.ExportConfig,
    "doctor": config.DoctorConfig,
}


@functools.cache
def register() -> None:
    """Put every schema into Hydra's store, once a process."""
    store = ConfigStore.instance()
    for command, schema in COMMANDS.items():
        store.store(group="schema", name=command, node=schema, package="_global_")
    store.store(group="hydra/sweeper", name="optuna", node=config.OptunaSweeperConfig)
    for group, schemas in GROUPS.items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)


PATH_KEYS = (
    "run_dir", "data.root", "data.negatives", "data.cache_dir", "weights_dir", "weights", "resume", "checkpoint",
    "source",
)  # fmt: skip
NOT_PATHS = ("", "auto", "coco", "none", "raw", "ema")


def to_dataclass(composed: DictConfig) -> Any:
    """Check a composed config and turn it into the dataclass of its command."""
    missing = sorted(OmegaConf.missing_keys(composed))
    if missing:
        raise UserError(f"{missing[0]} has no value: give {missing[0]}=...")
    _refuse_unknown_keys(composed)
    return OmegaConf.to_object(composed)


def _refuse_unknown_keys(node: DictConfig, prefix: str = "") -> None:
    """`+key` and `++key` get past Hydra's check of names, and `to_object` then drops them without a word."""
    schema = OmegaConf.get_type(node)
    if not dataclasses.is_dataclass(schema):
        return
    known = [f.name for f in dataclasses.fields(schema)]
    for key, child in node.items():
        if key not in known:
            raise UserError(f"{prefix}{key!s}: no such key; {did_you_mean(str(key), known) or 'remove it'}")
        if isinstance(child, DictConfig):
            _refuse_unknown_keys(child, f"{prefix}{key!s}.")


def make_paths_absolute(composed: DictConfig) -> None:
    """What a run saves and is repeated from does not depend on the working folder."""
    of_training = not isinstance(composed.get("checkpoint"), str)
    for key in PATH_KEYS if of_training else (key for key in PATH_KEYS if key != "weights"):  # there raw or ema
        value = OmegaConf.select(composed, key, default=None, throw_on_missing=False)
        if isinstance(value, str) and value not in NOT_PATHS and "://" not in value:
            OmegaConf.update(composed, key, os.path.abspath(os.path.expanduser(value)))


def save_config(composed: DictConfig, choices: Mapping[str, str | None], run_dir: Path, command: str) -> None:
    """Write `run_dir/config.yaml`: resolved values under the same choices, so that running the file repeats the run."""
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    groups = [str(group) for group in composed if choices.get(str(group))]
    defaults = [command, *({f"override /{group}": choices[group]} for group in groups), "_self_"]
    header = f"# python -m rfdetr_train {'' if command == 'train' else command + ' '}{run_dir / 'config.yaml'}\n"
    run_dir.mkdir(parents=True, exist_ok=True)
    text = OmegaConf.to_yaml(OmegaConf.create({"defaults": defaults, **values}))
    (run_dir / "config.yaml").write_text(header + text, encoding="utf-8")
