"""Every key of Optuna's sweeper changes what a study asks for or ends; those of launchers reach the plugin whose they
are."""

import dataclasses
import importlib.util
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from changed_keys import values_that_differ
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from rfdetr_train import cli
from rfdetr_train.config import OptunaSweeperConfig
from rfdetr_train.loggers.files import write_json
from rfdetr_train.sweeps.folder import JOB_NAME, Job
from rfdetr_train.sweeps.study import StudySweeper, report

OTHER = {
    "params": {"optimizer.lr": "interval(0.1, 0.2)"}, "n_trials": 2, "n_jobs": 2, "startup_trials": 1, "seed": 1,
    "pruner": "none", "pruner_startup_trials": 3, "pruner_warmup_epochs": 2,
}  # fmt: skip


class Launcher:
    """Runs no job: job n has an AP of 1 / (n + 1) after the second epoch, unless it is ended."""

    def __init__(self, folder: Path, section: OptunaSweeperConfig) -> None:
        self.folder, self.section, self.launched = folder, section, []  # type: ignore[var-annotated]

    def launch(self, jobs: Sequence[Sequence[str]], initial_job_idx: int) -> None:
        for number, overrides in enumerate(jobs, start=initial_job_idx):
            job = Job(number, list(overrides), str(number), "completed", 1 / (number + 1))
            hopeless = report(self.folder, self.section, job, 2, job.AP)
            job.status = "pruned" if hopeless else "completed"
            (self.folder / job.folder).mkdir()
            write_json(self.folder / job.folder / JOB_NAME, dataclasses.asdict(job))
            self.launched.append((initial_job_idx, len(jobs), overrides, hopeless))


def test_every_key_of_a_study(tmp_path: Path) -> None:
    """The values that are tried, how many at once, and after which epoch a trial is ended."""
    pytest.importorskip("optuna")
    numbers = itertools.count()

    def asked(section: OptunaSweeperConfig) -> str:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        sweeper, launcher = StudySweeper(**dataclasses.asdict(section)), Launcher(folder, section)
        sweeper.loader, sweeper.sweep_dir, sweeper.launcher = None, folder, launcher
        sweeper.sweep(["seed=1"])
        return repr(launcher.launched)

    section = OptunaSweeperConfig(
        params={"optimizer.lr": "interval(0.1, 1.0)"}, n_trials=3, startup_trials=9, pruner_startup_trials=1
    )
    assert asked(section) == asked(section)
    assert values_that_differ(section, OTHER, asked) == ["_target_"]


def test_the_class_of_the_sweeper_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["-m", "hydra/sweeper=optuna", "hydra.sweeper._target_=hydra_plugins.no_such.Class"]) == 1
    assert "no_such" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- launchers
LAUNCHERS: dict[str, dict[str, Any]] = {
    "joblib": {"n_jobs": 7},
    "ray": {"ray.init.address": "host:1", "ray.init.object_store_memory": 7, "ray.remote.num_cpus": 7,
            "ray.remote.num_gpus": 7, "ray.remote.max_retries": 7},
    "slurm": {"gpus_per_node": 7, "cpus_per_task": 7, "timeout_min": 7, "signal_delay_s": 7, "max_num_timeout": 7},
    "submitit_local": {"timeout_min": 7},
}  # fmt: skip
"""What our files set. What a value does is the plugin's, on machines that it has; test_launchers.py runs them."""


def launcher_of(name: str, *overrides: str) -> Any:
    """The section that Hydra makes the launcher of."""
    package = f"hydra_plugins.hydra_{name.partition('_')[0].replace('slurm', 'submitit')}_launcher"
    if importlib.util.find_spec("hydra_plugins") is None or importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    cli._prepare_hydra()
    with initialize_config_dir(version_base=None, config_dir=str(cli.conf_dir())):
        return compose("train", [f"launcher={name}", *overrides], return_hydra_config=True).hydra.launcher


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_key_of_a_launcher_is_one_of_its_plugin(name: str) -> None:
    """A key that the plugin does not know is refused, so that none of ours does nothing."""
    given = launcher_of(name, *(f"hydra.launcher.{key}={value}" for key, value in LAUNCHERS[name].items()))
    assert {key: OmegaConf.select(given, key) for key in LAUNCHERS[name]} == LAUNCHERS[name]
    with pytest.raises(ConfigCompositionException, match="no_such_key"):
        launcher_of(name, "hydra.launcher.no_such_key=1")


def test_every_key_that_a_launcher_file_sets_is_in_the_table() -> None:
    files = {path.stem: OmegaConf.load(path) for path in (cli.conf_dir() / "launcher").glob("*.yaml")}
    assert files.keys() == LAUNCHERS.keys()
    for name, content in files.items():
        assert leaves(OmegaConf.to_container(content["hydra"]["launcher"], resolve=False)) == [*LAUNCHERS[name]]


def leaves(section: Any, place: str = "") -> list[str]:
    """Dotted keys of all values."""
    if not isinstance(section, dict):
        return [place]
    return [leaf for key, value in section.items() for leaf in leaves(value, f"{place}.{key}" if place else key)]
