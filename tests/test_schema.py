"""One name means one thing: in the schemas, in the factories and in the folders of YAML files."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from rfdetr_train import schema
from rfdetr_train.cli import compose_config, conf_dir
from rfdetr_train.cli_help import known_keys
from rfdetr_train.config import FORMATS, CustomOptimizerConfig, TorchSchedulerConfig
from rfdetr_train.data.dataset import READERS
from rfdetr_train.errors import UserError
from rfdetr_train.optim.optimizers import OPTIMIZERS
from rfdetr_train.optim.schedules import build_schedule
from rfdetr_train.schema import COMMANDS, GROUPS, make_paths_absolute, save_config, to_dataclass


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
    for name, kind in GROUPS["scheduler"].items():
        if kind is not TorchSchedulerConfig:
            assert build_schedule(kind(), warmup_steps=0, total_steps=4, steps_per_epoch=2) is not None, name


def test_every_data_set_has_a_reader() -> None:
    assert set(READERS) == set(FORMATS)
    assert {*READERS, "shapes", "auto"} == set(GROUPS["data"])


@pytest.mark.parametrize("space", sorted(path.stem for path in (conf_dir() / "hparams").glob("*.yaml")))
def test_every_search_space_names_keys_that_exist(space: str) -> None:
    compose_config("train", [f"hparams={space}"])
    params = OmegaConf.load(conf_dir() / "hparams" / f"{space}.yaml").get("hydra", {}).get("sweeper", {}).get("params")
    assert [key for key in params or {} if key not in known_keys("train")] == []
    assert params or space == "all"


ADDRESS = f"https://host.org/~me/a/x.pth?download=true&b=1#sha256={'0' * 64}"


def composed(*overrides: str) -> DictConfig:
    schema.register()
    with initialize_config_dir(version_base=None, config_dir=str(conf_dir())):
        config = compose(config_name="train", overrides=list(overrides))
    make_paths_absolute(config)
    return config


def test_paths_do_not_depend_on_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert composed("weights_dir=some/where").weights_dir == str(tmp_path / "some/where")
    assert composed("weights_dir='~/where'").weights_dir == str(tmp_path / "home/where")
    assert composed().weights_dir == str(tmp_path / "home/.cache/rfdetr_train")
    assert composed("weights=x.pth").weights == str(tmp_path / "x.pth")


def test_an_address_is_no_path_and_survives_the_saved_config(tmp_path: Path) -> None:
    config = composed(f"weights='{ADDRESS}'")
    save_config(config, {}, tmp_path, "train")
    assert to_dataclass(config).weights == ADDRESS
    assert OmegaConf.load(tmp_path / "config.yaml").weights == ADDRESS


@pytest.mark.parametrize("key", ["weights", "weights_dir"])
def test_an_empty_path_is_not_the_working_folder(key: str) -> None:
    with pytest.raises(UserError, match=f"{key}='': give"):
        to_dataclass(composed(f"{key}="))
