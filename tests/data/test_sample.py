"""The flat arrays."""

import pickle
from dataclasses import replace
from pathlib import Path

from rfdetr_train.config import ShapesDataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.sample import FlatStrings


def test_flat_strings():
    strings = ["a.png", "", "数据 集/é#1 (копия).png", "\udcff.png"]
    flat = FlatStrings(strings)
    assert len(flat) == 4
    assert [flat[i] for i in range(4)] == strings


def test_flat_strings_travel_as_buffers():
    """A million names must not become a million objects in each worker."""
    flat = FlatStrings([f"{i:08d}.jpg" for i in range(1000)])
    assert len(pickle.dumps(flat)) < 1000 * (12 + 8) + 500


def test_a_fingerprint_is_of_everything_but_the_pictures(tmp_path: Path) -> None:
    dataset = read_dataset(ShapesDataConfig(root=str(tmp_path), train_images=3, valid_images=2, image_size_px=64))
    train = dataset.splits["train"]
    changes = {
        "boxes_xywh": train.boxes_xywh + 0.25, "labels": (train.labels + 1) % 3, "crowd": ~train.crowd,
        "sizes_px": train.sizes_px * 2, "file_names": FlatStrings(["a", "b", "c"]),
    }  # fmt: skip
    others = [
        dataset._replace(splits={**dataset.splits, "train": replace(train, **{k: v})}) for k, v in changes.items()
    ]
    fewer = dataset._replace(splits={"train": train})
    assert len({d.fingerprint() for d in (dataset, fewer, *others)}) == 7
    assert dataset.fingerprint() == dataset._replace(root=Path("/elsewhere")).fingerprint()
