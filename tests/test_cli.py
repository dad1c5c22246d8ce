"""The command line as a user meets it, in a process of its own."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rfdetr_train.cli import COMMANDS, run
from rfdetr_train.cli_help import explain, key_meanings, known_keys
from rfdetr_train.errors import did_you_mean


def command_line(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rfdetr_train", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def python(code: str, cwd: Path) -> str:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True).stdout


def test_help_lists_commands_and_choices_without_importing_anything_heavy(tmp_path: Path) -> None:
    code = "import sys; sys.argv=['x','--help']\nfrom rfdetr_train.cli import run\nassert run(['--help']) == 0\n"
    code += "assert not {'torch', 'hydra', 'numpy'} & set(sys.modules)"
    shown = python(code, tmp_path)
    assert "evaluate" in shown
    assert "nano" in shown
    assert "adamw" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_says_what_every_key_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    meanings = dict(key_meanings(command))
    assert meanings.keys() <= known_keys(command)
    for key, meaning in meanings.items():
        assert key in shown
        assert len(re.sub(r"^\(with .*?\)", "", meaning)) > 5, f"{key} has no docstring"


def test_printing_the_config_takes_under_a_second_and_no_torch(tmp_path: Path) -> None:
    code = "import sys\nfrom rfdetr_train.cli import run\nrun(['--cfg', 'job'])\nassert 'torch' not in sys.modules"
    started = time.monotonic()
    shown = python(code, tmp_path)
    assert "resolution: 384" in shown
    assert time.monotonic() - started < 5  # 0.4 s on an idle machine; the bound leaves room for a busy one


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["optimizer.lrr=3"], ["did you mean optimizer.lr?"]),
        (["lr=3"], ["did you mean optimizer.lr?"]),
        (["-m", "optimizer.lrr=3,4"], ["did you mean optimizer.lr?"]),
        (["model=nanoo"], ["model/nanoo", "small"]),
        (["trainer.epochs=abc"], ["trainer.epochs=abc", "Integer"]),
        (["trian"], ["did you mean train?"]),
        (["model.resolution=400"], ["model.resolution=400", "384 or 416"]),
        (["data=coco", "data.root=a,b=c"], ["data.root=a,b=c", "'a,b=c'"]),
        (
            ["weights=https://x.org/a.pth#md5=0"],
            ["quote the value, in a shell: \"weights='https://x.org/a.pth#md5=0'\""],
        ),
        (["run_dir=/proc/nowhere"], ["/proc/nowhere", "run_dir"]),
        (["evaluate", "evaluation.max_dets=3"], ["did you mean max_dets?"]),
        (["evaluate", "data=coco"], ["data is a section of evaluate", "data.root"]),
        (["no/such/config.yaml"], ["no/such/config.yaml", "no such config file"]),
    ],
)
def test_refusals_are_one_plain_message_and_exit_1(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    done = command_line(*arguments, cwd=tmp_path)
    shown = done.stdout + done.stderr
    assert done.returncode == 1
    assert "Traceback" not in shown
    assert [word for word in words if word not in shown] == []


def test_full_errors_on_request(tmp_path: Path) -> None:
    done = command_line("model.resolution=400", cwd=tmp_path, HYDRA_FULL_ERROR="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_the_nearest_word() -> None:
    assert did_you_mean("modle", ["model", "data"]) == "did you mean model?"
    assert did_you_mean("xyz", ["model", "data"]) is None


def test_explanations_do_not_advise_a_key_that_does_not_exist() -> None:
    error = ValueError("Could not override 'optimizer.lrr'.\nTo append to your config use +optimizer.lrr=3")
    assert "To append" not in explain(error, "train", ["optimizer.lrr=3"])
