"""A composed config on its way to a run and to the file that repeats it."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from rfdetr_train import schema
from rfdetr_train.cli import conf_dir
from rfdetr_train.composed import make_paths_absolute, save_config, to_dataclass
from rfdetr_train.errors import UserError

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
