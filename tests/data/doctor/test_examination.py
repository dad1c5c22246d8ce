"""A clean data set has no finding; with one fault planted, exactly that is found, in the right split and number."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rfdetr_train.config import DataConfig, ModelConfig, ShapesDataConfig
from rfdetr_train.data.doctor.examination import Examination, examine

MODEL = ModelConfig(name="nano", resolution=384, num_queries=6)
BOXES = [(1, [5, 5, 40, 40]), (2, [50, 50, 30, 30]), (1, [50, 5, 40, 40]), (2, [5, 50, 30, 30])]
FILE = "_annotations.coco.json"


def draw(path: Path, seed: int, size: tuple[int, int] = (100, 100), **options: Any) -> None:
    """Blotches that no other seed has."""
    blotches = np.random.default_rng(seed).integers(0, 256, (10, 10, 3), dtype=np.uint8)
    Image.fromarray(blotches).resize(size, Image.Resampling.BICUBIC).save(path, **options)


class Planted:
    """Twelve pictures to train on and two to validate on, of four boxes each; change it, then `write` it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        categories = [{"id": 1, "name": "cell"}, {"id": 2, "name": "dot"}]
        self.tables: dict[str, dict] = {}
        for number, (split, count) in enumerate((("train", 12), ("valid", 2))):
            (root / split).mkdir()
            self.tables[split] = {"images": [], "annotations": [], "categories": list(categories)}
            for picture in range(count):
                name = f"{picture}.png"
                draw(root / split / name, 100 * number + picture)
                self.add_picture(split, name, BOXES)

    def add_picture(self, split: str, name: str, boxes: list) -> None:
        images = self.tables[split]["images"]
        images.append({"id": len(images) + 1, "file_name": name, "width": 100, "height": 100})
        for category_id, bbox in boxes:
            self.add_box(split, len(images), category_id, bbox)

    def add_box(self, split: str, image_id: int, category_id: int, bbox: list) -> None:
        rows = self.tables[split]["annotations"]
        rows.append({"id": len(rows) + 1, "image_id": image_id, "category_id": category_id, "bbox": bbox})

    def add_class(self, category_id: int, name: str, **boxes: int) -> None:
        for split, table in self.tables.items():
            table["categories"].append({"id": category_id, "name": name})
            for number in range(boxes.get(split, 0)):
                self.add_box(split, number // 2 + 1, category_id, [90, 40 * (number % 2), 10, 10])

    def examine(self, model: ModelConfig = MODEL, **keys: Any) -> Examination:
        for split, table in self.tables.items():
            (self.root / split / FILE).write_text(json.dumps(table))
        return examine(DataConfig(name="auto", root=str(self.root), **keys), model)


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path)


def found(examination: Examination) -> set[tuple[str, str, str, int]]:
    return {(f.kind, f.severity, f.split, f.count) for f in examination.findings}


def test_a_clean_set_has_nothing(planted: Planted) -> None:
    examination = planted.examine()
    assert examination.findings == []
    assert examination.statistics["classes"] == {"cell": {"train": 24, "valid": 4}, "dot": {"train": 24, "valid": 4}}
    assert examination.statistics["splits"]["train"]["sizes"] == {"100x100": 12}
    sides = examination.statistics["histograms"]["box_sides_px"]  # 40 and 30 of 100 px at 384: 153.6 and 115.2
    assert dict(zip(sides["edges"], sides["counts"]["train"], strict=True)) == dict.fromkeys(sides["edges"], 0) | {
        128: 24,
        96: 24,
    }
    assert len(examination.train) == 12


def cut_in_half(p: Planted) -> None:
    path = p.root / "train" / "3.png"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def turn(p: Planted) -> None:
    p.tables["train"]["images"][4] |= {"width": 100, "height": 60}
    exif = Image.Exif()
    exif[0x0112] = 6
    draw(p.root / "train" / "4.png", 4, (100, 60), exif=exif)


def copy_to_train(p: Planted) -> None:
    shutil.copy(p.root / "train" / "1.png", p.root / "train" / "copy.png")
    p.add_picture("train", "copy.png", BOXES)


def compress(p: Planted) -> None:
    with Image.open(p.root / "train" / "1.png") as picture:
        picture.resize((80, 80)).save(p.root / "valid" / "small.jpg", quality=60)
    p.add_picture("valid", "small.jpg", BOXES)
    p.tables["valid"]["images"][-1] |= {"width": 80, "height": 80}


def empty(p: Planted) -> None:
    draw(p.root / "valid" / "empty.png", 900)
    p.add_picture("valid", "empty.png", [])


def renumber(p: Planted) -> None:
    for table in p.tables.values():
        table["categories"][1]["id"] = 7
        for row in table["annotations"]:
            row["category_id"] = {1: 1, 2: 7}[row["category_id"]]


FAULTS: list[tuple[Callable[[Planted], Any], set]] = [
    (lambda p: p.add_box("train", 1, 1, [90, 90, 0, 5]), {("degenerate_boxes", "warning", "train", 1)}),
    (lambda p: p.add_box("valid", 1, 1, [300, 10, 5, 5]), {("outside_boxes", "warning", "valid", 1)}),
    (lambda p: p.add_box("train", 1, 1, [80, 80, 30, 10]), {("overhanging_boxes", "warning", "train", 1)}),
    (lambda p: p.add_box("train", 1, 1, [80, 85, 20.9, 10]), set()),
    (lambda p: p.add_box("train", 2, 1, [5, 5, 40, 40]), {("duplicate_boxes", "warning", "train", 1)}),
    (lambda p: p.add_box("train", 2, 1, [5, 5, 40, 38.5]), {("duplicate_boxes", "warning", "train", 1)}),
    (lambda p: p.add_box("train", 2, 1, [5, 5, 40, 37.5]), set()),
    (lambda p: p.add_box("train", 2, 2, [5, 5, 40, 40]), {("contradicting_boxes", "warning", "train", 1)}),
    (lambda p: p.add_box("train", 3, 1, [90, 90, 2, 2]), {("small_boxes", "note", "train", 1)}),
    (lambda p: [p.add_box("valid", 1, 1, [85, 30 * n, 9, 9]) for n in range(3)],
     {("crowded_pictures", "warning", "valid", 1)}),
    (cut_in_half, {("unreadable_pictures", "error", "train", 1)}),
    (lambda p: (p.root / "valid" / "1.png").unlink(), {("unreadable_pictures", "error", "valid", 1)}),
    (turn, {("turned_pictures", "error", "train", 1), ("overhanging_boxes", "warning", "train", 2)}),
    (lambda p: draw(p.root / "train" / "5.png", 5, (100, 50)), {("reshaped_pictures", "warning", "train", 1)}),
    (lambda p: draw(p.root / "train" / "5.png", 5, (200, 200)), {("scaled_pictures", "note", "train", 1)}),
    (lambda p: shutil.copy(p.root / "train" / "2.png", p.root / "valid" / "0.png"),
     {("duplicate_pictures", "error", "valid", 1)}),
    (copy_to_train, {("duplicate_pictures", "warning", "train", 1)}),
    (compress, {("similar_pictures", "warning", "valid", 1), ("overhanging_boxes", "warning", "valid", 1)}),
    (empty, {("empty_pictures", "note", "valid", 1)}),
    (lambda p: draw(p.root / "train" / "stranger.png", 901), {("unnamed_files", "warning", "", 1)}),
    (lambda p: p.add_class(3, "rare", train=19, valid=1), {("rare_classes", "warning", "", 1)}),
    (lambda p: p.add_class(3, "unseen", valid=1), {("unlearnt_classes", "warning", "", 1)}),
    (lambda p: p.add_class(3, "unscored", train=20), {("unscored_classes", "warning", "", 1)}),
    (lambda p: p.add_class(3, "Cell ", train=20, valid=1), {("twin_classes", "warning", "", 1)}),
    (lambda p: p.add_class(3, "group"), {("boxless_classes", "note", "", 1)}),
    (lambda p: p.add_box("train", 77, 1, [1, 1, 9, 9]), {("orphan_boxes", "warning", "train", 1)}),
    (lambda p: p.tables["train"]["annotations"][5].update(id=1), {("shared_box_ids", "note", "train", 1)}),
    (renumber, {("id_holes", "note", "train", 5), ("id_holes", "note", "valid", 5)}),
    (lambda p: p.tables["train"]["images"][5].update(id=1),
     {("refused", "error", "train", 1), ("orphan_boxes", "warning", "train", 4),
      ("empty_pictures", "note", "train", 1)}),
    (lambda p: p.tables["valid"]["annotations"][0].update(category_id=9),
     {("refused", "error", "valid", 1), ("unlearnt_classes", "warning", "", 1)}),
    (lambda p: p.tables["valid"].update(images=3), {("refused", "error", "valid", 1)}),
    (lambda p: shutil.rmtree(p.root / "train") or p.tables.pop("train"), {("refused", "error", "train", 1)}),
]  # fmt: skip


@pytest.mark.parametrize(("plant", "expected"), FAULTS, ids=[f"{n}-{sorted(e)}" for n, (_, e) in enumerate(FAULTS)])
def test_a_planted_fault_is_found_and_nothing_else(planted: Planted, plant: Callable, expected: set) -> None:
    plant(planted)
    if expected == {("crowded_pictures", "warning", "valid", 1)}:
        assert found(planted.examine(ModelConfig(name="nano", resolution=384, num_queries=7))) == set()
    assert found(planted.examine()) == expected


def test_what_is_left_out_is_not_an_error(planted: Planted) -> None:
    cut_in_half(planted)
    examination = planted.examine(on_error="skip")
    assert found(examination) == {("unreadable_pictures", "warning", "train", 1)}
    assert len(examination.train) == 11


def test_nothing_readable_and_names_that_are_no_text(planted: Planted) -> None:
    for picture in (planted.root / "train").glob("*.png"):
        picture.write_bytes(b"")
    draw(planted.root / "train" / "\udcff.png", 903)
    examination = planted.examine(on_error="skip")
    by_kind = {finding.kind: finding for finding in examination.findings}
    assert by_kind["unreadable_pictures"].count == 12
    assert by_kind["unnamed_files"].examples[0].endswith(r"\udcff.png")
    assert examination.train is None


def test_boxes_of_classes_that_are_left_out_do_not_count(planted: Planted) -> None:
    planted.add_box("train", 1, 2, [90, 90, 0, 5])
    examination = planted.examine(classes=["cell"])
    assert found(examination) == set()
    assert examination.statistics["classes"] == {"cell": {"train": 24, "valid": 4}}


def test_findings_name_their_places(planted: Planted) -> None:
    planted.add_box("train", 2, 1, [5, 5, 40, 40])
    (finding,) = planted.examine().findings
    assert finding.examples == ["1.png: annotation ids 5, 49"]
    assert finding.places == [("train", 1, [4, 48])]


def test_no_such_folder_is_one_finding(tmp_path: Path) -> None:
    examination = examine(DataConfig(name="auto", root=str(tmp_path / "nowhere")), MODEL)
    assert found(examination) == {("refused", "error", "", 1)}
    assert "does not exist" in examination.findings[0].examples[0]


def test_negatives_are_looked_at(planted: Planted) -> None:
    folder = planted.root / "elsewhere"
    folder.mkdir()
    draw(folder / "new.png", 902)
    assert found(planted.examine(negatives=str(folder))) == set()
    shutil.copy(planted.root / "valid" / "0.png", folder / "leak.png")
    assert found(planted.examine(negatives=str(folder))) == {("duplicate_pictures", "error", "negatives", 1)}


def test_a_cut_valid_split_lies_within_train(planted: Planted) -> None:
    shutil.rmtree(planted.root / "valid")
    del planted.tables["valid"]
    assert found(planted.examine()) == {("refused", "error", "valid", 1)}
    examination = planted.examine(valid_fraction=0.25)
    assert found(examination) == set()
    assert len(examination.train) == 9


def test_the_demo_set_is_clean(tmp_path: Path) -> None:
    examination = examine(
        ShapesDataConfig(root=str(tmp_path), image_size_px=128), ModelConfig(name="nano", resolution=384)
    )
    assert [f for f in examination.findings if f.severity != "note"] == []
