"""Random checkpoints, ours and the reference package's: a right reading or a refusal, never another exception.

`RFDETR_TRAIN_EXAMPLES=10000 pytest tests/faults/test_random_checkpoints.py` tries as many of each, others each time.
"""

import argparse
import io
import logging
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_things import EXAMPLES, Kept, copied, damaged, fuzz, junk, one_wrong_thing, outcome
from small_run import SMALL_MODEL

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.reference_run import read_checkpoint, read_run
from rfdetr_train.checkpoint.starting_weights import read_weights
from rfdetr_train.cli import compose_config
from rfdetr_train.commands.evaluate import choose_data
from rfdetr_train.commands.training_data import load_data
from rfdetr_train.config import EvaluateConfig
from rfdetr_train.engine.averaging import build_average
from rfdetr_train.engine.course import LoopState, RunLength
from rfdetr_train.engine.optimization import build_optimization
from rfdetr_train.engine.precision import Precision
from rfdetr_train.engine.run import Run
from rfdetr_train.engine.saved_run import SavedRun, load_trained_model
from rfdetr_train.models.rfdetr import build_model

seeds = st.integers(0, 2**32)
outcomes: Counter[str] = Counter()
"""`<reader> read` and `<reader> refused`: both must be met, else the inputs prove nothing."""


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of accounts of what did not fit are of no use."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


CONTENT: dict[Path, Any] = {}
"""What is read in the place of files: damaged bytes have a test of their own, and this is ten times as fast."""


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of what `CONTENT` holds for it."""
    path = Path("random.pt")
    monkeypatch.setattr(files, "load_untrusted", lambda path, **_: copied(CONTENT[path]))
    monkeypatch.setattr(files, "resolve", lambda path, prefer: path)
    return path


def read_by(reader: str, call: Any, path: Path) -> Any:
    found, refusal = outcome(call, path)
    outcomes[f"{reader} {'refused' if refusal else 'read'}"] += 1
    assert not refusal or str(path) in refusal, refusal
    return found


# ---------------------------------------------------------------------------------------------------------- our own
@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A run after a step, made anew by `restore` each time."""
    root = tmp_path_factory.mktemp("shapes")
    config = compose_config("train", [
        *SMALL_MODEL, f"data.root={root}", "data.train_images=4", "data.valid_images=2", "data.image_size_px=64",
        "trainer.batch_size=2", "scheduler=cosine", "optimizer.layer_decay=0.8",
    ])  # fmt: skip
    dataset = load_data(config)
    torch.manual_seed(0)
    model = build_model(config.model, len(dataset.label_map.names))
    length = RunLength(2, config.trainer.epochs)
    optimization = build_optimization(config, model, length, torch.device("cpu"))
    run = Run(config, root, dataset, model, optimization, build_average(config.ema, model),
              Precision("fp32", torch.device("cpu")), length, images_per_epoch=4)  # fmt: skip
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimization.optimizer.step()
    optimization.scheduler.step()
    run.average.step_done()
    run.loop.step = run.loop.position = 1
    run.loop.best = run.loop.last = {"step": 1, "epoch": 0, "weights": "ema", "AP": 0.5}
    return Kept(run)


@pytest.fixture(scope="module")
def ours(made: Kept) -> Kept:
    buffer = io.BytesIO()
    torch.save({"format": files.FORMAT, **made.value.to_checkpoint()}, buffer)
    buffer.seek(0)
    return Kept(torch.load(buffer, weights_only=True))


def restore(reader: str, run: Run, saved: SavedRun) -> None:
    run.loop = LoopState()
    _, refusal = outcome(run.restore, saved)
    outcomes[f"{reader} {'refused' if refusal else 'read'}"] += 1
    if not refusal:
        assert_sound(run)


def assert_sound(run: Run) -> None:
    """Whatever was in the file: numbers to go on with."""
    loop = run.loop
    counts = (loop.epoch, loop.position, loop.step, loop.skipped_steps, loop.evaluations_without_gain)
    assert all(type(count) is int and count >= 0 for count in counts), counts
    assert files.nonfinite(run.model.state_dict()) == []
    for group in run.optimization.optimizer.param_groups:
        assert math.isfinite(group["lr"]), group["lr"]
        for parameter in group["params"]:
            state = run.optimization.optimizer.state[parameter]
            assert all(state[key].shape == parameter.shape for key in ("exp_avg", "exp_avg_sq") if key in state)


@fuzz
@given(seed=seeds)
def test_a_checkpoint_of_ours_with_one_wrong_thing(seed: int, made: Kept, ours: Kept, in_memory: Path) -> None:
    path = in_memory
    CONTENT[path], place = one_wrong_thing(random.Random(seed), ours.value)
    saved = read_by("resume", SavedRun.to_resume, path)
    if saved is not None:
        restore("restore", made.value, saved)
    read_by("weights", read_weights, path)
    if place.split(".")[0] not in ("optimizer", "scheduler", "random"):  # which are not looked at
        trained = read_by("evaluate", load_trained_model, path)
        if trained is not None:
            outcome(lambda: trained.placement)
            outcome(choose_data, EvaluateConfig(checkpoint=str(path)), trained.saved)


@fuzz
@given(seed=seeds)
def test_a_state_to_regroup_with_one_wrong_thing(seed: int, made: Kept, ours: Kept) -> None:
    """Optimizer and scheduler alone, so that every entry of theirs is met."""
    states = {key: ours.value[key] for key in ("optimizer", "scheduler")}
    content, _ = one_wrong_thing(random.Random(seed), states)
    if content.keys() == states.keys():
        names = (*made.value.dataset.label_map.names, None)
        saved = SavedRun(Path("random.pt"), {**copied(ours.value), **content, "class_names": names})
        restore("regroup", made.value, saved)


@fuzz
@given(data=st.data())
def test_a_checkpoint_of_ours_with_damaged_bytes(
    data: st.DataObject, ours: Kept, tmp_path_factory: pytest.TempPathFactory
) -> None:
    small = {
        **ours.value,
        "optimizer": {"state": {}, "param_groups": []},
        "ema": None,
        "model": {"a": torch.arange(6.0)},
    }
    buffer = io.BytesIO()
    torch.save(small, buffer)
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    path.unlink(missing_ok=True)  # what is mapped already keeps its own
    path.write_bytes(data.draw(damaged(buffer.getvalue())))
    saved = read_by("bytes", read_checkpoint, path)
    assert saved is None or saved["format"] <= files.FORMAT


@fuzz
@given(
    key=st.sampled_from(["format", "model", "optimizer", "scheduler", "loop", "label_map", "config", None]), value=junk
)
def test_a_checkpoint_of_ours_with_a_part_of_another_kind(
    tmp_path_factory: pytest.TempPathFactory, key: str | None, value: Any
) -> None:
    """Through a file, as torch writes it."""
    path = tmp_path_factory.getbasetemp() / "wrong.pt"
    path.unlink(missing_ok=True)
    states = {"optimizer": {"state": {}}, "scheduler": {"kind": "x"}}
    right = {"format": 1, "model": {"a": torch.arange(6.0)}, **states, "loop": {}, "label_map": {}, "config": {}}
    torch.save(value if key is None else {**right, key: value}, path)
    read_by("load", files.load, path)
    read_by("parts", read_run, path)


# ---------------------------------------------------------------------------------------------------- the reference's
@pytest.fixture(scope="module")
def theirs(reference_toy: dict) -> Kept:
    """The files of its older and newer releases, of two blocks of the toy after one step."""
    deep = re.compile(r"\.layer\.([2-9]|1\d)\.")
    weights = {n: v for n, v in reference_toy["state_dict"].items() if n != "_kp_active_mask" and not deep.search(n)}
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in weights.items()}
    optimizer = torch.optim.AdamW([{"params": [value]} for value in parameters.values()], lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    for name, gradient in reference_toy["grads"].items():
        if name in parameters:
            parameters[name].grad = gradient
    optimizer.step()
    scheduler.step()
    args = {
        "encoder": "dinov2_windowed_small", "resolution": 128, "patch_size": 16, "positional_encoding_size": 8,
        "num_windows": 2, "out_feature_indexes": [3, 6, 9, 12], "hidden_dim": 32, "dec_layers": 2, "sa_nheads": 4,
        "ca_nheads": 4, "dec_n_points": 2, "num_queries": 20, "group_detr": 3, "dim_feedforward": 2048, "lr": 1e-4,
        "weight_decay": 1e-4, "epochs": 10, "lr_scheduler": "cosine", "class_names": ["a", "b", "c", "d", "e"],
    }  # fmt: skip
    state = {name: value.detach() for name, value in parameters.items()}
    old = {
        "model": state, "args": argparse.Namespace(**args), "optimizer": optimizer.state_dict(),
        "lr_scheduler": scheduler.state_dict(), "ema_model": state, "epoch": 0,
    }  # fmt: skip
    progress = {"total": {"ready": 1, "started": 1, "processed": 1, "completed": 1}}
    new = {
        "state_dict": {f"model.{name}": value for name, value in state.items()}, "hyper_parameters": args,
        "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [scheduler.state_dict()], "epoch": 0,
        "global_step": 1, "model_name": "RFDETRNano",
        "callbacks": {"EMA": {"average_model_state_dict": {
            "n_averaged": torch.tensor(1), **{f"module.model.{name}": value for name, value in state.items()},
        }}},
        "loops": {"fit_loop": {
            "epoch_progress": progress, "epoch_loop.batch_progress": {**progress, "is_last_batch": True},
        }},
    }  # fmt: skip
    return Kept({".pth": old, ".ckpt": new})


@fuzz
@given(seed=seeds, kind=st.sampled_from([".pth", ".ckpt"]))
def test_a_file_of_the_reference_with_one_wrong_thing(seed: int, kind: str, theirs: Kept, in_memory: Path) -> None:
    content = theirs.value[kind]
    if kind == ".pth":
        changed, _ = one_wrong_thing(random.Random(seed), {**content, "args": vars(content["args"])})
        if isinstance(changed.get("args"), dict) and all(isinstance(key, str) for key in changed["args"]):
            changed["args"] = argparse.Namespace(**changed["args"])
    else:
        changed, _ = one_wrong_thing(random.Random(seed), content)
    CONTENT[in_memory] = changed
    read_by("reference resume", read_run, in_memory)
    read_by("reference weights", read_weights, in_memory)


def test_both_outcomes_were_met() -> None:
    print(f"\n{dict(sorted(outcomes.items()))}")
    if EXAMPLES < 1000:
        return  # too few to meet all
    for reader in {key.rsplit(" ", 1)[0] for key in outcomes}:
        for result in ("read", "refused"):
            assert outcomes[f"{reader} {result}"] >= EXAMPLES / 200, outcomes
