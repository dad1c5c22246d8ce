"""What the comparison of two runs says."""

import pytest

from rfdetr_train.commands.compare import compare
from rfdetr_train.errors import UserError
from rfdetr_train.loggers.files import MetricsFiles, write_json


def make_run(folder, lr, ap_of_ant):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"defaults: [train]\nseed: 0\noptimizer: {{lr: {lr}}}\n")
    files = MetricsFiles(folder)
    for step in (1, 2):
        files.log({"split": "train", "step": step, "loss": 1.0 / step, "lr": {"head": lr}})
        files.log({"split": "valid", "step": step, "weights": "raw", "AP": ap_of_ant * step / 2})
    per_class = [{"name": "ant", "AP": ap_of_ant}, {"name": "bee", "AP": None}]
    write_json(folder / "evaluation.json", {"weights": "raw", "step": 2, "AP": ap_of_ant, "per_class": per_class})
    return str(folder)


def test_tables_and_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs = [make_run(tmp_path / "day" / "a", 0.001, 0.5), make_run(tmp_path / "day" / "b", 0.002, 0.75)]
    compare(runs)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["optimizer.lr", "0.001", "0.002"] in lines
    assert not any(line[:1] == ["seed"] for line in lines)
    assert ["ant", "0.5", "0.75", "0.25"] in lines
    assert ["bee", "n/a", "n/a", "n/a"] in lines
    (picture,) = tmp_path.glob("comparison-*.png")
    assert picture.stat().st_size > 5000


def test_refusals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "a", 0.001, 0.5)
    with pytest.raises(UserError, match="two run folders"):
        compare([run])
    with pytest.raises(UserError, match=r"no config\.yaml"):
        compare([run, str(tmp_path)])
