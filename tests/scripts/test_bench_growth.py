import importlib
from argparse import Namespace

import pytest


@pytest.fixture
def script():
    return importlib.import_module("bench_growth")


def test_growth_by_hand(script):
    """Twice the work in one and a half of the time; four times the work in five times."""
    rows = script.growth([1, 2, 4], {1: 1e9, 2: 2e9, 4: 4e9}, {1: [2.0], 2: [3.0], 4: [10.0]})
    assert [row["time / first"] for row in rows] == [1, 1.5, 5]
    assert [row["time / work"] for row in rows] == [1, 0.75, 1.25]
    assert [row["GFLOP/s"] for row in rows] == [0.5, 0.6667, 0.4]


def test_two_pictures_are_twice_the_work_of_one(script):
    options = Namespace(axis="batch", model="tiny", precision="fp32", batch=2)
    assert script.count_flops(2, options) == 2 * script.count_flops(1, options) > 1e9
