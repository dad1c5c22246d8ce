"""Pascal VOC data sets: an XML file a picture, an element a box.

VOC counts pixels from 1, and its corners are the first and the last pixel: a box covers xmin - 1 to xmax. A box that is
marked as difficult is treated as VOC does: it is not learnt, and finding it or not makes no difference.
"""

import logging
import os
import re
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from rfdetr_train.boxes import xyxy_to_xywh
from rfdetr_train.data.raw_split import NamedBox, RawSplit, split_of_named_boxes
from rfdetr_train.data.reader import (
    PICTURE_ENDINGS,
    SPLIT_NAMES,
    Reader,
    any_case,
    files_below,
    number,
    numbered_lines,
    parse_all,
    pictures_below,
)
from rfdetr_train.errors import UserError, listed

log = logging.getLogger(__name__)

_ANNOTATION_FOLDERS = ("Annotations", "annotations")
_PICTURE_FOLDERS = ("JPEGImages", "images")
_LIST_NAMES = {**SPLIT_NAMES, "train": ("train", "trainval")}


class VocFile(NamedTuple):
    """What an XML file says; an empty name and sizes of 0 where it does not."""

    path: Path
    file_name: str
    size_px: tuple[int, int]
    boxes: list[NamedBox]
    """Their numbers are xmin, ymin, xmax, ymax as written."""


class VocReader(Reader):
    """A split is a list of names in `ImageSets/Main`, or a folder of XML files; `Annotations` alone is train."""

    NAME = "voc"
    LAYOUT = "Annotations, JPEGImages and ImageSets/Main/{split}.txt, or {split}/*.xml beside the pictures"

    def sources(self, split: str) -> list[Path]:
        lists = self.root / "ImageSets" / "Main"
        found = [file for name in _LIST_NAMES[split] if (file := any_case(lists, f"{name}.txt")).is_file()]
        names = SPLIT_NAMES[split] + (_ANNOTATION_FOLDERS if split == "train" and not lists.is_dir() else ())
        folders = dict.fromkeys(any_case(self.root, name) for name in names)
        return found[:1] or [folder for folder in folders if any(files_below(folder, (".xml",)))]

    def read(self, split: str, source: Path) -> RawSplit:
        paths = sorted(files_below(source, (".xml",))) if source.is_dir() else _listed_files(self.root, source)
        files = parse_all(read_file, paths)
        file_names = parse_all(self._picture, files)
        if source.is_dir():
            bare = self._without_file(source, file_names)
            file_names += bare
            files += [VocFile(self.root, name, (0, 0), []) for name in bare]
        sizes_px = self.sizes_px(self.root, file_names, [file.size_px for file in files])
        boxes = [file.boxes for file in files]
        return split_of_named_boxes(
            source, self.root, file_names, sizes_px, boxes, lambda corners, _: xyxy_to_xywh(corners - [1, 1, 0, 0])
        )

    def _without_file(self, source: Path, file_names: list[str]) -> list[str]:
        """The pictures that no XML file is of; as in YOLO's format, there is nothing on them."""
        folders = [self.root / name for name in _PICTURE_FOLDERS if source.name in _ANNOTATION_FOLDERS]
        known = {os.path.splitext(name)[0] for name in file_names}
        names = [os.path.relpath(path, self.root) for folder in (source, *folders) for path in pictures_below(folder)]
        bare = [name for name in names if os.path.splitext(name)[0] not in known]
        if bare:
            log.warning("%s: %d pictures have no XML file, so no boxes: %s", source, len(bare), listed(bare))
        return bare

    def _picture(self, file: VocFile) -> str:
        """The file name, from the root, of the picture with the XML file's name, as VOC has it, or else of its own.

        It may lie beside the XML file, or in a folder beside that of the annotations.
        """
        parts = file.path.parent.relative_to(self.root).parts
        inner = [part for part in parts if part not in _ANNOTATION_FOLDERS]
        replaced = [[top if part in _ANNOTATION_FOLDERS else part for part in parts] for top in _PICTURE_FOLDERS]
        folders = [self.root.joinpath(*parts) for parts in (parts, inner, *reversed(replaced))]
        names = [file.path.stem + ending for ending in PICTURE_ENDINGS] + [file.file_name] * bool(file.file_name)
        missing = folders[-1] / (file.file_name or names[0])  # the check of the pictures tells
        paths = (folder / name for folder in folders for name in names)
        found = next(filter(os.path.isfile, paths), missing)
        _, (name,) = self.locate([self.root], [os.path.relpath(found, self.root)], file.path)
        return name


def _listed_files(root: Path, source: Path) -> list[Path]:
    """The XML files that a list names; a line may go on with 1 or -1, for a class that is there or not."""
    folder = next((root / name for name in _ANNOTATION_FOLDERS if (root / name).is_dir()), root)
    names = {re.sub(r"\s+-?[01]$", "", line) for _, line in numbered_lines(source)}
    outside = [name for name in names if os.path.isabs(name) or ".." in Path(name).parts or "\0" in name]
    if outside:
        raise UserError(f"{source}: {outside[0]!r} leads out of {folder}; list the names of its XML files")
    files = [folder / f"{name}.xml" for name in sorted(names)]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise UserError(f"{source}: names files that do not exist; add them or remove the lines: {listed(missing)}")
    return files


def read_file(path: Path) -> VocFile:
    """Read an XML file. Raises: UserError with file and line."""
    root = _read_xml(path)
    if root.tag != "annotation":
        raise UserError(f"{path}: <{root.tag}> is no <annotation> of Pascal VOC")
    height, width = (int(_number(path, root, f"size/{side}", "0")) for side in ("height", "width"))
    file_name = (root.findtext("filename") or "").strip().replace("\\", "/")
    return VocFile(path, file_name, (height, width), [_box(path, element) for element in root.findall("object")])


def _box(path: Path, element: Element) -> NamedBox:
    line, name = int(element.attrib["line"]), (element.findtext("name") or "").strip()
    if not name:
        raise UserError(f"{path}:{line}: the object has no <name>")
    corners = tuple(_number(path, element, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax"))
    return NamedBox((path, line), name, corners, crowd=_number(path, element, "difficult", "0") != 0)


def _number(path: Path, parent: Element, tags: str, default: str = "") -> float:
    text = (parent.findtext(tags) or "").strip()
    return number(text or default, f"{path}:{parent.attrib['line']}: <{tags}> of <{parent.tag}>")


def _read_xml(path: Path) -> Element:
    """The root element; each carries the line that it begins in as the attribute `line`.

    A document type, in which entities are declared, is refused: a few lines of it can ask for gigabytes, or for files.
    """
    parser, builder = expat.ParserCreate(), TreeBuilder()

    def refuse(*_: object) -> None:
        raise UserError(f"{path}:{parser.CurrentLineNumber}: has a DOCTYPE; VOC files need none: remove it")

    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda tag, _: builder.start(tag, {"line": str(parser.CurrentLineNumber)})
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(path.read_bytes(), True)
    except expat.ExpatError as error:
        raise UserError(f"{path}:{error.lineno}: not valid XML: {expat.ErrorString(error.code)}") from error
    except UserError:
        raise
    except (LookupError, ValueError) as error:
        raise UserError(f"{path}: its encoding cannot be read: {error}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    return builder.close()
