"""Order, scales and sample randomness as functions of the seed."""

import logging
from pathlib import Path

import numpy as np
import pytest

from rfdetr_train.config import DataConfig
from rfdetr_train.data.dataset import read_dataset, with_negatives
from rfdetr_train.data.image_check import check_images
from rfdetr_train.data.plan import count_steps, draws_of_epoch, draws_per_picture, plan_epoch, sample_rng, scale_of_step
from rfdetr_train.data.sample import Dataset
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


CATEGORIES = [{"id": 1, "name": "ant"}, {"id": 2, "name": "bee"}, {"id": 3, "name": "cow"}]
BOX = [10, 10, 30, 20]


@pytest.fixture
def root(tmp_path, coco_table, write_split):
    """16 pictures: ants (twice each) on nine, bees on four, a cow beside a bee; the last three have no box."""
    pictures: dict[str, list] = {f"{n:02d}.png": [(1, BOX), (1, BOX)] for n in range(9)}
    pictures |= {f"{n:02d}.png": [(2, BOX)] for n in range(9, 13)}
    pictures["12.png"].append((3, BOX))
    pictures |= {f"{n:02d}.png": [] for n in range(13, 16)}
    write_split(tmp_path / "set", "train", coco_table(pictures, CATEGORIES))
    write_split(tmp_path / "set", "valid", coco_table({"v.png": [(1, BOX)]}, CATEGORIES))
    return tmp_path / "set"


def draws(root: Path, **keys) -> list[float] | None:
    config = DataConfig("coco", format="coco", root=str(root), **keys)
    found = draws_per_picture(read_dataset(config).splits["train"], config)
    return None if found is None else found.tolist()


def joined(root: Path, folder: Path) -> Dataset:
    return with_negatives(read_dataset(DataConfig("coco", format="coco", root=str(root))), folder)


def test_repeat_factors_by_hand(root, caplog):
    """t = 1/4: 9/16 and 4/16 are not below it, 1/16 is: sqrt(4) = 2, for the picture and so for its bee too."""
    assert draws(root) is None
    with caplog.at_level(logging.INFO):
        assert draws(root, repeat_threshold=0.25) == [1.0] * 12 + [2.0] + [1.0] * 3
    assert "17 pictures out of 16; with classes repeated: cow x2.00" in caplog.text
    half = draws(root, repeat_threshold=0.5, background=0.5)
    assert half == pytest.approx([1.0] * 9 + [2**0.5] * 3 + [8**0.5] + [0.5] * 3)


def test_pictures_without_boxes(root):
    assert draws(root, background=0.0) == [1.0] * 13 + [0.0] * 3
    assert draws(root, background=0.25)[13:] == [0.25] * 3


def test_negatives_join_train_and_only_train(root, write_picture, tmp_path):
    write_picture(tmp_path / "streets/a.png", size=(60, 40))
    write_picture(tmp_path / "streets/deeper/b.JPG", size=(30, 50))
    (tmp_path / "streets/notes.txt").write_text("no picture")
    dataset = check_images(joined(root, tmp_path / "streets"), "error")
    train = dataset.splits["train"]
    assert (len(train), len(dataset.splits["valid"])) == (18, 1)
    assert [train.path(index) for index in (16, 17)] == [tmp_path / "streets/a.png", tmp_path / "streets/deeper/b.JPG"]
    assert train.record(16).size_px == (40, 60)
    assert train.record(17).boxes_xyxy.shape == (0, 4)
    assert len(set(train.image_ids.tolist())) == 18
    assert train.path(3) == root / "train/03.png"
    found = draws_per_picture(train, DataConfig("coco", format="coco", root=str(root), background=0.5))
    assert found is not None
    assert np.array_equal(found[13:], np.full(5, 0.5))


def test_negatives_that_are_no_negatives(root, tmp_path):
    with pytest.raises(UserError, match=r"no such folder, or no picture"):
        joined(root, tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"00\.png is in the train split"):
        joined(root, root / "train")
    with pytest.raises(UserError, match=r"v\.png is in the valid split"):
        joined(root, root / "valid")


def test_a_broken_negative_goes_by_on_error(root, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.jpg").write_bytes(b"no picture")
    dataset = joined(root, tmp_path / "bad")
    with pytest.raises(UserError, match=r"a\.jpg"):
        check_images(dataset, "error")
    assert len(check_images(dataset, "skip").splits["train"]) == 16
