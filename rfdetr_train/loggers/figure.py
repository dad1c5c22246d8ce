"""Figures without pyplot: nothing global, no window, and no glyph that the fonts lack.

matplotlib is imported inside the functions of this package's drawing modules, since it takes longer to import than
a refused config may take to answer; its types are taken from here.
"""

import functools
import io
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rfdetr_train.atomic_file import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.text import Text
else:
    Axes = Figure = Text = Any

DOTS_PER_INCH = 100
GRID_COLOUR = "#e3e6ea"
PALETTE = ("#1971c2", "#e8590c", "#2f9e44", "#c2255c", "#7048e8", "#0c8599", "#8d5524", "#868e96", "#828a00")
OWN_FAMILY = "DejaVu Sans"  # comes with matplotlib, so it is always there


def new_figure(width_px: float, height_px: float) -> Figure:
    """An empty figure whose saved picture has this size and whose parts make room for each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size_inches = (width_px / DOTS_PER_INCH, height_px / DOTS_PER_INCH)
    figure = Figure(figsize=size_inches, dpi=DOTS_PER_INCH, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)  # text can be measured
    return figure


def style_axes(axes: Axes, title: str, across: str, up: str, **limits: Any) -> None:
    """A title, names of both directions, a light grid and no box."""
    axes.grid(True, color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set(xlabel=across, ylabel=up, **limits)


def take_literally(texts: Iterable[Text]) -> None:
    """Texts that are names: no formulas, and from every font that has some of their glyphs."""
    for text in texts:
        text.set_parse_math(False)
        text.set_fontfamily(families(text.get_text()))


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG atomically: it may be looked at while the run goes on."""
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH)


def as_svg(figure: Figure) -> str:
    """The figure as an SVG element for a page: ink and grid take the page's colours, light or dark."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for ink in ("#000000", "#111111", "#262626"):
        svg = svg.replace(f"stroke: {ink}", "stroke: currentColor").replace(f"fill: {ink}", "fill: currentColor")
    return svg.replace(f"stroke: {GRID_COLOUR}", "stroke: var(--grid)")


def drawable(name: str, number: int, longest: int = 24) -> str:
    """A class name as the installed fonts can show it, cut to `longest` characters.

    Characters without a glyph are left out and the class number put in front, so that two such names stay distinct.
    """
    text = " ".join("".join(" " if unicodedata.category(c) == "Cc" else c for c in name).split())
    shown = "".join(c for c in text if _family_of(c) is not None)
    if shown != text or not shown:
        shown = f"#{number} {' '.join(shown.split())}".strip()
    return shown if len(shown) <= longest else shown[: longest - 1].rstrip() + "…"


def families(text: str) -> list[str]:
    """Font families that together have every glyph of a drawable text."""
    return list(dict.fromkeys([OWN_FAMILY, *(family for c in text if (family := _family_of(c)) is not None)]))


def font_file(text: str) -> str:
    """A font file for a drawable text: matplotlib's own, or the one that has the first glyph which that lacks."""
    from matplotlib.font_manager import findfont

    return findfont(families(text)[-1])


@functools.cache
def _family_of(character: str) -> str | None:
    """The first family with a glyph for the character; None where no font has it."""
    if ord(character) in _characters_of_own_family():
        return OWN_FAMILY
    return next((name for name, characters in _other_fonts() if ord(character) in characters), None)


@functools.cache
def _characters_of_own_family() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(OWN_FAMILY)).get_charmap())


@functools.cache
def _other_fonts() -> list[tuple[str, frozenset[int]]]:
    """Family and characters of each other upright font that matplotlib can draw."""
    from matplotlib.font_manager import fontManager, get_font

    fonts = {}
    for entry in sorted(fontManager.ttflist, key=lambda entry: (entry.name, entry.fname)):
        upright = entry.style == "normal" and entry.weight in (400, "normal", "regular")
        if upright and entry.name not in fonts and not entry.name.startswith("Last Resort"):  # its glyphs are all boxes
            try:
                fonts[entry.name] = frozenset(get_font(entry.fname).get_charmap())
            except (RuntimeError, OSError):  # bitmap fonts, and files that are gone since the list was made
                continue
    return list(fonts.items())
