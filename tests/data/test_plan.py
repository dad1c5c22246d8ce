"""Order, scales and sample randomness as functions of the seed."""

import numpy as np
import pytest

from rfdetr_train.data.plan import count_steps, draws_of_epoch, plan_epoch, sample_rng, scale_of_step
from rfdetr_train.errors import UserError


def shape(plan):
    return [[len(batch) for batch in step] for step in plan]


@pytest.mark.parametrize(
    ("num_images", "batch_size", "accumulation_steps", "expected"),
    [
        (3, 4, 1, [[3]]),
        (3, 4, 4, [[3]]),
        (20, 4, 2, [[4, 4], [4, 4], [4]]),  # 5 micro-batches
        (10, 4, 1, [[4], [4], [2]]),
        (8, 2, 2, [[2, 2], [2, 2]]),
        (1, 1, 1, [[1]]),
    ],
)
def test_steps(num_images, batch_size, accumulation_steps, expected):
    plan = plan_epoch(num_images, batch_size, accumulation_steps, seed=0, epoch=0)
    assert shape(plan) == expected
    assert count_steps(num_images, batch_size, accumulation_steps) == len(expected)
    assert sorted(index for step in plan for batch in step for index in batch) == list(range(num_images))


def test_no_pictures():
    with pytest.raises(UserError, match="no pictures"):
        plan_epoch(0, 4, 1, seed=0, epoch=0)


def test_seed_and_epoch_change_the_order():
    orders = [plan_epoch(50, 50, 1, seed, epoch)[0][0] for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert plan_epoch(50, 50, 1, 1, 1)[0][0] == orders[3]


def test_batch_size_does_not_change_the_order():
    flat = [[i for step in plan_epoch(50, *sizes, 0, 0) for batch in step for i in batch] for sizes in ((4, 1), (2, 2))]
    assert flat[0] == flat[1]


def test_scales_are_uniform_and_repeatable():
    scales = [224, 256, 288, 320]
    drawn = [scale_of_step(0, step, scales) for step in range(4000)]
    for scale in scales:
        assert abs(drawn.count(scale) - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5
    assert drawn[:100] == [scale_of_step(0, step, scales) for step in range(100)]
    assert drawn[:100] != [scale_of_step(1, step, scales) for step in range(100)]


def test_every_sample_has_its_own_stream():
    draws = {float(sample_rng(s, e, i).random()) for s in range(3) for e in range(10) for i in range(10)}
    assert len(draws) == 300


def draws_of(draws_per_picture, seed=0, epoch=0):
    (((draws,),)) = plan_epoch(len(draws_per_picture), 1000, 1, seed, epoch, np.array(draws_per_picture))
    return draws


def test_drawing_every_picture_once_is_the_plain_order():
    assert draws_of([1.0] * 50, 3, 4) == plan_epoch(50, 1000, 1, 3, 4)[0][0]


def test_pictures_are_drawn_as_often_as_asked():
    """Whole parts exactly, fractions in the mean of many epochs; each epoch has 0.5 + 1 + 2.25 + 3 + 0.25 + 0 = 7."""
    asked = [0.5, 1.0, 2.25, 3.0, 0.25, 0.0]
    assert draws_of_epoch(6, np.array(asked)) == 7
    counts = np.zeros((2000, 6))
    for epoch in range(2000):
        draws = draws_of(asked, epoch=epoch)
        assert len(draws) == len(set(draws)) == 7, "every draw has random numbers of its own"
        counts[epoch] = np.bincount(np.array(draws) % 6, minlength=6)
    assert (np.abs(counts - asked) < 1).all()
    assert np.abs(counts.mean(axis=0) - asked).max() < 4 * 0.5 / 2000**0.5


@pytest.mark.parametrize("often", [0.3, 2.5])  # fewer draws than pictures, and more
@pytest.mark.parametrize("batch_size", [1, 4])
def test_an_epoch_has_all_its_draws_in_as_many_steps_as_counted(often, batch_size):
    plan = plan_epoch(10, batch_size, 2, seed=0, epoch=0, draws_per_picture=np.full(10, often))
    batches = [batch for step in plan for batch in step]
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert sum(map(len, batches)) == round(10 * often)
    assert len(plan) == count_steps(round(10 * often), batch_size, 2)


def test_the_sample_is_a_function_of_seed_and_epoch():
    asked = [0.5] * 40
    samples = [draws_of(asked, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(sorted(sample)) for sample in samples}) == 4
    assert samples[3] == draws_of(asked, 1, 1)


def test_fractions_that_do_not_add_up_to_a_whole_number_lose_less_than_one_draw():
    for asked in ([1.9, 1.9, 1.0], [1.1] * 10, [0.3, 1.0], [1 / 3] * 3 + [1.0]):
        lengths = {len(draws_of(asked, epoch=epoch)) for epoch in range(50)}
        assert lengths == {int(sum(asked) + 1e-6)}
