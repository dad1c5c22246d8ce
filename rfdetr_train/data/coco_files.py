"""Where the files of a COCO data set lie: Roboflow's layout and the plain one."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rfdetr_train.errors import UserError

ROBOFLOW_FILE = "_annotations.coco.json"
_SPLIT_ALIASES = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}
_PROBED_PICTURES = 100  # some may be missing: the check of the pictures tells which


class SplitFiles(NamedTuple):
    """The files of one split."""

    annotations: Path
    picture_folders: list[Path]
    """Where the pictures may lie, the likeliest first."""


def absolute_root(root: str | Path) -> Path:
    """`root` as an absolute path to a folder (links kept).

    Raises: UserError if it is missing or no folder.
    """
    path = Path(root).expanduser().absolute()
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        raise UserError(
            f"data.root={root}: {path} {what}; give the folder that holds train/{ROBOFLOW_FILE} and "
            f"valid/{ROBOFLOW_FILE}, or annotations/instances_train2017.json and the like"
        )
    return path


def find_split(root: Path, split: str) -> SplitFiles:
    """The annotation file of `split` (train, valid or test) under `root`, and where its pictures may lie.

    Raises: UserError if there is no such file, or more than one.
    """
    found = _roboflow_files(root, split) or _plain_files(root, split)
    if len(found) > 1:
        names = " and ".join(str(files.annotations) for files in found)
        raise UserError(f"data.root={root}: {names} could both be the {split} split; keep one of them there")
    if not found:
        raise UserError(_missing_split(root, split))
    return found[0]


def _roboflow_files(root: Path, split: str) -> list[SplitFiles]:
    folders = [root / alias for alias in _SPLIT_ALIASES[split]]
    return [SplitFiles(f / ROBOFLOW_FILE, [f]) for f in folders if (f / ROBOFLOW_FILE).is_file()]


def _plain_files(root: Path, split: str) -> list[SplitFiles]:
    """Only instances_ files: captions_ and person_keypoints_ ones lie beside them in COCO's own download."""
    names = "|".join(_SPLIT_ALIASES[split])
    pattern = re.compile(rf"(instances_)?(?P<folder>({names})(\d{{4}})?)\.json")
    matches = [(path, pattern.fullmatch(path.name)) for path in sorted((root / "annotations").glob("*.json"))]
    return [SplitFiles(path, _plain_folders(root, split, m["folder"])) for path, m in matches if m]


def _plain_folders(root: Path, split: str, stem: str) -> list[Path]:
    names = dict.fromkeys((stem, *_SPLIT_ALIASES[split]))  # in order, each once
    return [*(root / top / name for name in names for top in ("", "images")), root / "images", root]


def _missing_split(root: Path, split: str) -> str:
    aliases = _SPLIT_ALIASES[split]
    wanted = [f"{alias}/{ROBOFLOW_FILE}" for alias in aliases]
    wanted += [f"annotations/{name}.json" for alias in aliases for name in (alias, f"instances_{alias}2017")]
    there = sorted(p.name for p in root.iterdir())
    listed = ", ".join(there[:10]) + (", ..." if len(there) > 10 else "")
    return (
        f"data.root={root}: no {split} split; looked for {', '.join(wanted)} (any year will do); "
        f"the folder holds {listed or 'nothing'}"
    )


def picture_folder(files: SplitFiles, file_names: Sequence[str]) -> Path:
    """The folder that holds (some of) the pictures.

    Raises: UserError if none of the folders that come into question exists.
    """
    folders = [folder for folder in files.picture_folders if folder.is_dir()]
    probes = [name for name in file_names[:_PROBED_PICTURES] if "\0" not in name]
    for folder in folders:
        if any(os.path.exists(folder / name) for name in probes):
            return folder
    if not folders:
        looked = ", ".join(str(folder) for folder in files.picture_folders)
        raise UserError(f"{files.annotations}: no folder of pictures; looked for {looked}")
    return folders[0]


def check_inside(root: Path, folder: Path, file_names: Sequence[str], source: Path) -> None:
    """Refuse file names that lead out of `root`: an annotation file may come from anywhere.

    Judged by the names alone, so links that the owner placed inside the root stay usable.
    """
    inside = os.path.normpath(root) + os.sep
    for name in file_names:
        if "\0" in name or not os.path.normpath(folder / name).startswith(inside):
            raise UserError(f"{source}: file_name {name!r} leads out of {root}; name pictures inside the data root")
