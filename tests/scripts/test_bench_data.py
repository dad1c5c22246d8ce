import importlib
import json
from pathlib import Path

import pytest
from PIL import Image

from rfdetr_train.config import DataConfig
from rfdetr_train.data.dataset import read_dataset

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("bench_data")


def test_the_generated_set_is_a_data_set(script, tmp_path):
    root = script.generate(tmp_path / "set", 96, 72, 3)
    split = read_dataset(DataConfig(name="auto", root=str(root))).splits["train"]
    assert len(split) == 3
    with Image.open(split.path(0)) as picture:
        assert picture.size == (96, 72)
    assert len(split.record(0).labels) == 8


def test_a_measurement_of_our_own_pipeline(script, tmp_path, monkeypatch, capsys):
    """Both quantities are written; a clock runs as long as the processor at least, or almost."""
    monkeypatch.setattr(script, "GENERATED", {"96x72": (96, 72, 5)})
    output = tmp_path / "bench.json"
    monkeypatch.setattr("sys.argv", ["bench_data.py", "--side", "64", "--rounds", "2", "--output", str(output)])
    script.main()
    written = json.loads(output.read_text())
    (row,) = written["rows"]
    assert row["pictures"] == "96x72"
    assert 0 < row["ours, by the clock"][1] < 2 * row["ours"][1]
    assert row["cached"][1] > 0
    assert "96x72" in capsys.readouterr().out
    assert {"machine", "versions", "commit", "options"} < set(written)
