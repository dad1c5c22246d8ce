import importlib
import io
import json

import pytest

SMALL = ["model=tiny", "model.resolution=64", "model.num_queries=20", "data.num_workers=0", "trainer.batch_size=2"]


def test_the_parts_of_a_step_add_up_to_it(tmp_path, monkeypatch, capsys):
    script = importlib.import_module("bench_train")
    monkeypatch.setattr("sys.stdin", io.StringIO("0\n1\n"))
    monkeypatch.setattr(importlib.import_module("rfdetr_train.allocator"), "keep_freed_memory", lambda: None)
    script.serve_steps([2, *SMALL, f"data.root={tmp_path}"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ANSWER ")]
    answers = [json.loads(line.removeprefix("ANSWER ")) for line in lines]
    assert len(answers) == 2
    for answer in answers:
        parts = answer["parts_s"]
        assert list(parts) == [
            "data wait", "preparation", "forward", "loss", "matching", "backward", "clip", "optimizer", "average"
        ]  # fmt: skip
        assert min(parts.values()) > 0
        assert answer["step_s"] == pytest.approx(sum(parts.values()))
        assert parts["forward"] + parts["backward"] > 0.5 * (answer["step_s"] - parts["data wait"])
