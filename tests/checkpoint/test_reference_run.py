"""Files of the reference package, as a run goes on from them."""

import argparse
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.reference_run import (
    COCO_LOGITS,
    COCO_NAMES,
    model_config_from_reference,
    read_checkpoint,
    read_run,
)
from rfdetr_train.checkpoint.reference_weights import from_reference
from rfdetr_train.checkpoint.regroup import restore_optimization
from rfdetr_train.checkpoint.starting_weights import read_weights
from rfdetr_train.config import AdamWConfig, CosineScheduleConfig, ModelConfig
from rfdetr_train.engine.course import LoopState
from rfdetr_train.errors import UserError
from rfdetr_train.models.rfdetr import RFDETR, build_model
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate
from rfdetr_train.optim.schedulers import ManagedScheduler, build_scheduler

RATES = Path(__file__).parents[1] / "fixtures" / "reference_param_groups.json"
TOTAL_STEPS = 10


def cosine(step: int) -> float:
    """The reference's schedule, with its min_factor at 0.1 and no warmup."""
    return 0.1 + (1 - 0.1) * 0.5 * (1 + math.cos(math.pi * (step / TOTAL_STEPS)))


class ReferenceRun:
    """What the reference does with its parameters: AdamW over its groups, its rates and names, its schedule."""

    def __init__(self, toy: dict[str, Any], merged: bool) -> None:
        weights = {name: value for name, value in toy["state_dict"].items() if name != "_kp_active_mask"}
        self.parameters = {name: nn.Parameter(value.clone()) for name, value in weights.items()}
        self.gradients = toy["grads"]
        rows = json.loads(RATES.read_text())["nano"]["parameters"]
        groups: dict[object, dict[str, Any]] = {}
        for name, lr, weight_decay in ((row["name"], row["lr"], row["weight_decay"]) for row in rows):
            if name in self.parameters:
                key = (lr, weight_decay) if merged else name
                group = groups.setdefault(key, {"params": [], "lr": lr, "weight_decay": weight_decay})
                group["params"].append(self.parameters[name])
        assert sum(len(group["params"]) for group in groups.values()) == len(self.parameters)
        self.optimizer = torch.optim.AdamW(groups.values(), fused=False)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, cosine)
        self.step = 0

    def gradients_of_step(self, step: int) -> dict[str, Tensor]:
        return {name: gradient * math.cos(step) for name, gradient in self.gradients.items()}

    def train(self, steps: int) -> None:
        for _ in range(steps):
            for name, gradient in self.gradients_of_step(self.step).items():
                self.parameters[name].grad = gradient
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1

    def checkpoint(self, **more: Any) -> dict[str, Any]:
        """As Lightning writes it at the end of the second epoch of three steps."""
        state = {name: value.detach().clone() for name, value in self.parameters.items()}
        average = {f"module.model.{name}": value / 2 for name, value in state.items()}
        progress = {"ready": 2, "started": 2, "processed": 2, "completed": 1}
        return {
            "epoch": 1,
            "global_step": self.step,
            "state_dict": {"model._kp_active_mask": torch.zeros(0, 0), **{f"model.{n}": v for n, v in state.items()}},
            "loops": {
                "fit_loop": {
                    "epoch_progress": {"total": progress},
                    "epoch_loop.batch_progress": {"is_last_batch": True},
                }
            },
            "callbacks": {
                "RFDETREMACallback": {"average_model_state_dict": {"n_averaged": torch.tensor(self.step), **average}},
                "Timer": {"seconds": 3.0},
            },
            "optimizer_states": [self.optimizer.state_dict()],
            "lr_schedulers": [self.scheduler.state_dict()],
            **more,
        }  # fmt: skip


def save(path: Path, content: dict[str, Any]) -> Path:
    torch.save(content, path)
    return path


def our_parts(config: ModelConfig, num_classes: int, total_steps: int) -> tuple[RFDETR, Any, ManagedScheduler]:
    model = build_model(config, num_classes)
    rates = AdamWConfig(fused=False)
    optimizer = build_optimizer(rates, annotate(model.named_parameters(), model.parameter_roles(), rates), "cpu")
    schedule = CosineScheduleConfig(min_factor=0.1)
    return model, optimizer, build_scheduler(
        optimizer, schedule, warmup_steps=0, total_steps=total_steps, steps_per_epoch=5
    )  # fmt: skip


@pytest.mark.parametrize(
    "merged", [False, True], ids=["a group for each parameter, as 1.9.4", "merged groups, as 1.11.2"]
)
def test_a_run_goes_on_as_the_reference_would_to_the_bit(
    tmp_path: Path, reference_toy: dict[str, Any], toy_config: ModelConfig, merged: bool
) -> None:
    reference = ReferenceRun(reference_toy, merged)
    reference.train(6)
    saved = read_run(save(tmp_path / "last.ckpt", reference.checkpoint()))
    model, optimizer, scheduler = our_parts(toy_config, 5, TOTAL_STEPS)
    model.load_state_dict(saved["model"])
    account = restore_optimization(
        optimizer, scheduler, saved["optimizer"], saved["scheduler"], sources=saved["sources"]
    )
    assert (len(account.moved), account.dropped, account.new) == (296, {}, [])
    for step in range(6, TOTAL_STEPS):
        gradients = from_reference(reference.gradients_of_step(step))
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
        scheduler.step()
    reference.train(4)
    expected = from_reference(reference.parameters)
    assert all(torch.equal(parameter, expected[name]) for name, parameter in model.named_parameters())
    rates = {round(group["lr"], 12) for group in reference.optimizer.param_groups}
    assert {round(rate, 12) for rate in scheduler.last_lr.values()} == rates


def test_what_is_taken_over_of_a_run(tmp_path: Path, reference_toy: dict[str, Any]) -> None:
    reference = ReferenceRun(reference_toy, merged=True)
    reference.train(6)
    args = {
        "class_names": ["a", "b", "c", "d", "e"], "dataset_file": "roboflow", "lr": 3e-4, "lr_scheduler": "cosine",
        "lr_scheduler_kwargs": {"min_factor": 0.1}, "warmup_epochs": 1.0, "epochs": 7,
    }  # fmt: skip
    path = save(tmp_path / "last.ckpt", reference.checkpoint(args=args))
    saved = read_run(path)
    assert saved["loop"] == {**LoopState().to_plain(), "epoch": 2, "step": 6}
    assert saved["scheduler"]["last_epoch"] == 6
    assert saved["class_names"] == ("a", "b", "c", "d", "e", None)
    assert saved["recipe"] == {"optimizer.lr": 3e-4, "scheduler.name": "cosine", "scheduler.min_factor": 0.1,
                               "warmup.epochs": 1.0, "trainer.epochs": 7}  # fmt: skip
    assert (saved["ema"]["kind"], saved["ema"]["num_updates"]) == ("ema", 6)
    for name, value in saved["model"].items():
        assert torch.equal(saved["ema"]["model"][name], value / 2)
    start = read_weights(path)  # nothing tells which scored better: the average, as of our checkpoints
    assert torch.equal(start.state["class_embed.bias"], saved["model"]["class_embed.bias"] / 2)


def test_an_epoch_that_had_not_ended_begins_again(tmp_path: Path, reference_toy: dict[str, Any]) -> None:
    content = ReferenceRun(reference_toy, merged=True).checkpoint(args={"lr_scheduler": "step", "lr_drop": 60})
    content["loops"]["fit_loop"] = {
        "epoch_progress": {"total": {"ready": 3, "started": 3, "processed": 2, "completed": 2}},
        "epoch_loop.batch_progress": {"is_last_batch": False},
    }
    saved = read_run(save(tmp_path / "last.ckpt", content))
    assert (saved["loop"]["epoch"], saved["loop"]["position"]) == (2, 0)
    assert saved["recipe"]["scheduler.drop_epochs"] == [60.0]


def test_releases_before_lightning_kept_their_states_in_a_pth(tmp_path: Path, reference_toy: dict[str, Any]) -> None:
    reference = ReferenceRun(reference_toy, merged=False)
    reference.train(6)
    state = {name: value.detach() for name, value in reference.parameters.items()}
    content = {
        "model": state, "ema_model": {name: value / 2 for name, value in state.items()}, "epoch": 1,
        "optimizer": reference.optimizer.state_dict(), "lr_scheduler": reference.scheduler.state_dict(),
        "args": argparse.Namespace(lr=1e-4, epochs=5),
    }  # fmt: skip
    saved = read_run(save(tmp_path / "checkpoint.pth", content))
    assert saved["loop"] == {**LoopState().to_plain(), "epoch": 2, "step": 6}
    assert saved["ema"]["num_updates"] == 6
    assert saved["recipe"] == {"optimizer.lr": 1e-4, "trainer.epochs": 5}
    assert saved["optimizer"]["param_groups"][0]["param_names"] == ["transformer.enc_output.0.weight"]


def test_weights_alone_are_no_run(tmp_path: Path, reference_toy: dict[str, Any]) -> None:
    """A best_*.pth: its `model` was chosen as the best, whatever average lies beside it."""
    content = ReferenceRun(reference_toy, merged=True).checkpoint(optimizer_states=[], lr_schedulers=[])
    content["model"] = {name.removeprefix("model."): value for name, value in content["state_dict"].items()}
    path = save(tmp_path / "best.pth", content)
    with pytest.raises(
        UserError, match=r"resume=.*best\.pth: holds weights but not the states .*: weights=.*best\.pth"
    ):
        read_run(path)
    assert torch.equal(read_weights(path).state["class_embed.bias"], content["model"]["class_embed.bias"])


@pytest.mark.parametrize(("args", "num_logits", "names"), [
    ({"class_names": ["a", "b"]}, 3, ("a", "b", None)),
    ({"class_names": ["a", ""]}, 3, ("a", None, None)),
    ({}, 3, None),
    ({"class_names": "cat"}, 3, None),
    ({"class_names": []}, 3, None),
    ({"class_names": [1, 2]}, 3, None),
    ({}, 91, COCO_LOGITS),
    ({"class_names": COCO_NAMES}, 91, COCO_LOGITS),  # early releases kept the dict
    ({"class_names": list(COCO_NAMES.values()), "dataset_file": "coco"}, 91, COCO_LOGITS),
    ({"class_names": [f"c{k}" for k in range(90)]}, 91, (*(f"c{k}" for k in range(90)), None)),
    # logit k is category id k, of which the names say nothing
    ({"class_names": ["a", "b"], "dataset_file": "coco"}, 3, (None, None, None)),
    ({"class_names": ["a", "b"]}, 4, (None, None, None, None)),
])  # fmt: skip
def test_what_the_logits_stand_for(tmp_path: Path, args: dict, num_logits: int, names: tuple | None) -> None:
    content = {"model": {"class_embed.bias": torch.zeros(num_logits)}, "args": args}
    assert read_checkpoint(save(tmp_path / "x.pth", content))["class_names"] == names


def test_sizes_of_the_model(toy_config: ModelConfig) -> None:
    """From the fields of its model config; a file that lacks any tells nothing."""
    fields = {
        "encoder": "dinov2_windowed_small", "out_feature_indexes": [3, 6, 9, 12], "dec_layers": 2, "hidden_dim": 32,
        "patch_size": 16, "num_windows": 2, "sa_nheads": 4, "ca_nheads": 4, "dec_n_points": 2, "num_queries": 20,
        "resolution": 128, "group_detr": 3, "positional_encoding_size": 8, "model_name": "toy", "num_classes": 5,
    }  # fmt: skip
    config = model_config_from_reference(fields)
    assert config is not None
    expected = asdict(toy_config) | {"encoder_width": None, "encoder_depth": None, "encoder_heads": None}
    assert asdict(ModelConfig(**config)) == expected | {"position_grid": 8, "feature_blocks": [3, 6, 9, 12]}
    assert model_config_from_reference({**fields, "sa_nheads": None}) is None
    assert model_config_from_reference({"lr": 1e-4}) is None


def test_ours_are_read_too_and_others_refused(tmp_path: Path) -> None:
    files.save(tmp_path / "a.pt", {"loop": {}, "label_map": {0: {"id": 3, "name": "cat"}}, "optimizer": {}})
    assert read_checkpoint(tmp_path / "a.pt")["class_names"] == ("cat", None)
    broken = {"model": {"class_embed.bias": torch.zeros(3)}, "loops": {"fit_loop": {"epochs": 1}}}
    with pytest.raises(UserError, match=r"no file as the reference package writes it \(KeyError\('epoch_progress'\)\)"):
        read_checkpoint(save(tmp_path / "x.ckpt", broken))


LEGACY = os.environ.get("RFDETR_TRAIN_LEGACY")


@pytest.mark.skipif(LEGACY is None, reason="RFDETR_TRAIN_LEGACY names no folder with files of release 1.9.4")
class TestLegacy:
    """Files of release 1.9.4: 345 groups of one parameter and a `LambdaLR` with 345 entries, no names anywhere."""

    @pytest.mark.parametrize("total_steps", [10, 20], ids=["the run that ended", "a longer run"])
    def test_moments_and_rates(self, toy_config: ModelConfig, total_steps: int) -> None:
        path = Path(LEGACY or "") / "reference_1.9.4_cosine.ckpt"
        (raw,) = torch.load(path, weights_only=True, map_location="cpu")["optimizer_states"]
        saved = read_run(path)
        assert saved["loop"] == {**LoopState().to_plain(), "epoch": 2, "step": 10}
        assert (saved["ema"]["num_updates"], saved["class_names"]) == (10, None)
        _, optimizer, scheduler = our_parts(toy_config, 3, total_steps)

        account = restore_optimization(
            optimizer, scheduler, saved["optimizer"], saved["scheduler"], sources=saved["sources"]
        )

        assert (len(account.moved), account.dropped, account.new) == (296, {}, [])
        names = [group["param_names"][0] for group in saved["optimizer"]["param_groups"]]
        assert len(names) == len(raw["param_groups"]) == 345
        place = {name: index for index, name in enumerate(names)}
        sources = saved["sources"]
        for group in optimizer.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                old = [raw["state"][place[source]] for source in sources[name]]
                assert optimizer.state[parameter]["step"] == 10
                for key in ("exp_avg", "exp_avg_sq"):
                    assert torch.equal(optimizer.state[parameter][key], torch.cat([part[key] for part in old]))
        for step in range(10, total_steps + 1):
            share = 0.1 + (1 - 0.1) * 0.5 * (1 + math.cos(math.pi * (step / total_steps)))  # the reference's formula
            for group in optimizer.param_groups:
                for index in (place[source] for name in group["param_names"] for source in sources[name]):
                    assert group["lr"] == raw["param_groups"][index]["initial_lr"] * share
                    assert total_steps == 20 or group["lr"] == raw["param_groups"][index]["lr"]
            optimizer.step()
            scheduler.step()

    def test_weights_of_a_best_total(self, toy_config: ModelConfig) -> None:
        path = Path(LEGACY or "") / "reference_1.9.4_best_total.pth"
        start = read_weights(path)
        build_model(toy_config, 3).load_state_dict(start.state)
        assert start.class_names == ("Platelets", "RBC", "WBC", None)
        with pytest.raises(UserError, match="holds weights but not the states"):
            read_run(path)


def test_names_by_their_sparse_ids() -> None:
    """As in the categories of instances_val2017.json."""
    assert len(COCO_NAMES) == 80
    known = {1: "person", 11: "fire hydrant", 13: "stop sign", 17: "cat", 18: "dog", 25: "giraffe", 27: "backpack",
             31: "handbag", 44: "bottle", 46: "wine glass", 65: "bed", 67: "dining table", 70: "toilet", 72: "tv",
             82: "refrigerator", 84: "book", 90: "toothbrush"}  # fmt: skip
    assert {category_id: COCO_NAMES[category_id] for category_id in known} == known
    assert [k for k, name in enumerate(COCO_LOGITS) if name is None] == [0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83]
