"""Boxes drawn into a picture at its own size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rfdetr_train.loggers.figure import PALETTE, drawable, font_file

if TYPE_CHECKING:
    from PIL.Image import Image

SMALLEST_TEXT_PX, TEXT_SHARE, LINE_SHARE = 11, 0.022, 0.003  # of the picture's shorter side


def draw_boxes(image: Any, boxes_xyxy: Any, labels: Any, scores: Any, names: Sequence[str]) -> Image:
    """The picture with its detections, the best on top.

    image uint8 (3, height, width), RGB; boxes_xyxy (k, 4) in its pixels, labels (k,), scores (k,); arrays, CPU tensors.
    """
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(np.asarray(image), 0, -1)))
    shorter = min(picture.size)
    size_px, line_px = max(SMALLEST_TEXT_PX, round(shorter * TEXT_SHARE)), max(2, round(shorter * LINE_SHARE))
    pen = ImageDraw.Draw(picture)
    order = np.argsort(np.asarray(scores), kind="stable")
    for index in order:
        label = int(labels[index])
        colour = PALETTE[label % len(PALETTE)]
        box = [float(value) for value in boxes_xyxy[index]]
        pen.rectangle(box, outline=colour, width=line_px)
        text = f"{drawable(names[label], label)} {float(scores[index]):.2f}"
        font = ImageFont.truetype(font_file(text), size_px)
        _write_chip(pen, box, text, font, colour, picture.size)
    return picture


def _write_chip(pen: Any, box: list[float], text: str, font: Any, colour: str, size: tuple[int, int]) -> None:
    """Class and score on the box's upper edge, moved so that the picture's border cuts nothing off."""
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    width, height = right - left + 6, bottom - top + 4
    x = max(0.0, min(box[0], size[0] - width))
    y = max(0.0, min(box[1] - height, size[1] - height))
    pen.rectangle([x, y, x + width, y + height], fill=colour)
    pen.text((x + 3 - left, y + 2 - top), text, font=font, fill="white")
