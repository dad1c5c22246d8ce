"""The README's map is the tree, and every path that it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def files_of_the_map() -> set[str]:
    tree = next(block for block in README.split("```") if block.lstrip().startswith("conf/"))
    files, folder = set(), ""
    for line in tree.strip().splitlines():
        name = line.split()[0]
        if name.endswith("/"):
            folder = name
        else:
            files.add(folder + name)
    return files


def test_the_map_names_every_module_and_script_and_nothing_else() -> None:
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("rfdetr_train/**/*.py") if path.name != "__init__.py"}
    scripts = {str(path.relative_to(ROOT)) for path in ROOT.glob("scripts/*") if path.is_file()}
    assert files_of_the_map() == modules | scripts


def test_every_file_to_open_exists() -> None:
    table = [line for line in README.splitlines() if line.startswith("| ") and "`rfdetr_train/" in line]
    named = [path for line in table for path in re.findall(r"`((?:rfdetr_train|conf|scripts)/[^`]*)`", line)]
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []
