"""One name means one thing: in the schemas, in the factories and in the folders of YAML files."""

import dataclasses

import pytest
import yaml
from omegaconf import OmegaConf

from rfdetr_train.cli import compose_config, conf_dir
from rfdetr_train.cli_help import known_keys
from rfdetr_train.config import FORMATS, CustomOptimizerConfig, TorchSchedulerConfig
from rfdetr_train.data.dataset import READERS
from rfdetr_train.optim.optimizers import OPTIMIZERS
from rfdetr_train.optim.schedules import build_schedule
from rfdetr_train.schema import COMMANDS, GROUPS


@pytest.mark.parametrize("group", GROUPS)
def test_every_schema_has_its_file_and_every_file_its_schema(group: str) -> None:
    assert {path.stem for path in (conf_dir() / group).glob("*.yaml")} == set(GROUPS[group])


def test_every_command_has_its_file() -> None:
    assert all((conf_dir() / f"{command}.yaml").is_file() for command in COMMANDS)


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, schemas in GROUPS.items() for name in schemas])
def test_a_choice_carries_its_own_name(group: str, name: str) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(GROUPS[group][name])}
    chosen = yaml.safe_load((conf_dir() / group / f"{name}.yaml").read_text())
    assert chosen.get("name", defaults["name"]) == name


def test_every_optimizer_is_built_by_its_name_or_by_a_path() -> None:
    by_path = {name for name, schema in GROUPS["optimizer"].items() if schema is CustomOptimizerConfig}
    assert set(OPTIMIZERS) == set(GROUPS["optimizer"]) - by_path


def test_every_schedule_is_a_preset_or_given_by_a_path() -> None:
    for name, schema in GROUPS["scheduler"].items():
        if schema is not TorchSchedulerConfig:
            assert build_schedule(schema(), warmup_steps=0, total_steps=4, steps_per_epoch=2) is not None, name


def test_every_data_set_has_a_reader() -> None:
    assert set(READERS) == set(FORMATS)
    assert {*READERS, "shapes", "auto"} == set(GROUPS["data"])


@pytest.mark.parametrize("space", sorted(path.stem for path in (conf_dir() / "hparams").glob("*.yaml")))
def test_every_search_space_names_keys_that_exist(space: str) -> None:
    compose_config("train", [f"hparams={space}"])
    params = OmegaConf.load(conf_dir() / "hparams" / f"{space}.yaml").get("hydra", {}).get("sweeper", {}).get("params")
    assert [key for key in params or {} if key not in known_keys("train")] == []
    assert params or space == "all"
