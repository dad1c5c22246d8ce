"""The page of a run: what is on it, that it is one file, and that names from a data set cannot become markup."""

import json
import re
from dataclasses import asdict
from html.parser import HTMLParser

import pytest
from coco_results import predictions_of

from rfdetr_train.errors import UserError
from rfdetr_train.evaluation.coco_metrics import CocoEvaluator
from rfdetr_train.evaluation.diagnosis import diagnose
from rfdetr_train.loggers.files import MetricsFiles, write_json
from rfdetr_train.loggers.page import write_report
from rfdetr_train.loggers.sheet import Picture, draw_sheet

ATTACK = "<script>alert(1)</script>"


class Elements(HTMLParser):
    """Names of the elements and addresses of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.addresses += [value for key, value in attributes if key in ("src", "href") and value]


def fill(folder, class_name="ant"):
    """A run folder with two rows, an evaluation and a sheet."""
    files = MetricsFiles(folder)
    files.log({"split": "train", "step": 1, "epoch": 0, "loss": 3.0, "grad_norm": 2.0, "lr": {"head": 1e-4}})
    files.log({"split": "valid", "step": 1, "epoch": 0, "weights": "raw", "AP": 0.25})
    truth = {
        "images": [{"id": 1, "width": 64, "height": 64, "file_name": "a.jpg"}],
        "categories": [{"id": 1, "name": class_name}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 20, 20]}],
    }
    found = predictions_of([{"image_id": 1, "category_id": 1, "bbox": [0, 0, 20, 19], "score": 0.75}])
    evaluator = CocoEvaluator(truth)
    metrics = evaluator.evaluate(found)
    diagnosis = asdict(diagnose(evaluator.truth, found, 100))
    write_json(folder / "evaluation.json", {**metrics.overall, "per_class": metrics.per_class, "diagnosis": diagnosis})
    (folder / "plots").mkdir()
    draw_sheet(folder / "plots" / "valid_worst.png", [Picture([[[0] * 8] * 8] * 3, [], [], [], [], [])], [class_name])


def test_one_offline_page_with_everything(tmp_path):
    fill(tmp_path)
    (tmp_path / "config.yaml").write_text("seed: 7\n")
    page = write_report(tmp_path).read_text()
    elements = Elements(page)
    assert elements.names.count("svg") == 8  # losses, AP, rates, norm; curves, confusion, errors, calibration
    assert all(address.startswith(("data:image/jpeg;base64,", "#")) for address in elements.addresses)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "script" not in elements.names
    assert "seed: 7" in page
    assert ">ant<" in page
    assert ">0.75<" in page  # the threshold of the best F1
    assert "The worst pictures" in page
    assert "currentColor" in page


def test_while_the_run_goes_on(tmp_path):
    MetricsFiles(tmp_path).log({"split": "train", "step": 1, "epoch": 0, "loss": 3.0, "lr": {"head": 1e-4}})
    page = write_report(tmp_path).read_text()
    assert "running" in page
    assert "By class" not in page


def test_names_are_text(tmp_path):
    fill(tmp_path, class_name=ATTACK)
    (tmp_path / "config.yaml").write_text(f"notes: {ATTACK}\n")
    page = write_report(tmp_path).read_text()
    assert "script" not in Elements(page).names
    assert "&lt;script&gt;" in page


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="no run to report"):
        write_report(tmp_path)


def test_a_broken_evaluation_is_named(tmp_path):
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(UserError, match=r"evaluation\.json"):
        write_report(tmp_path)
    (tmp_path / "evaluation.json").write_text(json.dumps([1]))
    with pytest.raises(UserError, match="no run to report"):
        write_report(tmp_path)
