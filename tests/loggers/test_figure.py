"""Names in pictures: any Unicode, without a warning, and never two alike."""

import numpy as np
import pytest
from PIL import Image

from rfdetr_train.loggers.figure import OWN_FAMILY, drawable, families, new_figure, save_figure


def test_plain_names_stay():
    for name in ("cat", "Größe é", "кошка", "price $x$", "a_b-c"):
        assert drawable(name, 3) == name
        assert families(name) == [OWN_FAMILY]


def test_long_names_are_cut():
    assert drawable("a" * 24, 0) == "a" * 24
    assert drawable("a" * 30, 0) == "a" * 23 + "…"
    assert drawable("a very long class name that goes on", 0, longest=7) == "a very…"


def test_control_characters_and_spaces():
    assert drawable("two\nlines\tand\x00 more", 0) == "two lines and more"


@pytest.mark.parametrize(
    ("name", "shown"), [("\U000f0000", "#7"), ("a\U000f0000b", "#7 ab"), ("", "#7"), (" \n", "#7"), ("\ud800", "#7")]
)
def test_what_no_font_has_is_named_by_number(name, shown):
    """Private-use characters have no glyph anywhere."""
    assert drawable(name, 7) == shown


@pytest.mark.parametrize("name", ["数据 集", "حصان", "नमस्ते", "\U0001f600", "日本", "é\u0301", "\ud800"])
def test_drawn_without_a_warning(tmp_path, name):
    """Warnings are errors here; whether fonts for the name exist depends on the machine."""
    figure = new_figure(200, 100)
    shown = drawable(name, 1)
    figure.text(0.1, 0.5, shown, fontfamily=families(shown), parse_math=False)
    save_figure(figure, tmp_path / "new" / "name.png")
    with Image.open(tmp_path / "new" / "name.png") as image:
        assert image.size == (200, 100)
        assert np.asarray(image.convert("L")).min() < 100  # something dark is on the white
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["name.png"]
