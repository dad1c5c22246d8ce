"""Random groupings, configs and pictures: a right reading or a refusal, never another exception.

`RFDETR_TRAIN_EXAMPLES=10000 pytest tests/faults/test_random_input.py` tries as many of each, other ones each time.
"""

import dataclasses
import functools
import io
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from PIL import Image
from random_things import EXAMPLES, damaged, fuzz, outcome, wrong

from rfdetr_train.checkpoint.regroup import load_optimizer_state
from rfdetr_train.checkpoint.saved_optimizer import read_saved
from rfdetr_train.cli import _prepare_hydra, conf_dir
from rfdetr_train.config import TrainConfig
from rfdetr_train.data.image_file import check_image, read_image
from rfdetr_train.schema import to_dataclass

# --------------------------------------------------------------------------------------------------------- groupings
NAMES = [f"part.{number}" for number in range(6)]


def grouped(order: list[str], borders: set[int], rates: list[float]) -> torch.optim.AdamW:
    """An AdamW over small parameters in this order, a new group at each border."""
    groups: list[dict[str, Any]] = []
    for place, name in enumerate(order):
        if place == 0 or place in borders:
            groups.append({"params": [], "param_names": [], "lr": rates[len(groups)]})
        groups[-1]["params"].append(torch.nn.Parameter(torch.full((2,), float(NAMES.index(name)))))
        groups[-1]["param_names"].append(name)
    for group in groups:
        group["initial_lr"] = group["lr"]
    return torch.optim.AdamW(groups)


def moments(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        name: optimizer.state[parameter]["exp_avg"]
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
        if parameter in optimizer.state
    }


layouts = st.tuples(
    st.permutations(NAMES), st.sets(st.integers(1, 5)), st.lists(st.floats(1e-6, 1.0), min_size=6, max_size=6)
)


@fuzz
@given(before=layouts, after=layouts, left_out=st.sets(st.sampled_from(NAMES), max_size=5))
def test_moments_find_their_parameters_under_any_grouping(before: Any, after: Any, left_out: set[str]) -> None:
    """Whatever the order and the groups, and whatever is new or gone; the new run's hyperparameters stay."""
    old = grouped(*before)
    for group in old.param_groups:
        for parameter in group["params"]:
            parameter.grad = parameter.detach() + 1.0
    old.step()
    order, borders, rates = after
    new = grouped([name for name in order if name not in left_out], borders, rates)
    load_optimizer_state(new, read_saved(old.state_dict(), new, None))
    expected = moments(old)
    found = moments(new)
    assert found.keys() == set(NAMES) - left_out
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert [group["initial_lr"] for group in new.param_groups] == rates[: len(new.param_groups)]


# ----------------------------------------------------------------------------------------------------------- configs
CHOICES = (
    (), ("optimizer=sgd", "scheduler=step", "ema=none"), ("optimizer=lion", "scheduler=wsd", "warmup=none", "ema=swa"),
    ("optimizer=custom", "scheduler=torch", "data=auto", "data.root=x"), ("model=tiny", "data=yolo", "data.root=x"),
    ("model.backbone=resnet50", "model.patch_size=null", "model.num_windows=null", "model.feature_blocks=null",
     "augmentation=strong", "optimizer=muon"),
)  # fmt: skip
"""Overrides, so that keys of many kinds of sections are met."""
outcomes: Counter[str] = Counter()


@functools.cache
def composed(number: int) -> Any:
    from hydra import compose, initialize_config_dir

    _prepare_hydra()
    with initialize_config_dir(version_base=None, config_dir=str(conf_dir())):
        return compose(config_name="train", overrides=list(CHOICES[number]))


@functools.cache
def keys(number: int) -> list[str]:
    def walk(node: Any, prefix: str) -> list[str]:
        inner = [(key, node._get_node(key)) for key in node]
        return [
            name
            for key, child in inner
            for name in (walk(child, f"{prefix}{key}.") if OmegaConf.is_dict(child) and len(child) else [prefix + key])
        ]

    return walk(composed(number), "")


def value_at(config: Any, key: str) -> Any:
    """None for a key that is still to be given."""
    value = OmegaConf.select(config, key, throw_on_missing=False)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


@fuzz
@given(seed=st.integers(0, 2**32))
def test_configs_with_random_values(seed: int) -> None:
    """Values near the right ones, or of any kind, under up to three keys of many kinds of sections."""
    rng = random.Random(seed)
    number = rng.randrange(len(CHOICES))
    config = composed(number).copy()
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(keys(number))
        try:
            OmegaConf.update(config, key, wrong(rng, value_at(config, key)))
        except (OmegaConfBaseException, ValueError):  # of another type than the key; shown as Hydra says it
            outcomes["of another type"] += 1
            return
    checked, refusal = outcome(to_dataclass, config)
    outcomes["refused" if refusal else "accepted"] += 1
    assert refusal or (isinstance(checked, TrainConfig) and checked.trainer.epochs > 0 and dataclasses.asdict(checked))


def test_configs_of_all_outcomes_were_met() -> None:
    print(f"\n{dict(outcomes)}")
    assert min(outcomes[name] for name in ("of another type", "refused", "accepted")) >= EXAMPLES / 20, outcomes


# ---------------------------------------------------------------------------------------------------------- pictures
def picture(kind: str, mode: str = "RGB") -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (9, 13, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(buffer, kind)
    return buffer.getvalue()


PICTURES = [
    picture(*kind)
    for kind in (("PNG",), ("PNG", "P"), ("PNG", "I;16"), ("JPEG",), ("JPEG", "L"), ("WEBP",), ("GIF", "P"), ("BMP",),
                 ("TIFF",), ("PPM",))
]  # fmt: skip


@fuzz
@given(content=st.one_of([damaged(whole) for whole in PICTURES]))
def test_pictures_with_damaged_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """A megapixel at most: what a header promises is not believed."""
    path = Path(tmp_path_factory.getbasetemp() / "damaged.picture")
    path.write_bytes(content)
    size_px, refusal = outcome(check_image, path, 1.0, True)
    assert not refusal or refusal.startswith(str(path))
    pixels, refusal_to_read = outcome(read_image, path, 1.0)
    assert bool(refusal) == bool(refusal_to_read)
    if not refusal:
        assert pixels.dtype == torch.uint8
        assert tuple(pixels.shape) == (3, *size_px)
