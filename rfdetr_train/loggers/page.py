"""Pages that open offline: templates, figures and pictures all in one file."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rfdetr_train.atomic_file import replacing
from rfdetr_train.loggers.figure import as_svg

JPEG_QUALITY = 82  # of sheets; as PNG they would be most of a page


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Write the page that `template`, a file beside this one, makes of the values; all of them are escaped."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("rfdetr_train.loggers", "."), autoescape=True, trim_blocks=True)
    environment.filters["number"] = _number
    text = environment.get_template(template).render(**values)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "xmlcharrefreplace"))
    return path


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if isinstance(value, int) else "n/a"


def as_figures(draw: Mapping[str, Any], source: Any) -> dict[str, str]:
    """SVG of each function's figure of `source`; those that have nothing to show are left out."""
    figures = {name: function(source) for name, function in draw.items()}
    return {name: as_svg(figure) for name, figure in figures.items() if figure is not None}


def as_jpeg(path: Path) -> str:
    """The picture as a data address."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").save(buffer, "JPEG", quality=JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
