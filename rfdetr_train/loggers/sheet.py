"""Pictures with boxes: a sheet of several with truth and predictions, and one at its own size."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rfdetr_train.loggers.figure import (
    DOTS_PER_INCH,
    PALETTE,
    Axes,
    Figure,
    drawable,
    families,
    font_file,
    new_figure,
    save_figure,
    take_literally,
)

CELL_PX = 480  # side of an image's place on the sheet
VIEW_PX = 470  # what the space between the places leaves of it
MAX_COLUMNS = 4
TITLE_PX, LEGEND_ROW_PX = 30, 26
FONT_POINTS = 8.0
CHIP_PADDING_PX = 3
CLASSES_IN_LEGEND = 12
SMALLEST_TEXT_PX, TEXT_SHARE, LINE_SHARE = 11, 0.022, 0.003  # of a picture's shorter side


@dataclass
class Picture:
    """An image and its boxes, in pixels of that image; arrays or CPU tensors."""

    image: Any
    """uint8 (3, H, W), RGB."""
    truth_boxes_xyxy: Any
    """(n, 4)."""
    truth_labels: Any
    """(n,)."""
    boxes_xyxy: Any
    """(k, 4), the predictions."""
    labels: Any
    """(k,)."""
    scores: Any
    """(k,), from 0 to 1."""
    title: str = ""
    """Stands above it, in front of its counts."""


def draw_sheet(
    path: Path | str, pictures: Sequence[Picture], names: Sequence[str], min_score: float = 0.3, max_boxes: int = 60
) -> None:
    """Write a PNG of the pictures: truth dashed, predictions solid with class name and score, a colour for each class.

    `names` are the class names by label. Predictions below `min_score` count in a title but are not drawn, and
    of the others the `max_boxes` best are.
    """
    assert pictures, "a sheet shows at least one picture"
    columns = min(MAX_COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    shown = [_best_first(picture, min_score, max_boxes) for picture in pictures]
    present = sorted({int(label) for p in shown for labels in (p.truth_labels, p.labels) for label in labels})
    figure = new_figure(CELL_PX * columns, (CELL_PX + TITLE_PX) * rows + 2 * LEGEND_ROW_PX)
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for number, (axes, picture, full) in enumerate(zip(all_axes, shown, pictures, strict=False)):
        _draw_picture(axes, picture, names)
        title = drawable(full.title, number, longest=48) if full.title else ""
        text = f"{title}  {_title(picture, full, min_score)}".strip()
        axes.set_title(text, fontsize=9, loc="left", parse_math=False, fontfamily=families(text))
    for axes in all_axes[len(pictures) :]:
        axes.set_axis_off()
    _add_legend(figure, present, names, with_predictions=any(len(picture.scores) for picture in pictures))
    save_figure(figure, Path(path))


def _best_first(picture: Picture, min_score: float, max_boxes: int) -> Picture:
    """The picture with only the predictions that are drawn, the best last so that it lies on top."""
    scores = np.asarray(picture.scores)
    drawn = np.argsort(-scores, kind="stable")[:max_boxes]
    drawn = drawn[scores[drawn] >= min_score][::-1]
    return Picture(
        np.asarray(picture.image),
        np.asarray(picture.truth_boxes_xyxy).reshape(-1, 4),
        np.asarray(picture.truth_labels),
        np.asarray(picture.boxes_xyxy).reshape(-1, 4)[drawn],
        np.asarray(picture.labels)[drawn],
        scores[drawn],
    )


def _title(drawn: Picture, full: Picture, min_score: float) -> str:
    if not len(full.scores):
        return f"{len(drawn.truth_labels)} true"
    predicted = f"{len(drawn.scores)} of {len(full.scores)} predicted (score ≥ {min_score:g})"
    return f"{len(drawn.truth_labels)} true, {predicted}"


def _draw_picture(axes: Axes, picture: Picture, names: Sequence[str]) -> None:
    height, width = picture.image.shape[1:]
    side = max(height, width)
    axes.imshow(np.moveaxis(picture.image, 0, -1), interpolation="antialiased")
    axes.set(xlim=_centred(width, side), ylim=_centred(height, side)[::-1], xticks=[], yticks=[], facecolor="#e9ecef")
    for box, label in zip(picture.truth_boxes_xyxy, picture.truth_labels, strict=True):
        _draw_box(axes, box, "white", linewidth=2.6)
        _draw_box(axes, box, _colour(label), linewidth=1.6, linestyle=(0, (3, 2)))
    found = list(zip(picture.boxes_xyxy, picture.labels, picture.scores, strict=True))
    for box, label, _ in found:
        _draw_box(axes, box, _colour(label), linewidth=1.4)
    for box, label, score in found:
        _write_chip(axes, box, f"{_name(names, label)} {score:.2f}", _colour(label))


def _draw_box(axes: Axes, box_xyxy: np.ndarray, colour: str, **style: Any) -> None:
    from matplotlib.patches import Rectangle

    x1, y1, x2, y2 = (float(value) for value in box_xyxy)
    axes.add_patch(Rectangle((x1 - 0.5, y1 - 0.5), x2 - x1, y2 - y1, fill=False, edgecolor=colour, **style))


def _centred(length: int, side: int) -> tuple[float, float]:
    """Limits of a view of `side` pixels around an image of `length`: every place on the sheet is a square."""
    return (length - side) / 2 - 0.5, (length + side) / 2 - 0.5


def _write_chip(axes: Axes, box_xyxy: np.ndarray, text: str, colour: str) -> None:
    """Class and score on the box's upper edge, moved so that the border of the view cuts nothing off."""
    (left, right), (_, top) = axes.get_xlim(), axes.get_ylim()
    px = (right - left) / VIEW_PX  # image pixels to one pixel of the sheet
    chip = axes.text(
        left,
        max(float(box_xyxy[1]), top + 2.2 * FONT_POINTS * px) - CHIP_PADDING_PX * px,
        text,
        fontsize=FONT_POINTS,
        fontfamily=families(text),
        color="white",
        verticalalignment="bottom",
        bbox={"facecolor": colour, "edgecolor": "none", "alpha": 0.8, "pad": 1.2},
        parse_math=False,
        clip_on=True,
    )
    furthest = right - (chip.get_window_extent().width + CHIP_PADDING_PX) * px
    chip.set_x(max(left + CHIP_PADDING_PX * px, min(float(box_xyxy[0]) + CHIP_PADDING_PX * px, furthest)))
    chip.set_in_layout(False)


def _name(names: Sequence[str], label: int) -> str:
    """The class name as it can be drawn; a label beyond the names is the logit without target."""
    label = int(label)
    return drawable(names[label], label) if label < len(names) else f"#{label}"


def _colour(label: int) -> str:
    return PALETTE[int(label) % len(PALETTE)]


def _add_legend(figure: Figure, labels: list[int], names: Sequence[str], with_predictions: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], color="#333", linestyle=(0, (3, 2)), linewidth=1.6, label="truth"),
        *([Line2D([], [], color="#333", linewidth=1.4, label="prediction")] if with_predictions else []),
    ]
    handles += [Patch(color=_colour(label), label=_name(names, label)) for label in labels[:CLASSES_IN_LEGEND]]
    if len(labels) > CLASSES_IN_LEGEND:
        handles.append(Patch(color="none", label=f"and {len(labels) - CLASSES_IN_LEGEND} more classes"))
    columns = max(1, min(len(handles), int(figure.get_figwidth() * DOTS_PER_INCH / 230)))
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=9, frameon=False)
    take_literally(legend.get_texts())


def draw_boxes(image: Any, boxes_xyxy: Any, labels: Any, scores: Any, names: Sequence[str]) -> Any:
    """The picture with its detections, the best on top.

    image uint8 (3, height, width), RGB; boxes_xyxy (k, 4) in its pixels, labels (k,), scores (k,); arrays, CPU tensors.
    """
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(np.asarray(image), 0, -1)))
    shorter = min(picture.size)
    size_px, line_px = max(SMALLEST_TEXT_PX, round(shorter * TEXT_SHARE)), max(2, round(shorter * LINE_SHARE))
    pen = ImageDraw.Draw(picture)
    for index in np.argsort(np.asarray(scores), kind="stable"):
        box, colour = [float(value) for value in boxes_xyxy[index]], _colour(labels[index])
        pen.rectangle(box, outline=colour, width=line_px)
        text = f"{_name(names, labels[index])} {float(scores[index]):.2f}"
        _draw_chip(pen, box, text, ImageFont.truetype(font_file(text), size_px), colour, picture.size)
    return picture


def _draw_chip(pen: Any, box: list[float], text: str, font: Any, colour: str, size: tuple[int, int]) -> None:
    """Class and score on the box's upper edge, moved so that the picture's border cuts nothing off."""
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    width, height = right - left + 6, bottom - top + 4
    x = max(0.0, min(box[0], size[0] - width))
    y = max(0.0, min(box[1] - height, size[1] - height))
    pen.rectangle([x, y, x + width, y + height], fill=colour)
    pen.text((x + 3 - left, y + 2 - top), text, font=font, fill="white")
