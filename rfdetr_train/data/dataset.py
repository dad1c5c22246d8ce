"""The door to every data set: a config section in, splits under one label map out."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rfdetr_train.config import DataConfig, ShapesDataConfig
from rfdetr_train.data.coco import read_coco
from rfdetr_train.data.sample import Dataset
from rfdetr_train.data.shapes import write_shapes
from rfdetr_train.errors import UserError


def _shapes_root(config: DataConfig) -> Path:
    assert isinstance(config, ShapesDataConfig)
    return write_shapes(config)


ROOTS: dict[str, Callable[[DataConfig], Path]] = {
    "coco": lambda config: Path(config.root),
    "shapes": _shapes_root,
}


def read_dataset(config: DataConfig, splits: Sequence[str] = ("train", "valid")) -> Dataset:
    """Read the named splits of the configured data set; the demo set is written first where it is missing.

    Raises: UserError for whatever is missing, broken or inconsistent; see `coco.read_coco`.
    """
    if config.name not in ROOTS:
        raise UserError(f"data={config.name}: choose one of {', '.join(sorted(ROOTS))}")
    return read_coco(ROOTS[config.name](config), splits)
