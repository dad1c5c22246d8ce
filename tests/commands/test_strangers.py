"""Files from strangers: whatever they hold, none of it is run, imported, or fetched."""

import ast
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rfdetr_train.atomic_file import replacing
from rfdetr_train.checkpoint import files
from rfdetr_train.cli import run as run_command
from rfdetr_train.dotted_path import build

Run = Callable[..., Path]
PACKAGE = Path(__file__).parents[2] / "rfdetr_train"

FORBIDDEN = (
    "pickle.load", "pickle.loads", "pickle.Unpickler", "numpy.load", "np.load", "eval", "exec", "os.system", "os.popen",
    "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "marshal.loads", "shelve.open", "joblib.load",
    "torch.hub.load", "torch.jit.load", "torch.serialization.add_safe_globals",
)  # fmt: skip


def calls_of_the_package() -> list[tuple[str, str, dict[str, str]]]:
    """(where, what is called, its keywords) of every call in every file."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                keywords = {str(word.arg): ast.unparse(word.value) for word in node.keywords}
                found.append((f"{path.relative_to(PACKAGE)}:{node.lineno}", ast.unparse(node.func), keywords))
    return found


def test_no_call_reads_a_file_in_a_way_that_can_run_it() -> None:
    calls = calls_of_the_package()
    loads = [(where, words) for where, name, words in calls if name == "torch.load"]
    assert loads
    assert [where for where, words in loads if words.get("weights_only") != "True"] == []
    assert [where for where, name, _ in calls if name in FORBIDDEN] == []
    yaml = [words.get("Loader") for _, name, words in calls if name == "yaml.load"]
    assert set(yaml) <= {"yaml.BaseLoader", "yaml.SafeLoader"}
    assert [where for where, _, words in calls if words.get("shell", "False") != "False"] == []


def poisoned(value: Any, victim: str) -> Any:
    """The config with a call in every section and list."""
    call = {"_target_": "os.mkdir", "path": victim, "args": {"path": victim}, "mode": 511}
    if isinstance(value, dict):
        return {**{key: poisoned(item, victim) for key, item in value.items()}, **call}
    if isinstance(value, list):
        return [*value, call]
    return value


@pytest.fixture
def checkpoint(run: Run, tmp_path: Path) -> Path:
    """One of a run; its folder is gone, its data set is there."""
    run_dir = run("a", "trainer.max_steps=1", "logger.plots=false")
    return (run_dir / "checkpoints/last.pt").rename(tmp_path / "stranger.pt")


def test_the_attack_works_where_a_target_is_called(tmp_path: Path) -> None:
    build({"_target_": "os.mkdir", "path": str(tmp_path / "victim")}, "key")
    assert (tmp_path / "victim").is_dir()


def test_no_target_in_a_checkpoint_is_ever_called(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes_root: Path
) -> None:
    victim = tmp_path / "victim"
    saved = files.load(checkpoint)
    saved["config"] = poisoned(saved["config"], str(victim))
    for key in ("scheduler", "optimizer", "loop"):
        saved[key]["_target_"] = "os.mkdir"
        saved[key]["args"] = saved[key]["path"] = str(victim)
    files.save(tmp_path / "attack.pt", saved)
    monkeypatch.chdir(tmp_path)
    picture = next(shapes_root.rglob("*.jpg"), None) or next(shapes_root.rglob("*.png"))
    small = ["model=tiny", "data.num_workers=0", "data.train_images=10", "data.valid_images=4", "data.image_size_px=64",
             "logger.plots=false", "trainer.max_steps=1", "weights_allow_partial=true"]  # fmt: skip
    for arguments, code in (
        (["evaluate", "checkpoint=attack.pt", "data.num_workers=0", "sample_images=0"], 0),
        (["export", "checkpoint=attack.pt", "format=safetensors"], 0),
        (["predict", "checkpoint=attack.pt", f"source={picture}"], 0),
        (["weights=attack.pt", f"data.root={shapes_root}", *small], 0),
        (["replay", "attack.pt"], 1),  # it is no step to replay
    ):
        assert run_command(arguments) == code
        assert not victim.exists()


def test_a_backbone_in_a_checkpoint_is_fetched_from_nowhere(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **_: asked.append(arguments))
    monkeypatch.chdir(tmp_path)
    saved = files.load(checkpoint)
    for key in ("patch_size", "num_windows", "feature_blocks", "encoder_width", "encoder_depth", "encoder_heads",
                "position_grid"):  # fmt: skip
        saved["model_config"][key] = None
    for backbone in ("hf-hub:stranger/model", "hf_hub:stranger/model", "local-dir:/etc"):
        saved["model_config"]["backbone"] = backbone
        files.save(tmp_path / "attack.pt", saved)
        assert run_command(["export", "checkpoint=attack.pt", "format=safetensors"]) == 1
        shown = capsys.readouterr()
        assert f"model.backbone={backbone}: timm has no such model" in shown.out + shown.err
    assert asked == []


def test_a_file_that_is_being_written_is_private(tmp_path: Path) -> None:
    with replacing(tmp_path / "last.pt"):
        (temporary,) = tmp_path.iterdir()
        assert temporary.stat().st_mode & 0o077 == 0
