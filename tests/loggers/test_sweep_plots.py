"""What overrides explain, against sums of squares by hand, and figures of awkward sweeps."""

import itertools

import numpy as np
import pytest

from rfdetr_train.loggers.sweep_plots import Scored, draw_sweep, importance


def jobs_of(rows: list[tuple[dict[str, str], float]], pruned: bool = False) -> list[Scored]:
    return [Scored(number, values, ap, pruned) for number, (values, ap) in enumerate(rows)]


def test_additive_effects_are_shared_out_whole() -> None:
    # AP = a + b on a full grid: sums of squares 4 * 2 * 0.1^2 / 4 ... by hand 0.08 for a, 0.02 for b, 0.10 in all
    rows = [({"a": a, "b": b, "c": "x"}, float(a) * 0.2 + (b == "yes") * 0.1) for a in "01" for b in ("no", "yes")] * 2
    shares = importance(jobs_of(rows))
    assert list(shares) == ["a", "b", "c"]
    assert [share for share, _ in shares.values()] == pytest.approx([0.08 / 0.10, 0.02 / 0.10, 0.0])
    assert [chance for _, chance in shares.values()] == pytest.approx([1 / 7, 1 / 7, 0.0])


def test_an_interaction_is_nobodys() -> None:
    rows = [({"a": a, "b": b}, float(a == b)) for a, b in itertools.product("01", "01")]
    assert importance(jobs_of(rows)) == {"a": (0.0, 1 / 3), "b": (0.0, 1 / 3)}


def test_many_numbers_are_cut_by_rank_into_four() -> None:
    rng = np.random.default_rng(0)
    rates = [f"{10 ** rng.uniform(-5, -1):.3g}" for _ in range(40)]
    aps = rng.uniform(size=40)
    ((share, chance),) = importance(jobs_of([({"lr": r}, ap) for r, ap in zip(rates, aps, strict=True)])).values()
    quarter = np.argsort(np.argsort([float(rate) for rate in rates])) // 10
    between = sum(10 * (aps[quarter == q].mean() - aps.mean()) ** 2 for q in range(4))
    assert share == pytest.approx(between / ((aps - aps.mean()) ** 2).sum())
    assert chance == pytest.approx(3 / 39)


def test_chance_is_what_a_meaningless_override_explains() -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(300):
        rows = [({"x": str(n % 3)}, ap) for n, ap in enumerate(rng.normal(size=24))]
        share, chance = importance(jobs_of(rows))["x"]
        found.append(share)
    assert np.mean(found) == pytest.approx(chance, abs=4 * np.std(found) / 300**0.5)


def test_words_are_not_cut() -> None:
    rows = [({"x": f"word{n}"}, float(n % 2)) for n in range(6)] * 2
    assert importance(jobs_of(rows))["x"][0] == pytest.approx(1.0)


def test_too_little_or_nothing_to_explain() -> None:
    assert importance(jobs_of([({"x": "1"}, 0.1), ({"x": "2"}, 0.2)])) == {}
    assert importance(jobs_of([({"x": str(n)}, 0.3) for n in range(5)])) == {}
    assert importance(jobs_of([({"x": str(n)}, n / 5) for n in range(5)], pruned=True)) == {}


@pytest.mark.parametrize(
    "values", [["1e-4", "1e-2", "nan"], ["$x$", "数", "a_b" * 30], ["1", "1", "2"], ["", "-1", "0"]]
)
def test_any_values_can_be_drawn(values: list[str]) -> None:
    jobs = jobs_of([({"a$b_": value, "other": "1"}, 0.1 * n) for n, value in enumerate(values)])
    draw_sweep(jobs).canvas.draw()


def test_the_course_marks_what_was_pruned_and_the_best_so_far() -> None:
    jobs = [Scored(0, {}, 0.2, False), Scored(1, {}, 0.1, True), Scored(3, {}, 0.4, False)]
    axes = next(axes for axes in draw_sweep(jobs).axes if axes.get_xlabel() == "job")
    assert axes.collections[0].get_offsets().tolist() == [[0, 0.2], [1, 0.1], [3, 0.4]]
    assert [bool(colour[3]) for colour in axes.collections[0].get_facecolors()] == [True, False, True]
    assert axes.lines[0].get_ydata().tolist() == [0.2, 0.2, 0.4]
