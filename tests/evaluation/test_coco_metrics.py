"""COCO metrics against raw pycocotools where that is right, and against closed forms where it is not; every test with
every library that is installed."""

import contextlib
import copy
import io
import json
import logging
import math

import numpy as np
import pytest
import torch
from coco_results import predictions_of
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rfdetr_train.errors import UserError
from rfdetr_train.evaluation import backends
from rfdetr_train.evaluation.coco_metrics import CocoEvaluator
from rfdetr_train.evaluation.predictions import Predictions
from rfdetr_train.labels import LabelMap


@pytest.fixture(params=backends.FASTEST_FIRST, autouse=True)
def library(request, monkeypatch):
    pytest.importorskip(request.param)
    monkeypatch.setattr(backends, "FASTEST_FIRST", (request.param,))


OVERALL = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


def truth_of(boxes, categories=((1, "a"),), num_images=1, first_id=1):
    """A COCO truth from rows (image_id, category_id, [x, y, w, h], further keys...)."""
    annotations = [
        {"id": first_id + i, "image_id": image, "category_id": category, "bbox": bbox, "area": bbox[2] * bbox[3]}
        | {"iscrowd": 0}
        | (extra[0] if extra else {})
        for i, (image, category, bbox, *extra) in enumerate(boxes)
    ]
    return {
        "images": [{"id": i, "file_name": f"{i}.jpg", "width": 640, "height": 640} for i in range(1, num_images + 1)],
        "categories": [{"id": i, "name": name} for i, name in categories],
        "annotations": annotations,
    }


def truth_as_predictions(truth, label_map):
    """Every annotated box with score 0.9, through the conversion that a model's detections take."""
    image_ids = [image["id"] for image in truth["images"]]
    detections = []
    for image_id in image_ids:
        own = [a for a in truth["annotations"] if a["image_id"] == image_id]
        boxes = torch.tensor([a["bbox"] for a in own], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = torch.tensor([label_map.category_ids.index(a["category_id"]) for a in own], dtype=torch.int64)
        detections.append({"boxes_xyxy": boxes, "scores": torch.full((len(own),), 0.9), "labels": labels})
    return Predictions.from_detections(dict(zip(image_ids, detections, strict=True)), label_map).to_results()


def scored(evaluator, results):
    """The metrics of results in COCO's format."""
    return evaluator.evaluate(predictions_of(results))


def raw_pycocotools(truth, results):
    """The library's own summary, and its tables."""
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = copy.deepcopy(truth)
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(copy.deepcopy(results)), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def random_set(seed, num_images=12):
    """Truth and noisy results with crowds, ties of scores, sparse unsorted ids and a class without truth."""
    rng = np.random.default_rng(seed)
    categories = [(90, "zebra"), (3, "ant"), (17, "bee"), (41, "cat")]
    boxes, results = [], []
    for image in range(1, num_images + 1):
        for _ in range(rng.integers(0, 12)):
            category = int(rng.choice([90, 3, 17]))
            size = rng.choice([12.0, 50.0, 150.0])
            bbox = [*rng.uniform(0, 400, 2).tolist(), *(size * rng.uniform(0.7, 1.3, 2)).tolist()]
            boxes.append((image, category, bbox, {"iscrowd": int(rng.random() < 0.15)}))
            for _ in range(rng.integers(0, 4)):
                noisy = (np.array(bbox) + rng.normal(0, size * 0.08, 4)).clip(1).tolist()
                result = {"image_id": image, "category_id": category, "bbox": noisy}
                results.append(result | {"score": round(float(rng.random()), 1)})
        false = {"image_id": image, "category_id": int(rng.choice([90, 3, 17, 41])), "bbox": [5.0, 5.0, 40.0, 40.0]}
        results.append(false | {"score": float(rng.random())})
    return truth_of(boxes, categories, num_images, first_id=100), results


@pytest.mark.parametrize("seed", range(4))
def test_equals_raw_pycocotools_where_that_is_right(seed):
    truth, results = random_set(seed)
    raw = raw_pycocotools(truth, results)
    metrics = scored(CocoEvaluator(truth), results)
    assert [metrics.overall[key] for key in OVERALL] == pytest.approx(raw.stats.tolist(), abs=1e-12)
    assert 0.05 < metrics.overall["AP"] < 0.95  # a set on which metrics differ
    by_class = {row["category_id"]: row for row in metrics.per_class}
    assert list(by_class) == [3, 17, 41, 90]
    for k, category in enumerate([3, 17, 41, 90]):
        expected = raw.eval["precision"][:, :, k, 0, -1].mean()
        if category == 41:
            assert expected == -1
            assert (by_class[41]["AP"], by_class[41]["AP50"], by_class[41]["AR100"]) == (None, None, None)
        else:
            assert by_class[category]["AP"] == pytest.approx(expected, abs=1e-12)
            assert by_class[category]["AR100"] == pytest.approx(raw.eval["recall"][:, k, 0, -1].mean(), abs=1e-12)


def test_values_are_plain_floats_and_inputs_stay_as_they_were():
    truth, results = random_set(0)
    before = copy.deepcopy((truth, results))
    metrics = scored(CocoEvaluator(truth), results)
    assert (truth, results) == before
    assert all(type(value) is float for value in metrics.overall.values())
    json.dumps([metrics.overall, metrics.per_class])  # would refuse numpy integers
    assert {row["category_id"]: row["num_boxes"] for row in metrics.per_class} == {
        c: sum(a["category_id"] == c and not a["iscrowd"] for a in truth["annotations"]) for c in (3, 17, 41, 90)
    }


def test_evaluator_scores_again_with_the_same_answer():
    truth, results = random_set(1)
    evaluator = CocoEvaluator(truth)
    first = scored(evaluator, results)
    assert scored(evaluator, []).overall["AP"] == 0.0
    assert scored(evaluator, results) == first


def test_nothing_is_printed(capsys):
    truth, results = random_set(2)
    scored(CocoEvaluator(truth), results)
    assert capsys.readouterr() == ("", "")


def test_sparse_unsorted_category_ids():
    truth = truth_of([(1, 90, [10, 10, 20, 20]), (1, 3, [50, 50, 30, 30])], [(90, "zebra"), (3, "ant"), (17, "bee")])
    results = truth_as_predictions(truth, LabelMap((3, 17, 90), ("ant", "bee", "zebra")))
    assert [result["category_id"] for result in results] == [90, 3]
    assert scored(CocoEvaluator(truth), results).overall["AP"] == pytest.approx(1.0, abs=1e-12)


def test_class_without_truth_is_left_out_of_the_mean():
    truth = truth_of([(1, 1, [10, 10, 20, 20])], [(1, "a"), (2, "b")])
    results = truth_as_predictions(truth, LabelMap((1, 2), ("a", "b")))
    results.append({"image_id": 1, "category_id": 2, "bbox": [50, 50, 20, 20], "score": 0.99})
    metrics = scored(CocoEvaluator(truth), results)
    a, b = metrics.per_class
    one = pytest.approx(1.0, abs=1e-12)
    assert a == {"category_id": 1, "name": "a", "AP": one, "AP50": one, "AR100": one, "num_boxes": 1}
    assert b == {"category_id": 2, "name": "b", "AP": None, "AP50": None, "AR100": None, "num_boxes": 0}
    assert metrics.overall["AP"] == one


@pytest.mark.parametrize("absent", [("iscrowd",), ("area",), ("iscrowd", "area"), ("id",)])
def test_missing_keys_are_filled(absent):
    truth = truth_of([(1, 1, [10, 10, 30, 20], {"segmentation": [[10, 10, 40, 10, 40, 30, 10, 30]]})])
    for key in absent:
        del truth["annotations"][0][key]
    metrics = scored(CocoEvaluator(truth), truth_as_predictions(truth, LabelMap((1,), ("a",))))
    assert metrics.overall["AP"] == pytest.approx(1.0, abs=1e-12)
    assert (metrics.overall["APs"], metrics.overall["APm"]) == (pytest.approx(1.0), None)  # 600 square pixels


@pytest.mark.parametrize("num_results", [0, 1])
def test_no_predictions_for_any_image_give_zero(num_results):
    truth = truth_of([(1, 1, [10, 10, 20, 20]), (2, 1, [10, 10, 20, 20])], num_images=2)
    empty = {"boxes_xyxy": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)}
    results = Predictions.from_detections({1: empty, 2: empty}, LabelMap((1,), ("a",))).to_results()
    assert results == []
    results += [{"image_id": 1, "category_id": 1, "bbox": [500, 500, 9, 9], "score": 0.5}] * num_results
    metrics = scored(CocoEvaluator(truth), results)
    exists = {"AP", "AP50", "AP75", "APs", "AR1", "AR10", "AR100", "ARs"}
    assert metrics.overall == {key: 0.0 if key in exists else None for key in OVERALL}
    assert metrics.per_class[0]["AP"] == 0.0


@pytest.mark.parametrize("results", [[], [{"image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9], "score": 0.5}]])
def test_truth_without_boxes_defines_nothing(results):
    metrics = scored(CocoEvaluator(truth_of([])), results)
    assert metrics.overall == dict.fromkeys(OVERALL)
    assert metrics.per_class == [
        {"category_id": 1, "name": "a", "AP": None, "AP50": None, "AR100": None, "num_boxes": 0}
    ]


def test_truth_without_images_or_categories():
    metrics = scored(CocoEvaluator({"images": [], "categories": [], "annotations": []}), [])
    assert metrics.overall == dict.fromkeys(OVERALL)
    assert metrics.per_class == []


def four_images():
    """Four images with one box each: raw pycocotools loses the box of annotation id 0."""
    return [(image, 1, [10, 10, 40, 40]) for image in range(1, 5)]


def test_annotation_id_zero():
    truth = truth_of(four_images(), num_images=4, first_id=0)
    results = truth_as_predictions(truth, LabelMap((1,), ("a",)))
    # by hand: the first of four is taken for a false positive, so precision 1/2, 2/3, 3/4 up to recall 3/4
    assert raw_pycocotools(truth, results).stats[0] == pytest.approx(0.75 * 76 / 101, abs=1e-9)
    assert scored(CocoEvaluator(truth), results).overall["AP"] == pytest.approx(1.0, abs=1e-12)


def test_equal_annotation_ids():
    truth = truth_of(four_images(), num_images=4)
    for annotation in truth["annotations"]:
        annotation["id"] = 7
    results = truth_as_predictions(truth, LabelMap((1,), ("a",)))
    # by hand: it takes the last annotation four times, so three false positives come before the one match of four
    assert raw_pycocotools(truth, results).stats[0] == pytest.approx(1 / 4 * 26 / 101, abs=1e-9)
    assert scored(CocoEvaluator(truth), results).overall["AP"] == pytest.approx(1.0, abs=1e-12)


def grid_of_150():
    return truth_of([(1, 1, [40 * (i % 15), 40 * (i // 15), 20, 20]) for i in range(150)])


def test_150_objects_in_an_image(caplog):
    truth = grid_of_150()
    results = truth_as_predictions(truth, LabelMap((1,), ("a",)))
    with caplog.at_level(logging.WARNING):
        at_100 = scored(CocoEvaluator(truth), results).overall
    assert at_100["AP"] == pytest.approx(67 / 101, abs=1e-9)  # 67 of the 101 recall points lie at or below 100 / 150
    assert "max_dets=100" in caplog.text
    assert "image 1 has 150" in caplog.text
    caplog.clear()
    at_300 = scored(CocoEvaluator(truth, max_dets=300), results).overall
    assert not caplog.text
    assert set(at_300) == {*OVERALL, "AR300"}
    assert at_300["AP"] == pytest.approx(1.0, abs=1e-12)
    assert [at_300[f"AR{n}"] for n in (1, 10, 100, 300)] == pytest.approx([1 / 150, 10 / 150, 100 / 150, 1.0])


def test_fewer_detections_than_100():
    truth = truth_of([(1, 1, [40 * i, 0, 20, 20]) for i in range(10)])
    metrics = scored(CocoEvaluator(truth, max_dets=5), truth_as_predictions(truth, LabelMap((1,), ("a",))))
    assert set(metrics.overall) == {*OVERALL, "AR5"}
    assert (metrics.overall["AR10"], metrics.overall["AR100"], metrics.per_class[0]["AR100"]) == (None, None, None)
    assert metrics.overall["AR5"] == pytest.approx(0.5)
    assert metrics.per_class[0]["AR5"] == pytest.approx(0.5)
    assert metrics.overall["AP"] == pytest.approx(51 / 101, abs=1e-9)


GOOD = {"image_id": 17, "category_id": 1, "bbox": [1.0, 1.0, 9.0, 9.0], "score": 0.5}


@pytest.mark.parametrize(
    "bad",
    [
        {"score": math.nan},
        {"score": math.inf},
        {"bbox": [math.nan, 1.0, 9.0, 9.0]},
        {"bbox": [1.0, 1.0, math.inf, 9.0]},
        {"bbox": [1.0, 1.0, -9.0, 9.0]},
    ],
)
def test_numbers_that_mean_nothing_are_refused(bad):
    truth = truth_of([(17, 1, [1, 1, 9, 9])], num_images=17)
    with pytest.raises(UserError, match="image 17 has a prediction"):
        scored(CocoEvaluator(truth), [GOOD, GOOD | bad])


def test_ids_that_the_truth_lacks_are_refused():
    evaluator = CocoEvaluator(truth_of([(1, 1, [1, 1, 9, 9])], num_images=17))
    with pytest.raises(UserError, match="image_id=99"):
        scored(evaluator, [GOOD | {"image_id": 99}])
    with pytest.raises(UserError, match="image 17 has category_id=9,"):
        scored(evaluator, [GOOD | {"category_id": 9}])
    with pytest.raises(AssertionError, match="image_id: one is not listed"):
        CocoEvaluator(truth_of([(99, 1, [1, 1, 9, 9], {"id": 5})]))
    with pytest.raises(AssertionError, match="image_id: one is given twice"):
        CocoEvaluator(truth_of([]) | {"images": [{"id": 1}, {"id": 1}]})


def test_ids_may_be_negative_or_too_long_for_a_float():
    image_ids, category_ids = (-7, 2**60, 2**60 + 1), (-4, 2**60 + 3)
    truth = {
        "images": [{"id": i, "width": 64, "height": 64} for i in image_ids],
        "categories": [{"id": i, "name": str(i)} for i in category_ids],
        "annotations": [
            {"image_id": image, "category_id": category_ids[k % 2], "bbox": [5 * k, 0, 9, 9]}
            for k, image in enumerate(image_ids)
        ],
    }
    results = truth_as_predictions(truth, LabelMap(category_ids, ("a", "b")))
    assert scored(CocoEvaluator(truth), results).overall["AP"] == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("kind", [np.int64, np.int32, torch.tensor])
def test_ids_may_be_numpy_or_torch_integers(kind):
    truth = truth_of([(kind(1), kind(1), [10, 10, 20, 20])])
    truth["images"][0]["id"] = kind(1)
    detection = {
        "boxes_xyxy": torch.tensor([[10.0, 10.0, 30.0, 30.0]]),
        "scores": torch.tensor([0.9]),
        "labels": torch.tensor([0]),
    }
    results = Predictions.from_detections({kind(1): detection}, LabelMap((1,), ("a",))).to_results()
    assert type(results[0]["image_id"]) is int
    results[0]["image_id"] = kind(1)
    metrics = scored(CocoEvaluator(truth), results)
    assert metrics.overall["AP"] == pytest.approx(1.0)
    assert type(metrics.per_class[0]["category_id"]) is int
