"""The flat arrays."""

import pickle

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
