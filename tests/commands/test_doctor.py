"""The doctor leaves a table, a page and sheets, and its exit code says whether the data set can be trained on."""

import json
import re
from pathlib import Path

import pytest

from rfdetr_train.cli import compose_config, run
from rfdetr_train.commands.doctor import doctor
from rfdetr_train.errors import UserError

SHAPES = ["data=shapes", "data.train_images=30", "data.valid_images=6", "data.image_size_px=64", "model=tiny"]


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """The demo set with a half picture, a script for a class name and a box twice."""
    doctor(compose_config("doctor", [*SHAPES, f"data.root={tmp_path}"]), tmp_path / "first")
    (root,) = (path.parent for path in tmp_path.glob("*/train"))
    picture = next(root.glob("train/*.jpg"))
    picture.write_bytes(picture.read_bytes()[:500])
    for file in root.glob("*/_annotations.coco.json"):
        table = json.loads(file.read_text())
        table["categories"][0]["name"] = "<script>alert(1)</script>"
        table["annotations"].append({**table["annotations"][-1], "id": 10_000})
        file.write_text(json.dumps(table))
    return root


def test_report_sheets_and_exit_code(tmp_path: Path, broken: Path) -> None:
    arguments = ["data=auto", f"data.root={broken}", "model=tiny", "preview=true", "num_pictures=2"]
    with pytest.raises(UserError, match=r"1 error; .*doctor\.html"):
        doctor(compose_config("doctor", arguments), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "doctor.json").read_text())
    kinds = {(f["kind"], f["split"], f["count"]) for f in told["findings"] if f["severity"] != "note"}
    assert kinds == {
        ("unreadable_pictures", "train", 1),
        ("duplicate_boxes", "train", 1),
        ("duplicate_boxes", "valid", 1),
    }
    page = (tmp_path / "run" / "doctor.html").read_text()
    assert "&lt;script&gt;alert" in page
    assert "<script" not in page
    assert not re.search(r"""(src|href)=["']?(http|//)|@import|url\(["']?http""", page)
    names = {path.name for path in (tmp_path / "run" / "plots").iterdir()}
    assert {"duplicate_boxes_train.png", "augmented_1.png", "augmented_2.png"} <= names
    with pytest.raises(UserError, match="3 warnings"):
        doctor(compose_config("doctor", [*arguments, "data.on_error=skip", "fail_on=warning"]), tmp_path / "again")


def test_the_command_line_of_a_run_serves_and_errors_are_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = [f"data.{key}" for key in ("train_images=30", "valid_images=6", "image_size_px=64")]
    assert run(["doctor", "experiment=demo", *sizes, f"run_dir={tmp_path / 'runs'}"]) == 0
    (folder,) = (tmp_path / "runs").glob("*/*-doctor-*")
    assert {path.name for path in folder.iterdir()} >= {"config.yaml", "doctor.html", "doctor.json", "doctor.log"}
    assert run(["doctor", "data=auto", "data.root=nowhere", f"run_dir={tmp_path / 'other'}"]) == 1
    (folder,) = (tmp_path / "other").glob("*/*")
    assert "does not exist" in (folder / "doctor.html").read_text()


def test_keys_of_groups_are_known(capsys: pytest.CaptureFixture) -> None:
    assert run(["doctor", "data.rot=x"]) == 1
    assert "did you mean data.root?" in capsys.readouterr().err
