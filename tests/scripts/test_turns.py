import importlib
import time

import pytest

DOUBLE = """
import sys
sys.path.insert(0, {folder!r})
from turns import serve
print("a line of somebody else's")
serve(lambda number: 2 * number)
"""


@pytest.fixture
def turns():
    return importlib.import_module("turns")


def test_quartiles_and_ratios_by_hand(turns):
    assert turns.quartiles([5, 1, 4, 2, 3]) == [2, 3, 4]
    assert turns.quartiles([7]) == [7, 7, 7]
    assert turns.ratios([2, 6, 4], [1, 2, 1]) == [2.5, 3, 3.5]  # round by round, so not median over median
    assert turns.spread([2, 3, 4], " s") == "3 s [2, 4]"


def test_each_round_begins_with_another_arm_and_the_warmup_does_not_count(turns):
    order = []

    class Asked:
        def __init__(self, name):
            self.name = name

        def ask(self, number):
            order.append(self.name)
            return number

    answers = turns.take_turns({name: Asked(name) for name in "abc"}, rounds=2, warmup=1)
    assert "".join(order) == "abc" + "bca" + "cab"
    assert answers == {"a": [1, 2], "b": [1, 2], "c": [1, 2]}


def test_an_arm_answers_in_a_process_of_its_own(turns, scripts, tmp_path):
    script = tmp_path / "double.py"
    script.write_text(DOUBLE.format(folder=str(scripts)))
    with turns.Arm(str(script), []) as arm:
        assert [arm.ask(number) for number in (1, 2, 5)] == [2, 4, 10]
    assert arm.process.returncode == 0


def test_an_arm_that_dies_is_no_answer(turns, tmp_path):
    script = tmp_path / "dies.py"
    script.write_text("input()")
    with turns.Arm(str(script), []) as arm, pytest.raises(SystemExit, match="ended before its time"):
        arm.ask()


def test_timed_work(turns):
    answer = turns.timed(lambda: time.sleep(0.05) or "done")(None)
    assert answer["result"] == "done"
    assert 0.05 <= answer["s"] < 5
    assert answer["peak_mib"] > 10
