import importlib


def test_a_merged_group_is_one_fused_call(capsys):
    """A fused step of a group is two calls: one counts its steps, one changes its weights."""
    script = importlib.import_module("bench_optimizer")
    rows = {(row["grouping"], row["step"]): row for row in script.measure("tiny", "cpu", repetitions=2)}
    merged, single = (rows[grouping, "fused"] for grouping in ("merged", "one group per parameter"))
    assert merged["operators"] == 2 * merged["groups"]
    assert single["operators"] == 2 * single["groups"]
    assert single["groups"] > 10 * merged["groups"]
    assert rows["merged", "for-loop"]["operators"] > single["operators"]
    assert {row["state MiB"] for row in rows.values()} == {12}  # two moments of 1.57 million float32
    assert "AdamW.step of tiny" in capsys.readouterr().out
