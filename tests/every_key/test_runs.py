"""Every key that only a whole run shows: a run of two epochs and three steps each, with the key changed alone.

What cannot differ on one machine, and what belongs to other commands, stands in a table with the test that shows it.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changed_keys import LABELS, assert_named
from small_run import SMALL_MODEL

from rfdetr_train import config
from rfdetr_train.cli import compose_config
from rfdetr_train.commands.train import train
from rfdetr_train.errors import UserError
from rfdetr_train.loggers.files import read_metrics

SMALL = [
    *SMALL_MODEL, "data.train_images=6", "data.valid_images=2", "data.image_size_px=64", "data.num_workers=0",
    "trainer.batch_size=2", "trainer.precision=fp32", "trainer.epochs=2", "trainer.log_every_steps=2",
    "logger.plots=false", "logger.group_norms=false", "ema.decay=0.5", "evaluation.backend=pycocotools",
]  # fmt: skip
VARYING = ("images_per_s", "memory_gib")
Observe = Callable[..., str]


@pytest.fixture(scope="module")
def observe(tmp_path_factory: pytest.TempPathFactory) -> Observe:
    """Rows and files of a run with these overrides, what it is refused with, and a part of its summary."""
    root = tmp_path_factory.mktemp("data")
    runs: dict[tuple[str, ...], str] = {}

    def after(*overrides: str) -> str:
        if overrides not in runs:
            run_dir = tmp_path_factory.mktemp("run") / "day" / "run"
            run_dir.mkdir(parents=True)
            fixed = [*SMALL, f"data.root={root / 'shapes'}", f"run_dir={run_dir.parent.parent}"]
            try:
                train(compose_config("train", [*fixed, *overrides]), run_dir)
                summary = json.loads((run_dir / "summary.json").read_text())
                told = [summary.get(key) for key in ("name", "notes", "weights", "parent", "seed", "precision")]
            except UserError as error:
                told = [str(error).replace(str(run_dir), "")]
            rows = read_metrics(run_dir / "metrics.jsonl") if (run_dir / "metrics.jsonl").is_file() else []
            kept = [{key: value for key, value in row.items() if key not in VARYING} for row in rows]
            files = sorted(str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file())
            runs[overrides] = repr((told, kept, files))
        return runs[overrides]

    return after


Changes = dict[str, list[str]]
TRAINER: Changes = {
    "epochs": ["trainer.epochs=1"], "max_steps": ["trainer.max_steps=4"], "batch_size": ["trainer.batch_size=3"],
    "accumulation_steps": ["trainer.accumulation_steps=2"], "precision": ["trainer.precision=bf16"],
    "clip_norm": ["trainer.clip_norm=0.01", "optimizer=sgd"], "log_every_steps": ["trainer.log_every_steps=1"],
    "device": ["trainer.device=cuda:7"],
}  # fmt: skip
TRAINER_BASE = {"clip_norm": ["optimizer=sgd"]}  # the size of a gradient is nothing to AdamW
EVALUATION: Changes = {
    "every_epochs": ["evaluation.every_epochs=2"], "max_dets": ["evaluation.max_dets=3"],
    "weights": ["evaluation.weights=raw"],
}  # fmt: skip
LOGGER: Changes = {
    "group_norms": ["logger.group_norms=true"], "plots": ["logger.plots=true"],
    "sample_images": ["logger.plots=true", "logger.sample_images=0"],
    "trackers": ["logger.trackers=[tensorboard]"],
}  # fmt: skip
LOGGER_BASE = {"sample_images": ["logger.plots=true"]}
FREEZE: Changes = {
    "always": ["freeze.encoder.always=true"], "until_epoch": ["freeze.encoder.until_epoch=1"],
}  # fmt: skip
TOP: Changes = {
    "weights": ["weights=coco", "weights_dir=/nonexistent"], "seed": ["seed=1"], "name": ["name=mine"],
    "notes": ["notes=mine"], "resume": ["resume=/nonexistent"],
}  # fmt: skip

SHOWN_ELSEWHERE: dict[type, dict[str, str]] = {
    config.TrainerConfig: {
        "deterministic": "commands/test_train.py",  # on a CPU the bits are the same
        "memory_budget_gib": "engine/test_memory.py", "max_bad_steps": "commands/test_replay.py",
        "spike_factor": "commands/test_replay.py", "on_oom": "engine/test_step.py",  # faults must be made first
        "checkpointing": "commands/test_train.py",  # the same gradients by design, in less memory
        "compile": "models/test_rfdetr.py",  # equal to rounding; minutes
        "devices": "commands/test_processes.py", "timeout_minutes": "test_distributed.py",  # several processes
        "early_stopping": "commands/test_train.py",
    },
    config.EarlyStoppingConfig: {"patience": "commands/test_train.py", "min_delta": "engine/test_course.py"},
    config.EvaluationConfig: {
        "batch_size": "commands/test_train.py", "backend": "evaluation/test_coco_metrics.py",  # the same scores
    },
    config.LoggerConfig: {
        "progress": "loggers/test_progress.py",
        **dict.fromkeys(("project", "wandb_mode", "mlflow_uri"), "loggers/test_trackers.py"),
    },
    config.FreezePartConfig: {},
    config.TrainConfig: {
        "weights_allow_partial": "checkpoint/test_fit.py", "weights_dir": "checkpoint/test_download.py",
        "run_dir": "test_cli.py",
    },
}  # fmt: skip
CHANGED: dict[type, Changes] = {
    config.TrainerConfig: TRAINER, config.EvaluationConfig: EVALUATION, config.LoggerConfig: LOGGER,
    config.FreezePartConfig: FREEZE, config.TrainConfig: TOP, config.EarlyStoppingConfig: {},
}  # fmt: skip
SECTIONS = ("model", "optimizer", "scheduler", "warmup", "data", "augmentation", "ema", "evaluation", "loss", "trainer",
            "checkpoint", "logger", "freeze")  # fmt: skip
OF_COMMANDS: dict[type, dict[str, str]] = {
    config.DoctorConfig: dict.fromkeys(("preview", "num_pictures", "fail_on"), "commands/test_doctor.py"),
    config.EvaluateDataConfig: {
        **dict.fromkeys(("root", "format", "on_error"), "commands/test_evaluate.py"),
        "num_workers": "data/test_loader.py", "max_megapixels": "data/test_image_check.py",
    },
    config.EvaluateConfig: {
        **dict.fromkeys(("checkpoint", "batch_size", "devices"), "commands/test_processes.py"),
        "weights": "commands/test_shapes_and_sampling.py",
        **dict.fromkeys(("split", "data", "backend", "max_dets", "sample_images"), "commands/test_evaluate.py"),
        "device": "engine/test_precision.py", "precision": "engine/test_precision.py",
        "progress": "loggers/test_progress.py", "run_dir": "test_cli.py",
    },
    config.PredictConfig: {
        "weights": "commands/test_export.py",  # as in `export`
        **dict.fromkeys(("checkpoint", "source", "threshold", "classes", "batch_size", "tile_px",
                         "tile_overlap", "draw", "max_megapixels"), "commands/test_predict.py"),
        "device": "engine/test_precision.py", "precision": "engine/test_precision.py", "run_dir": "test_cli.py",
    },
    config.ExportConfig: {
        **dict.fromkeys(("checkpoint", "format", "opset", "weights"), "commands/test_export.py"),
        "run_dir": "test_cli.py",
    },
    config.TorchSchedulerConfig: {
        **dict.fromkeys(("_target_", "args", "interval", "monitor"), "optim/test_schedulers.py"),
    },
    config.ShapesDataConfig: {
        "num_workers": "data/test_loader.py", **dict.fromkeys(("cache", "cache_dir"), "data/test_picture_cache.py"),
    },
}  # fmt: skip
"""Keys of other commands, and of sections that are changed in the files beside this one."""
BESIDE = {
    config.ShapesDataConfig: {field.name for field in dataclasses.fields(config.ShapesDataConfig)}
    - {"num_workers", "cache", "cache_dir"},
    config.DoctorConfig: {field.name for field in dataclasses.fields(config.TrainConfig)},
}


@pytest.mark.parametrize(("base", "changes"), [
    *[pytest.param(TRAINER_BASE.get(key, []), value, id=f"trainer.{key}") for key, value in TRAINER.items()],
    *[pytest.param([], value, id=f"evaluation.{key}") for key, value in EVALUATION.items()],
    *[pytest.param(LOGGER_BASE.get(key, []), value, id=f"logger.{key}") for key, value in LOGGER.items()],
    *[pytest.param([], value, id=f"freeze.encoder.{key}") for key, value in FREEZE.items()],
    *[pytest.param([], value, id=key) for key, value in TOP.items()],
])  # fmt: skip
def test_a_changed_key_changes_what_a_run_leaves(observe: Observe, base: list[str], changes: list[str]) -> None:
    assert observe(*changes) != observe(*base)


def test_a_run_is_the_same_again(observe: Observe) -> None:
    """Else the differences above would prove nothing; `name=null` is what it is without."""
    assert observe("name=null") == observe()


def keys(section: type) -> list[str]:
    return [field.name for field in dataclasses.fields(section) if field.name not in LABELS]


@pytest.mark.parametrize("section", SHOWN_ELSEWHERE)
def test_every_key_of_a_run_is_changed_here_or_shown_elsewhere(section: type[Any]) -> None:
    changed, elsewhere = CHANGED[section], SHOWN_ELSEWHERE[section]
    own = [key for key in keys(section) if section is not config.TrainConfig or key not in SECTIONS]
    own += ["name"] * (section is config.TrainConfig)
    assert sorted(own) == sorted([*changed, *elsewhere])
    assert_named(section.__name__, elsewhere)


@pytest.mark.parametrize("section", OF_COMMANDS)
def test_every_key_of_another_command_is_shown_elsewhere(section: type[Any]) -> None:
    own = [key for key in keys(section) if key not in BESIDE.get(section, ())]
    assert sorted(own) == sorted(OF_COMMANDS[section])
    assert_named(section.__name__, OF_COMMANDS[section])


def test_no_section_is_left_out() -> None:
    """Of those with keys of their own, each is in this folder."""
    here = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    sections = [value for value in vars(config).values() if dataclasses.is_dataclass(value) and keys(value)]
    by_name = ("OptimizerConfig", "OptunaSweeperConfig", "ParameterRule", "FreezeConfig",
               "CheckpointConsumerConfig", "InferenceConfig", "SchedulerConfig")  # fmt: skip
    assert [s.__name__ for s in sections if s.__name__ not in here and s.__name__ not in by_name
            and not issubclass(s, config.OptimizerConfig | config.SchedulerConfig)] == []  # fmt: skip
