"""The leaderboard is made of the folder alone, and whatever stands in a name is shown as it is."""

import csv
import json
from pathlib import Path

from rfdetr_train.sweeps.folder import Job
from rfdetr_train.sweeps.leaderboard import differing_overrides, write_leaderboard


def test_only_the_overrides_that_differ_are_shown() -> None:
    jobs = [Job(0, ["model=tiny", "seed=1", "+a.b=x=y"]), Job(1, ["model=tiny", "seed=2"])]
    assert differing_overrides(jobs) == [{"seed": "1", "+a.b": "x=y"}, {"seed": "2", "+a.b": ""}]
    assert differing_overrides(jobs[:1]) == [{}]
    assert differing_overrides([]) == []


def test_the_best_stands_first_and_names_are_escaped(tmp_path: Path) -> None:
    rates = ["1e-4", "<b>&", "[1,2]", "'q\"'"]
    aps = [0.1, 0.3, None, 0.2]
    jobs = [Job(n, [f"x={rate}", "y=1"], f"{n}-a", "completed", ap) for n, (rate, ap) in enumerate(zip(rates, aps))]  # noqa: B905
    for job in jobs:
        (tmp_path / job.folder).mkdir()
    summary = {"best": {"AP50": 0.5}, "duration_s": 12.5, "memory_gib": 1.5, "model": {"optimizer_groups": 8}}
    (tmp_path / "1-a" / "summary.json").write_text(json.dumps(summary))
    write_leaderboard(tmp_path, jobs, num_jobs=5, show=False)
    with (tmp_path / "leaderboard.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["x"] for row in rows] == ["<b>&", "'q\"'", "1e-4", "[1,2]"]
    assert rows[0] == {
        "job": "1", "status": "completed", "x": "<b>&", "AP": "0.3", "AP50": "0.5", "seconds": "12.5",
        "memory GiB": "1.5", "groups": "8", "path": "1-a",
    }  # fmt: skip
    page = (tmp_path / "leaderboard.html").read_text()
    assert "<td>&lt;b&gt;&amp;</td>" in page
    assert "<b>&" not in page
    assert "4 of 5 jobs ended" in page
    assert "http" not in page.replace("http://www.w3.org", "")  # nothing is fetched
    assert not (tmp_path / "plots").exists()

    write_leaderboard(tmp_path, jobs, num_jobs=4, show=False)
    assert "<svg" not in page
    assert "<svg" in (tmp_path / "leaderboard.html").read_text()
    assert (tmp_path / "plots" / "sweep.png").is_file()
