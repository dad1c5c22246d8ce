"""Random checkpoints, groupings, configs and pictures: a right reading or a refusal, never another exception.

`RFDETR_TRAIN_EXAMPLES=10000 pytest tests/faults/test_random_input.py` tries as many of each, other ones each time.
"""

import dataclasses
import functools
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from PIL import Image

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.reference_run import read_run
from rfdetr_train.checkpoint.regroup import load_optimizer_state
from rfdetr_train.checkpoint.saved_optimizer import read_saved
from rfdetr_train.cli import _prepare_hydra, conf_dir
from rfdetr_train.config import TrainConfig
from rfdetr_train.data.image_file import check_image, read_image
from rfdetr_train.errors import UserError
from rfdetr_train.schema import to_dataclass

EXAMPLES = int(os.environ.get("RFDETR_TRAIN_EXAMPLES", "60"))
fuzz = settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=EXAMPLES == 60)
junk = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([10**30, -1e300, 1e-300]), st.floats(),
    st.text(max_size=3), st.lists(st.integers(-1, 3), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(0, 2)),
)  # fmt: skip


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """What it returns, or with None what it refuses; any other exception is a fault."""
    try:
        return call(*arguments), ""
    except (UserError, OmegaConfBaseException) as error:
        return None, str(error)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes with some turned, cut off, left out, or put in twice."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        place, length = draw(st.integers(0, len(content))), draw(st.integers(0, 40))
        kind = draw(st.sampled_from(["turn", "cut", "leave out", "twice", "fill"]))
        if kind == "turn" and place < len(content):
            content[place] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            content = content[: place + length]
        elif kind == "leave out":
            del content[place : place + length]
        elif kind == "twice":
            content[place:place] = content[place : place + length]
        else:
            content[place : place + length] = bytes([draw(st.integers(0, 255))]) * length
    return bytes(content)


# ------------------------------------------------------------------------------------------------------- checkpoints
def saved_content() -> dict[str, Any]:
    optimizer = {"state": {}, "param_groups": [{"lr": 1e-4, "params": [0], "param_names": ["a"]}]}
    return {
        "format": 1, "model": {"a": torch.arange(6.0)}, "ema": None, "optimizer": optimizer, "scheduler": {"kind": "x"},
        "loop": {"epoch": 1, "best": None}, "label_map": {"0": {"id": 1, "name": "cat"}}, "config": {"seed": 0},
    }  # fmt: skip


def as_file(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@fuzz
@given(content=damaged(as_file(saved_content())))
def test_checkpoints_with_damaged_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    path.unlink(missing_ok=True)  # what is mapped already keeps its own
    path.write_bytes(content)
    saved, refusal = outcome(read_run, path)
    assert str(path) in refusal if refusal else saved["format"] <= files.FORMAT


@fuzz
@given(key=st.sampled_from([None, *saved_content()]), value=junk, drop=st.booleans())
def test_checkpoints_with_wrong_content(
    tmp_path_factory: pytest.TempPathFactory, key: str | None, value: Any, drop: bool
) -> None:
    content: Any = value if key is None else {**saved_content(), key: value}
    if drop and key is not None:
        del content[key]
    path = tmp_path_factory.getbasetemp() / "wrong.pt"
    path.unlink(missing_ok=True)
    path.write_bytes(as_file(content))
    assert not (refusal := outcome(files.load, path)[1]) or str(path) in refusal
    assert not (refusal := outcome(read_run, path)[1]) or str(path) in refusal


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
@functools.cache
def composed() -> Any:
    from hydra import compose, initialize_config_dir

    _prepare_hydra()
    with initialize_config_dir(version_base=None, config_dir=str(conf_dir())):
        return compose(config_name="train", overrides=["data=coco", "data.root=x"])


@functools.cache
def keys() -> list[str]:
    def walk(node: Any, prefix: str) -> list[str]:
        inner = [(key, node._get_node(key)) for key in node]
        return [
            name
            for key, child in inner
            for name in (walk(child, f"{prefix}{key}.") if OmegaConf.is_dict(child) and len(child) else [prefix + key])
        ]

    return walk(composed(), "")


@fuzz
@given(data=st.data())
def test_configs_with_random_values(data: st.DataObject) -> None:
    config = composed().copy()
    for _ in range(data.draw(st.integers(1, 3))):
        key, value = data.draw(st.sampled_from(keys())), data.draw(junk)
        try:
            OmegaConf.update(config, key, value)
        except (OmegaConfBaseException, ValueError):  # of another type than the key; shown as Hydra says it
            return
    checked, refusal = outcome(to_dataclass, config)
    assert refusal or (isinstance(checked, TrainConfig) and checked.trainer.epochs > 0 and dataclasses.asdict(checked))


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
