"""The demo set: pictures of coloured circles, squares and triangles, written with a seed in Roboflow's COCO layout."""

import colorsys
import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from rfdetr_train.config import ShapesDataConfig
from rfdetr_train.data.coco import ROBOFLOW_FILE
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

FORMS = ("circle", "square", "triangle")
_VERSION = 1  # of the drawing: raise it when the pictures change, so that old ones are not taken for new
_MOST_SHAPES = 8
_SHARE_OF_SIDE = (0.1, 0.45)  # smallest and largest shape; their logarithm is uniform
_LARGEST_OVERLAP = 0.1  # of the smaller box's area
_TRIES = 20  # to find a free place for a shape


class Shape(NamedTuple):
    """One object of a picture, in pixels."""

    form: int
    """Index in FORMS."""
    left: int
    top: int
    side: int
    """Width and height of its box; the drawing touches all four edges."""


def write_shapes(config: ShapesDataConfig) -> Path:
    """The folder of the demo set with these parameters, inside config.root; written unless it is there already.

    Every set of parameters has a folder of its own, which appears only when it is complete: a second process that
    writes the same one loses the race without harm.

    Raises: UserError if config.root is a folder of other things, or cannot be written.
    """
    root = Path(config.root).expanduser().absolute()
    there = sorted(path.name for path in root.iterdir() if path.name[0] != ".") if root.is_dir() else []
    if there and not any(root.glob("train*-valid*px-seed*-v*")):
        foreign = f"data=shapes draws a demo set, but this folder holds {there[0]}"
        remedy = "add data=auto to train on what is there, or give the demo set a folder of its own"
        raise UserError(f"data.root={config.root}: {foreign}; {remedy}")
    name = f"train{config.train_images}-valid{config.valid_images}-{config.image_size_px}px"
    folder = root / f"{name}-seed{config.shapes_seed}-v{_VERSION}"
    if not folder.is_dir():
        try:
            _write_atomically(config, folder)
        except OSError as error:
            reason = f"the demo set cannot be written there ({error.strerror}: {error.filename}); give another folder"
            raise UserError(f"data.root={config.root}: {reason}") from error
    return folder


def _write_atomically(config: ShapesDataConfig, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    try:
        for number, (split, count) in enumerate((("train", config.train_images), ("valid", config.valid_images))):
            _write_split(unfinished / split, count, config.image_size_px, (config.shapes_seed, number))
        unfinished.chmod(0o755)  # mkdtemp's folders are their owner's alone
        try:
            unfinished.rename(folder)
            log.info("wrote the demo set: %s", folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same bytes
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_split(folder: Path, count: int, size_px: int, seed: tuple[int, int]) -> None:
    folder.mkdir()
    images: list[dict] = []
    annotations: list[dict] = []
    for number in range(count):
        picture, shapes = draw_picture(size_px, np.random.default_rng([*seed, number]))
        file_name = f"{number:06d}.jpg"
        picture.save(folder / file_name, quality=95)
        images.append({"id": number + 1, "file_name": file_name, "width": size_px, "height": size_px})
        for shape in shapes:
            box = {"bbox": [shape.left, shape.top, shape.side, shape.side], "area": shape.side**2, "iscrowd": 0}
            ids = {"image_id": number + 1, "category_id": shape.form + 1}
            annotations.append({**ids, **box, "id": len(annotations) + 1})
    categories = [{"id": label + 1, "name": form, "supercategory": "none"} for label, form in enumerate(FORMS)]
    table = {"images": images, "annotations": annotations, "categories": categories}
    (folder / ROBOFLOW_FILE).write_text(json.dumps(table), encoding="utf-8")


def draw_picture(size_px: int, rng: np.random.Generator) -> tuple[Image.Image, list[Shape]]:
    """A picture of size_px x size_px and the 1 to 8 shapes on it, all of them whole."""
    picture = _background(size_px, rng)
    shapes = _place_shapes(size_px, rng)
    for shape in shapes:
        draw_shape(picture, shape, rng)
    return picture, shapes


def _background(size_px: int, rng: np.random.Generator) -> Image.Image:
    """A dull colour with soft blotches and a fine grain, so that nothing can be found by thresholding."""
    blotches = rng.normal(rng.uniform(70, 185, size=3), 15, size=(5, 5, 3)).clip(0, 255).astype(np.uint8)
    smooth = Image.fromarray(blotches).resize((size_px, size_px), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 6, size=(size_px, size_px, 1))
    return Image.fromarray((np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8))


def _place_shapes(size_px: int, rng: np.random.Generator) -> list[Shape]:
    shapes: list[Shape] = []
    smallest, largest = (np.log(share * size_px) for share in _SHARE_OF_SIDE)
    for _ in range(rng.integers(1, _MOST_SHAPES, endpoint=True)):
        for _ in range(_TRIES):
            side = round(float(np.exp(rng.uniform(smallest, largest))))
            left, top = rng.integers(0, size_px - side, size=2, endpoint=True).tolist()
            shape = Shape(int(rng.integers(len(FORMS))), left, top, side)
            if all(_overlap(shape, other) <= _LARGEST_OVERLAP for other in shapes):
                shapes.append(shape)
                break
    return shapes


def _overlap(a: Shape, b: Shape) -> float:
    """Common area of two boxes as a share of the smaller one."""
    width = min(a.left + a.side, b.left + b.side) - max(a.left, b.left)
    height = min(a.top + a.side, b.top + b.side) - max(a.top, b.top)
    return max(width, 0) * max(height, 0) / min(a.side, b.side) ** 2


def draw_shape(picture: Image.Image, shape: Shape, rng: np.random.Generator) -> None:
    """Draw a shape in a random bright colour; its box is exact to the pixel."""
    bright = colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.7, 1.0), rng.uniform(0.75, 1.0))
    colour = tuple(round(255 * channel) for channel in bright)
    pen = ImageDraw.Draw(picture)
    left, top = shape.left, shape.top
    right, bottom = left + shape.side - 1, top + shape.side - 1  # Pillow draws the last pixel too
    if FORMS[shape.form] == "circle":
        pen.ellipse((left, top, right, bottom), fill=colour)
    elif FORMS[shape.form] == "square":
        pen.rectangle((left, top, right, bottom), fill=colour)
    else:
        pen.polygon(((left, bottom), (right, bottom), ((left + right) / 2, top)), fill=colour)
