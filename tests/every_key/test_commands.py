"""Every key of evaluate, predict, export and doctor, changed alone, changes what the command leaves or says.

All of them take one small checkpoint and two small data sets; pictures, weights and tables are compared byte by byte.
"""

import importlib
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from changed_keys import assert_named, keys
from PIL import Image
from small_run import SMALL_MODEL
from watched import Case, files_in, watching

from rfdetr_train import config
from rfdetr_train.cli import compose_config
from rfdetr_train.cli import run as run_command
from rfdetr_train.commands.train import train
from rfdetr_train.config import ShapesDataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.errors import UserError
from rfdetr_train.export import program

TRAINED = [
    *SMALL_MODEL, "data.train_images=4", "data.valid_images=3", "data.image_size_px=64", "data.num_workers=0",
    "trainer.batch_size=2", "trainer.precision=fp32", "trainer.epochs=1", "trainer.log_every_steps=1",
    "optimizer.lr=1e-2", "ema.tau=0", "logger.plots=false", "checkpoint.every_steps=1", "checkpoint.keep=9",
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run`, a trained detector; data sets: `shapes`, its own, `other`, of which one valid picture is broken in
    `broken`, and in which a box comes twice in `twice`; and `pictures` to predict on."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "run").mkdir()
    train(compose_config("train", [*TRAINED, f"data.root={folder / 'shapes'}"]), folder / "run")
    section = ShapesDataConfig(
        root=str(folder / "made"), train_images=6, valid_images=3, image_size_px=64, shapes_seed=1
    )
    made = read_dataset(section).root
    for name in ("other", "broken", "twice"):
        shutil.copytree(made, folder / name)
    picture = next((folder / "broken" / "valid").glob("*.jpg"))
    picture.write_bytes(picture.read_bytes()[:300])
    table = folder / "twice" / "train" / "_annotations.coco.json"
    content = json.loads(table.read_text())
    content["annotations"] += [{**one, "id": 10_000 + one["id"]} for one in content["annotations"][:2]]
    table.write_text(json.dumps(content))
    (folder / "pictures").mkdir()
    for name, size in (("a.jpg", (64, 64)), ("b.png", (90, 60))):
        with Image.open(next((folder / "other" / "train").glob("*.jpg"))) as image:
            image.resize(size).save(folder / "pictures" / name)
    return folder


# -------------------------------------------------------------------------------------------------------------- cases
Cases = dict[str, Case]
EARLIER = ["checkpoint={root}/run/checkpoints/step-000001.pt"]
OF_CHECKPOINT: Cases = {
    "checkpoint": Case(EARLIER),
    "weights": Case(["weights=ema"], ["weights=raw"]),
}
OF_INFERENCE: Cases = {
    **OF_CHECKPOINT,
    "batch_size": Case(["batch_size=1"]),  # the shapes of what the detector is given
    "device": Case(["device=cuda:7"]),  # refused here; where there are such devices, engine/test_precision.py chooses
    "precision": Case(["precision=bf16"]),
}
BROKEN = ["data.root={root}/broken", "data.format=coco"]
FIXED: dict[str, list[str]] = {
    "evaluate": ["checkpoint={root}/run", "data.num_workers=0", "sample_images=1", "device=cpu", "backend=pycocotools"],
    "predict": ["checkpoint={root}/run", "source={root}/pictures", "threshold=0", "device=cpu"],
    "export": ["checkpoint={root}/run", "format=safetensors"],
    "doctor": ["data=auto", "data.root={root}/other", *SMALL_MODEL],
}
CASES: dict[str, Cases] = {
    "evaluate": {
        **OF_INFERENCE,
        "split": Case(["split=train"]),
        "max_dets": Case(["max_dets=2"]),
        "backend": Case(["backend=hotcoco"]),
        "progress": Case(["progress=bar"]),  # there is no terminal for it, and that is said
        "sample_images": Case(["sample_images=0"]),
        "data.root": Case(["data.root={root}/other"]),
        "data.format": Case(["data.format=yolo"]),
        "data.num_workers": Case(["data.num_workers=1"]),  # processes beside this one
        "data.on_error": Case(["data.on_error=skip"], BROKEN),
        "data.max_megapixels": Case(["data.max_megapixels=0.001"]),
    },
    "predict": {
        **OF_INFERENCE,
        "source": Case(["source={root}/pictures/a.jpg"]),
        "threshold": Case(["threshold=0.99"]),
        "classes": Case(["classes=[square]"]),
        "tile_px": Case(["tile_px=40"]),
        "tile_overlap": Case(["tile_overlap=0.6"], ["tile_px=40"]),
        "draw": Case(["draw=false"]),
        "max_megapixels": Case(["max_megapixels=0.005"]),
    },
    "export": {
        **OF_CHECKPOINT,
        "format": Case(["format=onnx"]),
        "opset": Case(["opset=18"], ["format=onnx"]),  # what torch is asked for
    },
    "doctor": {
        "preview": Case(["preview=true"]),
        "num_pictures": Case(["num_pictures=2"], ["preview=true"]),
        "fail_on": Case(["fail_on=warning"], ["data.root={root}/twice"]),
        "data": Case(["data.root={root}/twice"]),
        "model": Case(["model.resolution=128"], ["preview=true"]),
        "augmentation": Case(["augmentation=strong"], ["preview=true"]),
        "seed": Case(["seed=1"], ["preview=true", "augmentation=strong"]),
    },
}
SECTIONS: dict[str, type[Any]] = {
    "evaluate": config.EvaluateConfig, "predict": config.PredictConfig, "export": config.ExportConfig,
    "doctor": config.DoctorConfig,
}  # fmt: skip
NOT_HERE: dict[str, dict[str, str]] = {
    "evaluate": {"devices": "every_key/test_runs.py"},  # how many are started; their work: commands/test_processes.py
}
OF_TRAINING = set(keys(config.TrainConfig)) - set(CASES["doctor"])
"""The doctor takes them so that one command line serves both, and looks at none of them: by design they do nothing."""


# -------------------------------------------------------------------------------------------------------------- tests
@pytest.fixture(autouse=True)
def stub_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says which ONNX is asked for, and leaves out the seconds of making it; export/test_program.py makes it."""

    def asked(*_: object, opset_version: int, **more: object) -> None:
        raise UserError(f"ONNX of version {opset_version}")

    monkeypatch.setattr(program, "exported_program", lambda detector: None)
    monkeypatch.setattr(torch.onnx, "export", asked)


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor's figures, which no key is about, take most of its time; sheets of pictures stay."""
    monkeypatch.setattr(importlib.import_module("rfdetr_train.commands.doctor"), "FIGURES", {})


@pytest.fixture(scope="module")
def observe(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """`observe(command, *overrides)`: the files that it leaves, what it is refused with, and what was seen."""
    known: dict[tuple[str, ...], str] = {}

    def after(command: str, *overrides: str, again: bool = False) -> str:
        if again or (command, *overrides) not in known:
            run_dir = tmp_path_factory.mktemp(command)
            given = [one.format(root=root) for one in [*FIXED[command], *overrides]]
            work = getattr(importlib.import_module(f"rfdetr_train.commands.{command}"), command)
            refusal = ""
            with watching() if command in ("evaluate", "predict") else nullcontext() as watched:
                try:
                    work(compose_config(command, given), run_dir)
                except UserError as error:
                    refusal = str(error)
            told = repr((files_in(run_dir), refusal, watched))
            known[command, *overrides] = told.replace(str(run_dir), "RUN")
        return known[command, *overrides]

    return after


@pytest.mark.parametrize(("command", "case"), [
    pytest.param(command, case, id=f"{command}-{key}") for command, cases in CASES.items()
    for key, case in cases.items()
])  # fmt: skip
def test_a_changed_key_changes_what_a_command_leaves(observe: Callable[..., str], command: str, case: Case) -> None:
    assert observe(command, *case.base, *case.changed) != observe(command, *case.base)


@pytest.mark.parametrize(("command", "base"), [
    ("evaluate", []), ("predict", []), ("export", []), ("doctor", ["preview=true", "augmentation=strong"]),
])  # fmt: skip
def test_a_command_leaves_the_same_again(observe: Callable[..., str], command: str, base: list[str]) -> None:
    """Else the differences above would prove nothing."""
    assert observe(command, *base) == observe(command, *base, again=True)


@pytest.mark.parametrize("command", ["train", *CASES])
def test_run_dir_is_where_the_folder_is_made(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even of a command that is refused."""
    monkeypatch.chdir(tmp_path)
    wrong = {"train": ["resume=nowhere"], "doctor": ["data=auto", "data.root=nowhere"]}
    options = wrong.get(command, ["checkpoint=nowhere", *["source=nowhere"] * (command == "predict")])
    for more, place in ((["run_dir=mine"], "mine"), ([], "runs")):
        assert run_command([command, *options, *more]) == 1
        assert len(list(Path(place).glob("*/*/config.yaml"))) == 1


@pytest.mark.parametrize("command", CASES)
def test_every_key_of_a_command_is_changed_or_has_a_reason(command: str) -> None:
    """A key that nobody thought of fails here; `run_dir` is the test above."""
    own = {*keys(SECTIONS[command]), *(f"data.{key}" for key in keys(config.EvaluateDataConfig))}
    own -= {"data", "run_dir"} if command == "evaluate" else {f"data.{key}" for key in keys(config.EvaluateDataConfig)}
    own -= {"run_dir"} | (OF_TRAINING if command == "doctor" else set())
    not_here = NOT_HERE.get(command, {})
    assert own == {*CASES[command], *not_here}
    assert_named(command, not_here)
