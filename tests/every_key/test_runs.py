"""Every key that only a whole run shows: a run of a few steps, with the key changed alone, differs in what it leaves,
in what it warns of or is refused with, or in what is seen of it while it works.

What cannot differ here stands in a table with the reason and the test that shows it.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changed_keys import assert_named, keys
from small_run import SMALL_MODEL
from watched import Asked, Case, nothing, watching

from rfdetr_train import config, distributed
from rfdetr_train.cli import compose_config
from rfdetr_train.commands.train import train
from rfdetr_train.errors import UserError
from rfdetr_train.loggers.files import read_metrics
from rfdetr_train.processes import JobContext

SMALL = [
    *SMALL_MODEL, "model.decoder_layers=1",
    "data.train_images=4", "data.valid_images=2", "data.image_size_px=64", "data.num_workers=0",
    "trainer.batch_size=2", "trainer.precision=fp32", "trainer.epochs=2", "trainer.log_every_steps=2",
    "logger.plots=false", "logger.group_norms=false", "ema.decay=0.5",
    "evaluation.backend=pycocotools", "evaluation.weights=raw",
]  # fmt: skip
"""Two epochs of two steps."""
VARYING = ("images_per_s", "memory_gib")
Leave = Callable[..., str]


# -------------------------------------------------------------------------------------------------------------- cases
WITH_TRACKERS = ["logger.trackers=[wandb,mlflow]"]
CONSTANT = ["scheduler=torch", "scheduler._target_=torch.optim.lr_scheduler.ConstantLR"]
PLATEAU = ["scheduler=torch", "scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau", "trainer.epochs=4",
           "+scheduler.args.patience=0", "scheduler.interval=evaluation"]  # fmt: skip
DRAWING = ["logger.plots=true", "trainer.epochs=1"]
DIVERGING = ["optimizer.lr=1e30", "optimizer.encoder_lr=1e30"]
THREE = ["trainer.epochs=3"]
PATIENT = [*THREE, "trainer.early_stopping.patience=1"]
ON_DISK = ["data.cache=disk", "data.cache_dir={root}/pictures"]
NOWHERE = ["weights=http://127.0.0.1:9/x.pth", "weights_dir={root}/weights"]  # the port of "discard", which none has
OTHER_SIZES = ["weights={root}/other/checkpoints/last.pt"]

Cases = dict[str, Case]
TRAINER: Cases = {
    "epochs": Case(["trainer.epochs=1"]), "max_steps": Case(["trainer.max_steps=3"]),
    "batch_size": Case(["trainer.batch_size=3"]), "accumulation_steps": Case(["trainer.accumulation_steps=2"]),
    "precision": Case(["trainer.precision=bf16"]),
    "clip_norm": Case(["trainer.clip_norm=0.01"], ["optimizer=sgd"]),  # the size of a gradient is nothing to AdamW
    "log_every_steps": Case(["trainer.log_every_steps=1"]), "device": Case(["trainer.device=cuda:7"]),
    "deterministic": Case(["trainer.deterministic=true"]),  # the mode is seen; on a CPU the bits are the same
    "checkpointing": Case(["trainer.checkpointing=true"]),  # more calls of modules; the gradients are the same
    "memory_budget_gib": Case(["trainer.memory_budget_gib=0.0001"], ["trainer.batch_size=auto", "trainer.max_steps=1"]),
    "max_bad_steps": Case(["trainer.max_bad_steps=1"], DIVERGING),
    "spike_factor": Case(["trainer.spike_factor=0.1"], ["trainer.epochs=6", "evaluation.every_epochs=9"]),
    "on_oom": Case(["trainer.on_oom=shrink"], world="little_memory"),
}  # fmt: skip
EARLY_STOPPING: Cases = {
    "patience": Case(["trainer.early_stopping.patience=1"], [*THREE, "trainer.early_stopping.min_delta=0.5"],
                     "rising_ap"),
    "min_delta": Case(["trainer.early_stopping.min_delta=0.5"], PATIENT, "rising_ap"),
}  # fmt: skip
EVALUATION: Cases = {
    "every_epochs": Case(["evaluation.every_epochs=2"]), "max_dets": Case(["evaluation.max_dets=3"]),
    "weights": Case(["evaluation.weights=both"]), "batch_size": Case(["evaluation.batch_size=1"]),
    "backend": Case(["evaluation.backend=hotcoco"]),  # which library is asked; the scores are the same
}  # fmt: skip
LOGGER: Cases = {
    "group_norms": Case(["logger.group_norms=true"]), "plots": Case(["logger.plots=false"], DRAWING),
    "sample_images": Case(["logger.sample_images=0"], DRAWING),
    "trackers": Case(["logger.trackers=[wandb]"], world="stub_trackers"),
    "project": Case(["logger.project=mine"], WITH_TRACKERS, "stub_trackers"),
    "wandb_mode": Case(["logger.wandb_mode=online"], WITH_TRACKERS, "stub_trackers"),
    "mlflow_uri": Case(["logger.mlflow_uri=http://host:5000"], WITH_TRACKERS, "stub_trackers"),
    "progress": Case(["logger.progress=bar"]),  # there is no terminal for it, and that is said
}  # fmt: skip
FREEZE_PART: Cases = {
    "always": Case(["freeze.encoder.always=true"]), "until_epoch": Case(["freeze.encoder.until_epoch=1"]),
}  # fmt: skip
FREEZE: Cases = {
    "encoder": Case(["freeze.encoder.always=true"]), "projector": Case(["freeze.projector.always=true"]),
    "decoder": Case(["freeze.decoder.always=true"]),
}  # fmt: skip
MODEL: Cases = {
    "lora_alpha": Case(["model.lora_alpha=64"], ["model.lora_rank=2", "trainer.log_every_steps=1"]),
    "lora_dropout": Case(["model.lora_dropout=0.9"], ["model.lora_rank=2", "trainer.log_every_steps=1"]),
}
DATA: Cases = {
    "num_workers": Case(["data.num_workers=1"]),  # processes beside this one; the numbers are the same
    "cache": Case(["data.cache=ram"]),  # memory that is held
    "cache_dir": Case(["data.cache_dir={root}/others"], ON_DISK),
}
TORCH_SCHEDULER: Cases = {
    "_target_": Case(["scheduler._target_=torch.optim.lr_scheduler.LinearLR"], CONSTANT),
    "args": Case(["+scheduler.args.factor=0.9"], CONSTANT),
    "interval": Case(["scheduler.interval=epoch"], [*CONSTANT, "+scheduler.args.total_iters=2"]),
    "monitor": Case(["scheduler.monitor=AR1"], PLATEAU, "rising_ap"),
}
TOP: Cases = {
    "weights": Case(["weights=coco"]), "seed": Case(["seed=1"]),
    "name": Case(["name=mine"]), "notes": Case(["notes=mine"]), "resume": Case(["resume=/nonexistent"]),
    "weights_dir": Case(["weights_dir={root}/elsewhere"], NOWHERE, "no_network"),  # what to bring by hand to where
    "weights_allow_partial": Case(["weights_allow_partial=true"], OTHER_SIZES, "other_sizes"),
}  # fmt: skip
CASES: dict[type, Cases] = {
    config.TrainerConfig: TRAINER, config.EarlyStoppingConfig: EARLY_STOPPING, config.EvaluationConfig: EVALUATION,
    config.LoggerConfig: LOGGER, config.FreezePartConfig: FREEZE_PART, config.FreezeConfig: FREEZE,
    config.ModelConfig: MODEL, config.DataConfig: DATA, config.TorchSchedulerConfig: TORCH_SCHEDULER,
    config.TrainConfig: TOP,
}  # fmt: skip

NOT_HERE: dict[type, dict[str, str]] = {
    config.TrainerConfig: {
        "compile": "models/test_rfdetr.py",  # equal to rounding by design; the compiler takes minutes
        "devices": "commands/test_processes.py",  # what is started is the last test here, what it does takes processes
        "timeout_minutes": "test_distributed.py",  # the same
    },
    config.TrainConfig: {"run_dir": "every_key/test_commands.py"},  # where Hydra makes the folder: of all commands
}
SECTIONS = {"model", "optimizer", "scheduler", "warmup", "data", "augmentation", "ema", "evaluation", "loss", "trainer",
            "checkpoint", "logger", "freeze"}  # fmt: skip
BESIDE = {
    config.TrainConfig: SECTIONS, config.TrainerConfig: {"early_stopping"},
    config.ModelConfig: {*keys(config.ModelConfig)} - {"lora_alpha", "lora_dropout"},
    config.DataConfig: {*keys(config.DataConfig)} - {"num_workers", "cache", "cache_dir"},
}  # fmt: skip
"""Sections, whose own keys are changed, and what the files beside this one change."""


# -------------------------------------------------------------------------------------------------------------- tests
@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all runs share."""
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def leave(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Leave:
    """`leave(*overrides)` runs, and tells rows and files, a part of the summary or the refusal, and what was seen."""

    def after(*overrides: str) -> str:
        run_dir = tmp_path_factory.mktemp("run") / "day" / "run"
        run_dir.mkdir(parents=True)
        fixed = [*SMALL, f"data.root={root / 'shapes'}", f"run_dir={run_dir.parent.parent}"]
        with watching() as watched:
            try:
                train(compose_config("train", [*fixed, *(one.format(root=root) for one in overrides)]), run_dir)
                summary = json.loads((run_dir / "summary.json").read_text())
                told = [summary.get(key) for key in ("name", "notes", "weights", "parent", "seed", "precision")]
            except UserError as error:
                told = [str(error)]
        rows = read_metrics(run_dir / "metrics.jsonl") if (run_dir / "metrics.jsonl").is_file() else []
        kept = [{key: value for key, value in row.items() if key not in VARYING} for row in rows]
        files = sorted(str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file())
        return repr((told, kept, files, watched)).replace(str(run_dir), "RUN")

    return after


@pytest.fixture(scope="module")
def observe(leave: Leave) -> Leave:
    """The same in the world as it is, where a command line need not be run twice."""
    known: dict[tuple[str, ...], str] = {}

    def after(*overrides: str) -> str:
        if overrides not in known:
            known[overrides] = leave(*overrides)
        return known[overrides]

    return after


@pytest.fixture
def other_sizes(root: Path) -> Asked:
    """A run whose detector is of other sizes, to begin from."""
    folder = root / "other"
    folder.mkdir()
    sizes = ["model.hidden_dim=64", "model.encoder_width=36", "trainer.max_steps=1", f"data.root={root / 'shapes'}"]
    train(compose_config("train", [*SMALL, *sizes]), folder)
    return nothing


@pytest.mark.parametrize("case", [
    pytest.param(case, id=f"{section.__name__}.{key}") for section, cases in CASES.items()
    for key, case in cases.items()
])  # fmt: skip
def test_a_changed_key_changes_what_a_run_leaves(
    leave: Leave, observe: Leave, case: Case, request: pytest.FixtureRequest
) -> None:
    asked = request.getfixturevalue(case.world) if case.world else nothing
    run = leave if case.world else observe
    before, after = ((run(*overrides), asked()) for overrides in (case.base, [*case.base, *case.changed]))
    assert before != after


@pytest.mark.parametrize(("world", "base"), [
    ("", []), ("rising_ap", PATIENT), ("stub_trackers", WITH_TRACKERS), ("", DIVERGING),
])  # fmt: skip
def test_a_run_is_the_same_again(
    leave: Leave, observe: Leave, world: str, base: list[str], request: pytest.FixtureRequest
) -> None:
    """Else the differences above would prove nothing."""
    asked = request.getfixturevalue(world) if world else nothing
    run = leave if world else observe
    first, second = ((run(*base), asked()) for run in (run, leave))
    assert first == second


@pytest.mark.parametrize(("command", "key", "options"), [
    ("train", "trainer.devices", []), ("evaluate", "devices", ["checkpoint=x"]),
])  # fmt: skip
def test_so_many_processes_are_started(command: str, key: str, options: list[str], tmp_path: Path) -> None:
    def to_start(*more: str) -> int:
        return JobContext(command, compose_config(command, [*options, *more]), tmp_path, {}).processes_to_start()

    assert (to_start(), to_start(f"{key}=3")) == (1, 3)


def test_processes_wait_so_long_for_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    def joined(minutes: float) -> None:
        waited.append(minutes)
        raise UserError("enough")

    monkeypatch.setattr(distributed, "joined", joined)
    for options in ([], ["trainer.timeout_minutes=7"]):
        with pytest.raises(UserError, match="enough"):
            JobContext("train", compose_config("train", options), tmp_path, {}).take_part()
    assert waited == [5.0, 7.0]


@pytest.mark.parametrize("section", CASES)
def test_every_key_of_a_run_is_changed_or_has_a_reason(section: type[Any]) -> None:
    """A key that nobody thought of fails here."""
    not_here = NOT_HERE.get(section, {})
    own = set(keys(section)) - BESIDE.get(section, set()) | ({"name"} if section is config.TrainConfig else set())
    assert own == {*CASES[section], *not_here}
    assert not CASES[section].keys() & not_here
    assert_named(section.__name__, not_here)


def test_no_section_is_left_out() -> None:
    """Of those with keys of their own, each is in this folder; a base class's keys are those of its heirs."""
    here = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    sections = [value for value in vars(config).values() if dataclasses.is_dataclass(value) and keys(value)]
    families = (config.OptimizerConfig, config.SchedulerConfig)  # by name, in test_parts.py
    bases = (config.CheckpointConsumerConfig, config.InferenceConfig)
    wanted = [s for s in sections if not issubclass(s, families) and s not in bases]
    assert [section.__name__ for section in wanted if section.__name__ not in here] == []
