"""Batches to the bit: any number of workers, any start, any batch size."""

import multiprocessing
import os
import random
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from weak_stages import WEAK_STAGES

from rfdetr_train.config import STRONG_STAGES, AugmentationConfig, ShapesDataConfig
from rfdetr_train.data.canvas import Canvas
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.image_check import check_images
from rfdetr_train.data.image_file import read_image
from rfdetr_train.data.loader import TrainLoader, evaluation_batches
from rfdetr_train.data.picture_cache import open_cache
from rfdetr_train.data.plan import scale_of_step
from rfdetr_train.data.transforms import evaluation_view
from rfdetr_train.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # machines with one core

REFERENCE = AugmentationConfig(name="reference", horizontal_flip=0.5, resize_crop=0.5, multi_scale=True)
EXTRA = {"_target_": "torchvision.transforms.v2.RandomPerspective", "p": 0.5}
EVERYTHING = AugmentationConfig(
    name="everything", extra=[EXTRA], off_last_epochs=1, **dict.fromkeys((*WEAK_STAGES, *STRONG_STAGES), 0.5)
)
SCALES = [32, 48, 64]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = str(tmp_path_factory.mktemp("shapes"))
    return read_dataset(ShapesDataConfig(root=root, train_images=11, valid_images=5, image_size_px=64))


def make_loader(
    dataset,
    num_workers=0,
    batch_size=2,
    accumulation_steps=2,
    seed=0,
    scales=SCALES,
    augmentation=REFERENCE,
    num_epochs=None,
    cache=None,
):
    return TrainLoader(
        dataset.splits["train"],
        augmentation,
        scales,
        batch_size=batch_size,
        accumulation_steps=accumulation_steps,
        seed=seed,
        num_workers=num_workers,
        cache=cache,
        num_epochs=num_epochs,
    )


def steps_of(loader, epoch=0, start_step=0):
    with loader:
        return list(loader.epoch(epoch, start_step))


def same(a, b):
    """Are two nested lists of batches equal to the bit?"""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_shapes_and_types(dataset):
    steps = steps_of(make_loader(dataset))
    assert [[len(batch.images) for batch in step] for step in steps] == [[2, 2], [2, 2], [2, 1]]
    for step in steps:
        assert len({batch.images.shape[-2:] for batch in step}) == 1, "a step has one scale"
        for batch in step:
            assert batch.images.dtype == torch.uint8
            assert batch.images.shape[-1] in SCALES
            for target in batch.targets:
                assert target["boxes_cxcywh"].dtype == torch.float32
                assert target["labels"].dtype == torch.int64
                assert target["boxes_cxcywh"].shape == (len(target["labels"]), 4)
                assert isinstance(target["image_id"], int)
                assert target["size_px"] == (64, 64)
    ids = [target["image_id"] for step in steps for batch in step for target in batch.targets]
    assert sorted(ids) == list(range(1, 12))


def test_a_steps_scale_goes_by_its_number_in_the_whole_run(dataset):
    with make_loader(dataset, seed=5) as loader:
        sides = [step[0].images.shape[-1] for epoch in range(4) for step in loader.epoch(epoch)]
    assert sides == [scale_of_step(5, step, SCALES) for step in range(12)]


@pytest.mark.parametrize(("augmentation", "num_workers"), [(REFERENCE, 1), (REFERENCE, 2), (EVERYTHING, 2)])
def test_workers_make_no_difference(dataset, augmentation, num_workers):
    in_main = [steps_of(make_loader(dataset, augmentation=augmentation), epoch) for epoch in (0, 1)]
    with make_loader(dataset, num_workers, augmentation=augmentation) as loader:
        assert same([list(loader.epoch(epoch)) for epoch in (0, 1)], in_main)


def test_the_tail_is_without_strong_stages(dataset):
    """In the last of three epochs; the weak stages and the user's own go on with their random numbers."""
    calm = replace(EVERYTHING, **dict.fromkeys(STRONG_STAGES, 0.0))
    for epoch, ends in enumerate((False, False, True)):
        steps = steps_of(make_loader(dataset, augmentation=EVERYTHING, num_epochs=3), epoch)
        assert same(steps, steps_of(make_loader(dataset, augmentation=calm), epoch)) == ends
        assert same(steps, steps_of(make_loader(dataset, augmentation=EVERYTHING), epoch)) != ends


def test_other_pictures_come_from_the_whole_split_without_their_crowd_regions(dataset):
    mosaic = AugmentationConfig(name="mosaic", mosaic=1.0)
    split = dataset.splits["train"]
    crowded = {"train": replace(split, crowd=np.ones_like(split.crowd))}
    for splits, most in ((dataset.splits, 4 * 10), (crowded, 0)):
        steps = steps_of(make_loader(dataset._replace(splits=splits), augmentation=mosaic))
        boxes = [len(target["labels"]) for step in steps for batch in step for target in batch.targets]
        assert max(boxes) <= most
    alone = make_loader(dataset._replace(splits={"train": split.without(range(1, 11), "test")}), augmentation=mosaic)
    ((batch,),) = steps_of(alone)
    assert len(batch.images) == 1


def test_seed_and_epoch_make_a_difference(dataset):
    runs = [steps_of(make_loader(dataset, seed=seed, scales=[32]), epoch) for seed in (0, 1) for epoch in (0, 1)]
    by_id = [
        {t["image_id"]: i for s in run for b in s for t, i in zip(b.targets, b.images, strict=True)} for run in runs
    ]
    for a in range(4):
        for b in range(a):
            assert any(not torch.equal(by_id[a][image_id], by_id[b][image_id]) for image_id in by_id[a])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_starting_in_the_middle_of_an_epoch(dataset, num_workers):
    whole = steps_of(make_loader(dataset), epoch=1)
    for start in range(4):
        assert same(steps_of(make_loader(dataset, num_workers), epoch=1, start_step=start), whole[start:])


def test_two_by_two_is_four_by_one(dataset):
    pictures = []
    for batch_size, accumulation_steps in ((4, 1), (2, 2)):
        steps = steps_of(make_loader(dataset, 0, batch_size, accumulation_steps))
        pictures.append([torch.cat([batch.images for batch in step]) for step in steps])
    assert same(*pictures)


def test_few_pictures_still_make_a_step(dataset):
    loader = make_loader(dataset, batch_size=16, accumulation_steps=4)
    assert loader.steps_per_epoch == 1
    assert [len(batch.images) for batch in steps_of(loader)[0]] == [11]


def test_the_global_random_states_are_left_alone(dataset):
    def states():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    before = states()
    steps_of(make_loader(dataset))
    steps_of(make_loader(dataset, augmentation=EVERYTHING))
    steps_of(make_loader(dataset, num_workers=1))
    list(evaluation_batches(dataset.splits["valid"], 32, batch_size=2, num_workers=1))
    assert states() == before


def test_an_iteration_stopped_half_way(dataset):
    with make_loader(dataset, num_workers=2) as loader:
        whole = list(loader.epoch(0))
        stopped = list(islice(loader.epoch(0), 1))
        assert same(stopped, whole[:1])
        assert same(list(loader.epoch(0)), whole)  # what was on its way does not turn up here
        steps = loader.epoch(0)
        next(steps)
        assert len(multiprocessing.active_children()) == 2
        steps.close()
    assert multiprocessing.active_children() == []


def test_evaluation_batches(dataset):
    split = dataset.splits["valid"]
    for num_workers in (0, 2):
        batches = list(evaluation_batches(split, 48, batch_size=2, num_workers=num_workers))
        assert [len(batch.images) for batch in batches] == [2, 2, 1]
        targets = [target for batch in batches for target in batch.targets]
        assert [target["image_id"] for target in targets] == [1, 2, 3, 4, 5]
        record = split.record(4)
        view = evaluation_view(Canvas.of(read_image(record.path), *record[3:], record.size_px), 48)
        assert torch.equal(batches[2].images[0], view.image)
        assert torch.equal(targets[4]["boxes_cxcywh"], view.boxes_cxcywh)
        assert torch.equal(targets[4]["labels"], view.labels)
    assert multiprocessing.active_children() == []


def test_evaluation_stopped_half_way_ends_its_workers(dataset):
    batches = evaluation_batches(dataset.splits["valid"], 32, batch_size=1, num_workers=2)
    next(batches)
    batches.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("what", ["is cut", "goes", "becomes a pipe"])
def test_a_picture_that_breaks_during_training(tmp_path, num_workers, what):
    dataset = read_dataset(ShapesDataConfig(root=str(tmp_path), train_images=4, valid_images=1, image_size_px=64))
    broken = dataset.splits["train"].path(2)
    begin = broken.read_bytes()[:300]
    broken.unlink()
    if what == "is cut":
        broken.write_bytes(begin)
    elif what == "becomes a pipe":
        os.mkfifo(broken)
    with pytest.raises(UserError) as caught:
        steps_of(make_loader(dataset, num_workers))
    assert str(broken) in str(caught.value)
    assert "resume=auto" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_limit_of_megapixels_holds_in_workers(dataset, num_workers):
    dataset = check_images(dataset, "error", max_megapixels=0.0041)  # 64x64 pixels are 0.0041 megapixels less 4 pixels
    split = replace(dataset.splits["train"], max_megapixels=0.004)
    with pytest.raises(UserError, match=r"64x64 pixels are more than data\.max_megapixels=0\.004;"):
        steps_of(make_loader(dataset._replace(splits={"train": split}), num_workers))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_a_cache_makes_no_difference(dataset, tmp_path, num_workers, kind):
    def epochs(cache):
        with make_loader(dataset, num_workers, cache=cache) as loader:
            return [list(loader.epoch(epoch)) for epoch in (0, 1)]

    cache = open_cache(dataset.splits["train"], 600, kind, tmp_path, lambda done, total: None)
    assert same(epochs(cache), epochs(None))


def test_training_pictures_are_reduced_and_evaluated_ones_are_not(tmp_path):
    """Sides of 640 px hold twice the 320 px of a plain view twice; a crop is cut out of 600 px."""
    config = ShapesDataConfig(root=str(tmp_path), train_images=1, valid_images=1, image_size_px=1280)
    dataset = read_dataset(config)
    split = dataset.splits["train"]
    record = split.record(0)

    def view(at_least_px):
        canvas = Canvas.of(split.read_image(0, at_least_px), *record[3:], record.size_px)
        return evaluation_view(canvas, 320).image

    sizes = {"batch_size": 1, "accumulation_steps": 1, "seed": 0, "num_workers": 0}
    none = TrainLoader(split, AugmentationConfig(name="none"), [256, 320], **sizes)
    flat = next(batch for epoch in range(9) for (batch,) in none.epoch(epoch) if batch.images.shape[-1] == 320)
    assert torch.equal(flat.images[0], view(320))
    assert not torch.equal(view(320), view(None))
    (whole,) = evaluation_batches(split, 320, batch_size=1, num_workers=0)
    assert torch.equal(whole.images[0], view(None))
    assert torch.equal(whole.targets[0]["boxes_cxcywh"], flat.targets[0]["boxes_cxcywh"])


def test_an_empty_split(dataset):
    split = dataset.splits["train"].without(range(11), "test")
    loader = TrainLoader(split, REFERENCE, [32], batch_size=2, accumulation_steps=1, seed=0, num_workers=0)
    with pytest.raises(UserError, match="no pictures"):
        steps_of(loader)
