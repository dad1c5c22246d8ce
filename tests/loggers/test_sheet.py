"""The sheet of images: every box where it belongs, every name readable."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from rfdetr_train.loggers.sheet import CELL_PX, Picture, draw_sheet


@pytest.fixture
def sheet(monkeypatch):
    """The figure that was saved last."""
    saved = []
    original = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (saved.append(self), original(self, *args, **kw)))
    return saved


def picture(height=96, width=96, truth=(), found=(), colour=128):
    """Truth: (box, label); found: (box, label, score)."""
    return Picture(
        torch.full((3, height, width), colour, dtype=torch.uint8),
        torch.tensor([box for box, _ in truth], dtype=torch.float32),
        torch.tensor([label for _, label in truth], dtype=torch.int64),
        torch.tensor([box for box, _, _ in found], dtype=torch.float32),
        torch.tensor([label for _, label, _ in found], dtype=torch.int64),
        torch.tensor([score for _, _, score in found]),
    )


def boxes_of(axes, dashed):
    """xyxy of the drawn rectangles in image pixels; the white lining of the truth is left out."""
    rectangles = [p for p in axes.patches if p.get_edgecolor() != (1, 1, 1, 1)]
    wanted = [p for p in rectangles if (p.get_linestyle() != "solid" and p.get_linestyle() != "-") == dashed]
    return [
        tuple(np.round([*p.get_xy(), *np.add(p.get_xy(), (p.get_width(), p.get_height()))], 4) + 0.5) for p in wanted
    ]


def test_boxes_names_and_scores(tmp_path, sheet):
    shown = picture(
        truth=[((10, 20, 50, 60), 0)],
        found=[((12, 22, 52, 62), 0, 0.875), ((60, 60, 90, 90), 1, 0.5), ((0, 0, 9, 9), 1, 0.29)],
    )
    draw_sheet(tmp_path / "sheet.png", [shown], ["ant", "bee"])
    axes = sheet[0].axes[0]
    assert boxes_of(axes, dashed=True) == [(10, 20, 50, 60)]
    assert boxes_of(axes, dashed=False) == [(60, 60, 90, 90), (12, 22, 52, 62)]  # the best on top
    assert [text.get_text() for text in axes.texts] == ["bee 0.50", "ant 0.88"]
    assert axes.get_title(loc="left") == "1 true, 2 of 3 predicted (score ≥ 0.3)"
    assert [t.get_text() for t in sheet[0].legends[0].get_texts()] == ["truth", "prediction", "ant", "bee"]


def test_the_picture_shows_image_and_box_colours(tmp_path):
    shown = picture(truth=[((20, 20, 70, 70), 0)], colour=40)
    draw_sheet(tmp_path / "sheet.png", [shown], ["ant"])
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.size[0] == CELL_PX
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert {(40, 40, 40), (0x19, 0x71, 0xC2)} <= colours


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (3, 3, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2)])
def test_layout(tmp_path, sheet, count, columns, rows):
    draw_sheet(tmp_path / "sheet.png", [picture()] * count, ["ant"])
    assert len(sheet[0].axes) == columns * rows
    assert sum(axes.axison for axes in sheet[0].axes) == count
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.width == CELL_PX * columns
        assert image.height >= CELL_PX * rows


@pytest.mark.parametrize("size", [(96, 96), (40, 400), (400, 40), (16, 16)])
def test_no_chip_is_cut_off(tmp_path, sheet, size):
    height, width = size
    corners = [(0, 0), (width - 8, 0), (0, height - 8), (width - 8, height - 8)]
    found = [((x, y, x + 8, y + 8), 0, 0.9) for x, y in corners]
    draw_sheet(tmp_path / "sheet.png", [picture(height, width, found=found)] * 4, ["W" * 30])
    for axes in sheet[0].axes:
        view = axes.get_window_extent()
        for text in axes.texts:
            chip = text.get_window_extent()
            assert view.x0 - 1 <= chip.x0 < chip.x1 <= view.x1 + 1
            assert view.y0 - 1 <= chip.y0 < chip.y1 <= view.y1 + 1


def test_legend_and_titles_are_inside(tmp_path, sheet):
    names = [f"class with a long name {i}" for i in range(30)]
    truth = [((i, i, i + 20, i + 20), i) for i in range(30)]
    draw_sheet(tmp_path / "sheet.png", [picture(truth=truth)] * 2, names)
    figure = sheet[0]
    for part in (figure.legends[0], *(axes.title for axes in figure.axes)):
        box = part.get_window_extent()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
    assert figure.legends[0].get_texts()[-1].get_text() == "and 18 more classes"


def test_any_name_and_the_label_without_target(tmp_path, sheet):
    names = ["数据 集", "price $x$ \\frac{", "two\nlines", "\U0001f600"]
    found = [((10, 10, 40, 40), label, 0.9) for label in range(5)]
    draw_sheet(tmp_path / "sheet.png", [picture(found=found)], names)
    texts = [text.get_text() for text in sheet[0].axes[0].texts]
    assert "price $x$ \\frac{ 0.90" in texts
    assert "two lines 0.90" in texts
    assert "#4 0.90" in texts


def test_only_the_best_predictions_are_drawn(tmp_path, sheet):
    found = [((i, i, i + 5, i + 5), 0, 0.4 + i / 1000) for i in range(80)]
    draw_sheet(tmp_path / "sheet.png", [picture(found=found)], ["ant"], max_boxes=10)
    assert len(boxes_of(sheet[0].axes[0], dashed=False)) == 10
    assert sheet[0].axes[0].texts[-1].get_text() == "ant 0.48"


def test_arrays_and_empty_lists(tmp_path):
    image = np.random.default_rng(0).integers(0, 255, (3, 30, 50)).astype(np.uint8)
    draw_sheet(tmp_path / "sheet.png", [Picture(image, [], [], np.zeros((0, 4)), [], [])], [])
    assert (tmp_path / "sheet.png").stat().st_size > 1000
