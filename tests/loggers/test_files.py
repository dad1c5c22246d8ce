"""metrics.jsonl, metrics.csv and summary.json: exact, continued without repeats, and whole after a crash."""

import csv
import json
import math
import struct

import pytest

from rfdetr_train.errors import UserError
from rfdetr_train.loggers.files import SUMMARY_NAME, MetricsFiles, read_metrics, write_json


def train_row(step, **more):
    return {"split": "train", "step": step, "epoch": step // 4, "loss": 1 / (step + 1), "lr": {"head": 1e-4}} | more


def valid_row(step):
    return {"split": "valid", "step": step, "epoch": step // 4, "weights": "ema", "AP": 0.1 + 0.2, "APs": None}


def table(run_dir):
    with (run_dir / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_floats_come_back_with_the_same_bits(tmp_path):
    values = [0.1 + 0.2, 1e-320, 2**-1074, 1.7976931348623157e308, -0.0, 1 / 3, 123456789.123456789]
    files = MetricsFiles(tmp_path)
    files.log({"step": 1, **{f"v{i}": value for i, value in enumerate(values)}})
    read = read_metrics(tmp_path / "metrics.jsonl")[0]
    from_csv = table(tmp_path)[0]
    for i, value in enumerate(values):
        assert struct.pack("d", read[f"v{i}"]) == struct.pack("d", value)
        assert struct.pack("d", float(from_csv[f"v{i}"])) == struct.pack("d", value)


def test_each_row_is_on_disk_when_log_returns(tmp_path):
    files = MetricsFiles(tmp_path)
    for step in (1, 2):
        files.log(train_row(step))
        assert len((tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == step
        assert len(table(tmp_path)) == step


def test_numbers_that_are_not_finite_are_null_and_named(tmp_path):
    MetricsFiles(tmp_path).log({"step": 3, "loss": math.nan, "lr": {"head": -math.inf}, "AP": None})
    line = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert json.loads(line, parse_constant=pytest.fail) == {
        "step": 3,
        "loss": None,
        "lr": {"head": None},
        "AP": None,
        "nonfinite": {"loss": "nan", "lr/head": "-inf"},
    }
    assert table(tmp_path)[0] | {"step": "3"} == {
        "step": "3",
        "loss": "",
        "lr/head": "",
        "AP": "",
        "nonfinite/loss": "nan",
        "nonfinite/lr/head": "-inf",
    }


def test_csv_flattens_and_takes_new_columns_in_later(tmp_path):
    files = MetricsFiles(tmp_path)
    files.log(train_row(1))
    files.log(valid_row(1))
    files.log(train_row(2, lr={"head": 1e-4, "encoder, unfrozen": 1e-5}))
    lines = (tmp_path / "metrics.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == 'split,step,epoch,loss,lr/head,weights,AP,APs,"lr/encoder, unfrozen"'
    assert lines[1:] == [
        "train,1,0,0.5,0.0001,,,,",
        "valid,1,0,,,ema,0.30000000000000004,,",
        "train,2,0,0.3333333333333333,0.0001,,,,1e-05",
    ]


def test_header_is_stable_and_the_file_only_grows(tmp_path):
    files = MetricsFiles(tmp_path)
    files.log(train_row(1))
    inode = (tmp_path / "metrics.csv").stat().st_ino
    files.log({"loss": 0.5, "step": 2, "split": "train"})  # fewer keys, another order
    assert (tmp_path / "metrics.csv").stat().st_ino == inode
    assert table(tmp_path)[1] == {"split": "train", "step": "2", "epoch": "", "loss": "0.5", "lr/head": ""}


def test_resume_writes_nothing_twice(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    rows = [train_row(1), train_row(2), valid_row(2), train_row(3), train_row(4), valid_row(4)]
    for run_dir in (whole, cut):
        run_dir.mkdir()
        files = MetricsFiles(run_dir)
        for row in rows[:5]:
            files.log(row)
    MetricsFiles(whole).log(rows[5])
    resumed = MetricsFiles(cut)
    resumed.truncate_after(2)
    assert read_metrics(cut / "metrics.jsonl") == rows[:3]
    for row in rows[3:]:
        resumed.log(row)
    for name in ("metrics.jsonl", "metrics.csv"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("torn", [b'{"split": "train", "st', b'{"name": "\xe6\x95', b"\x00\x00\x00", b"[1, 2]"])
def test_half_written_last_line_is_dropped(tmp_path, torn):
    MetricsFiles(tmp_path).log(train_row(1))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    assert read_metrics(tmp_path / "metrics.jsonl") == [train_row(1)]
    files = MetricsFiles(tmp_path)
    files.log(train_row(2))
    assert read_metrics(tmp_path / "metrics.jsonl") == [train_row(1), train_row(2)]
    assert [row["step"] for row in table(tmp_path)] == ["1", "2"]


def test_last_line_that_lost_only_its_end_is_kept(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}')
    MetricsFiles(tmp_path).log({"step": 2})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]


def test_broken_line_in_the_middle_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"ste\n{"step": 3}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"metrics\.jsonl:2:"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_truncation_before_the_first_row(tmp_path):
    MetricsFiles(tmp_path).truncate_after(0)  # no file yet
    files = MetricsFiles(tmp_path)
    files.log(train_row(1))
    files.truncate_after(0)
    files.log(train_row(1))
    assert read_metrics(tmp_path / "metrics.jsonl") == [train_row(1)]
    assert len(table(tmp_path)) == 1


def test_summary_is_readable_whole_and_replaced(tmp_path):
    write_json(tmp_path / SUMMARY_NAME, {"status": "interrupted"})
    summary = {"status": "completed", "data": {"classes": ["数据", "é"], "root": "a\udc80b"}, "best": {"AP": math.nan}}
    write_json(tmp_path / SUMMARY_NAME, summary)
    text = (tmp_path / "summary.json").read_text(encoding="utf-8")
    assert '"数据"' in text
    read = json.loads(text)
    assert read == summary | {"best": {"AP": None}, "nonfinite": {"best/AP": "nan"}}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_failed_summary_leaves_the_old_one(tmp_path):
    write_json(tmp_path / SUMMARY_NAME, {"status": "interrupted"})
    with pytest.raises(TypeError):
        write_json(tmp_path / SUMMARY_NAME, {"status": object()})
    assert json.loads((tmp_path / "summary.json").read_text(encoding="utf-8")) == {"status": "interrupted"}


def test_a_pending_evaluation_is_written_again_and_not_twice(tmp_path):
    files = MetricsFiles(tmp_path)
    for row in ({"split": "train", "step": 4}, {"split": "valid", "step": 4}, {"split": "train", "step": 5}):
        files.log(row)
    files.truncate_after(4, evaluation_pending=False)
    assert [row["split"] for row in read_metrics(tmp_path / "metrics.jsonl")] == ["train", "valid"]
    files.truncate_after(4, evaluation_pending=True)
    assert [row["split"] for row in read_metrics(tmp_path / "metrics.jsonl")] == ["train"]
