"""Random annotation files: a right data set or a refusal, never another exception.

RFDETR_TRAIN_EXAMPLES=10000 looks at as many files of each format, other ones each time.
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rfdetr_train.config import DataConfig
from rfdetr_train.data.dataset import read_dataset, read_raw
from rfdetr_train.data.reader import UNKNOWN_SIZE_PX
from rfdetr_train.errors import UserError

EXAMPLES = int(os.environ.get("RFDETR_TRAIN_EXAMPLES", "100"))
SIZES = {"a.png": (100, 80), "b c.png": (33, 57), "ü,=.png": (1, 1)}  # width, height
NAMES = ["cat", "dog", "no", "é ü", "1"]
outcomes: dict[str, int] = {}

fuzz = settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=EXAMPLES == 100)
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([10**400, 2**63, -1, "", "..", "a\0", "\ud800", "../../x.png", "/etc/hostname", "x" * 300, [], {}]),
    st.lists(st.integers() | st.text(max_size=2), max_size=3),
    st.dictionaries(st.sampled_from(["size", "counts", "image_id", "0"]), st.integers() | st.lists(st.integers())),
)
coordinate = st.one_of(st.integers(-20, 130), st.floats(-20, 130), st.just(0), st.sampled_from([100, 80, 1e-12, 1e9]))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for name, size in SIZES.items():
        Image.new("RGB", size).save(folder / name)
    (folder / "broken.png").write_bytes(b"x")
    return folder


def check(name: str, pictures: Path, write: Callable[[Path], None]) -> None:
    """Read what `write` writes beside linked pictures."""
    with tempfile.TemporaryDirectory(dir=pictures) as folder:
        root = Path(folder)
        (root / "train").mkdir()
        for picture in pictures.glob("*.png"):
            (root / "train" / picture.name).symlink_to(picture)
        write(root)
        config = DataConfig(name=name, root=folder, format=name, allow_outside_root=True)
        try:
            dataset = read_dataset(config, ("train",))
            raw = read_raw(config, "train")
            outcome = "read"
            check_split(dataset.splits["train"], raw)
        except UserError:
            outcome = "refused"
    outcomes[f"{name} {outcome}"] = outcomes.get(f"{name} {outcome}", 0) + 1


def check_split(split, raw) -> None:
    counts = np.diff(split.offsets)
    assert (counts >= 0).all()
    assert len(raw.boxes_xywh) == len(split.labels) + sum(split.dropped.values())
    assert split.offsets[0] == 0
    assert split.offsets[-1] == len(split.labels) > 0
    corners, limits = split.boxes_xywh.copy(), np.repeat(split.sizes_px[:, ::-1], counts, axis=0)
    corners[:, 2:] += corners[:, :2]
    assert (split.boxes_xywh[:, :2] >= 0).all()
    assert (split.boxes_xywh[:, 2:] > 0).all()
    assert (corners[:, 2:] <= limits * (1 + 1e-12)).all()
    assert ((split.labels >= 0) & (split.labels < len(split.label_map.names))).all()
    assert (split.areas > 0).all()
    assert list(split.label_map.category_ids) == sorted(set(split.label_map.category_ids))
    assert len({name.encode() for name in split.label_map.names}) == len(split.label_map.names)
    for index in range(len(split)):
        record = split.record(index)
        assert (record.boxes_xyxy[:, 2:] > record.boxes_xyxy[:, :2]).all()
        assert record.size_px != UNKNOWN_SIZE_PX or record.path.name not in SIZES
    truth = split.to_coco()
    assert len(truth["annotations"]) == len(split.labels)


def some(draw, good: st.SearchStrategy, rate: int) -> object:
    """A value of `good`, or now and then junk; `rate` 0 means never."""
    return draw(junk if rate and draw(st.integers(0, rate)) == 0 else good)


@st.composite
def coco_files(draw) -> bytes:
    rate = draw(st.sampled_from([0, 0, 60, 10]))
    ids = draw(st.lists(st.integers(-3, 9), unique=True, min_size=rate == 0, max_size=4))
    category_ids = draw(st.lists(st.integers(-1, 4), unique=True, min_size=rate == 0, max_size=3))
    polygon = st.lists(coordinate, min_size=6, max_size=6).map(lambda points: [points])
    codes = [[8000], [0, 8000], [5, 95, 7900], "PPYo1", "?", "`"] if rate == 10 else [[5, 95, 7900]]
    runs = st.sampled_from([{"size": [80, 100], "counts": code} for code in codes])
    images = [
        {
            "id": some(draw, st.just(image_id), rate),
            "file_name": some(draw, st.sampled_from([*SIZES, "broken.png", "gone.png"]), rate),
            **({} if draw(st.booleans()) else {"width": some(draw, st.integers(1, 120), rate)}),
            "height": some(draw, st.integers(1, 120), rate),
        }
        for image_id in ids
    ]
    annotations = [
        {
            "image_id": some(draw, st.sampled_from([*ids, *ids, *ids, 77]), rate),
            "category_id": some(draw, st.sampled_from(category_ids or [5]), rate),
            "bbox": some(draw, st.lists(coordinate, min_size=4, max_size=4) | st.none(), rate),
            "segmentation": some(draw, polygon | runs if rate == 10 else polygon, rate),
            **({"id": some(draw, st.integers(0, 5), rate)} if draw(st.booleans()) else {}),
            **({"area": some(draw, coordinate, rate)} if draw(st.booleans()) else {}),
            **({"iscrowd": some(draw, st.integers(0, 1), rate)} if draw(st.booleans()) else {}),
        }
        for _ in range(draw(st.integers(2, 6)))
    ]
    categories = [
        {
            "id": some(draw, st.just(category_id), rate),
            "name": some(draw, st.just(f"class {category_id}") if rate < 10 else st.sampled_from(NAMES), rate),
            "supercategory": some(draw, st.sampled_from(["none", "class 1", None]), rate),
        }
        for category_id in category_ids
    ]
    content = {"images": images, "annotations": annotations, "categories": categories}
    if rate == 10 and draw(st.booleans()):
        content[draw(st.sampled_from(list(content)))] = draw(junk)
    text = json.dumps(content).encode()
    return text[: draw(st.integers(0, len(text)))] if rate == 10 and draw(st.integers(0, 3)) == 0 else text


@fuzz
@given(content=coco_files())
def test_coco(pictures, content):
    check("coco", pictures, lambda root: (root / "train" / "_annotations.coco.json").write_bytes(content) and None)


fraction = st.floats(0, 1).map(repr) | st.sampled_from(["0", "1", ".5", "1.0004", "-0.001"])
word = st.one_of(
    st.text(max_size=6), st.sampled_from(["nan", "inf", "1e999", "1_0", "٣", "9" * 5000, "0x1", "-", "1,5"])
)
wild = st.binary(max_size=40)


@st.composite
def yolo_files(draw) -> tuple[bytes, list[bytes], bytes]:
    rate = draw(st.sampled_from([0, 0, 40, 8]))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=rate == 0))
    keys = draw(st.permutations(range(len(names))))
    table = {
        "names": some(draw, st.sampled_from([names, {k: names[k] for k in keys}]), rate),
        "nc": some(draw, st.just(len(names)), rate),
        "path": some(draw, st.sampled_from([".", "", "gone"]), rate),
        "train": some(draw, st.sampled_from(["train", ["train"], "../train", "list.txt"]), rate),
    }
    content = json.dumps(table, ensure_ascii=draw(st.booleans())).encode("utf-8", "replace")
    labels = []
    for _ in SIZES:
        lines = []
        for _ in range(draw(st.integers(0, 3))):
            length = draw(st.sampled_from([4, 4, 4, 6, 8])) if not rate else draw(st.integers(0, 9))
            fields = [draw(st.integers(0, len(names) - 1).map(str)), *(draw(fraction) for _ in range(length))]
            if rate and draw(st.integers(0, rate)) == 0:
                fields[draw(st.integers(0, length))] = draw(word)
            lines.append(" ".join(fields))
        labels.append(draw(st.sampled_from(["\n", "\r\n", "\n\n"])).join(lines).encode("utf-8", "surrogatepass"))
    if rate == 8:
        content, labels[0] = draw(st.just(content) | wild), draw(st.just(labels[0]) | wild)
    listed = [f"train/{name}".encode() for name in SIZES]
    if rate == 8 and draw(st.booleans()):
        listed.append(draw(st.sampled_from([b".", b"..", b"/", b"images/.png", b"a\0", b"\xff", b"images\\x"]) | wild))
    return content, labels, b"\n".join(listed)


@fuzz
@given(files=yolo_files())
def test_yolo(pictures, files):
    def write(root: Path) -> None:
        (root / "data.yaml").write_bytes(files[0])
        (root / "list.txt").write_bytes(files[2])
        for name, text in zip(SIZES, files[1], strict=True):
            (root / "train" / name).with_suffix(".txt").write_bytes(text)

    check("yolo", pictures, write)


@st.composite
def voc_files(draw) -> list[bytes]:
    rate = draw(st.sampled_from([0, 0, 30, 8]))

    def element(tag: str, good: st.SearchStrategy) -> str:
        if rate and draw(st.integers(0, rate)) == 0:
            return draw(st.sampled_from(["", f"<{tag}/>", f"<{tag}>", f"<{tag}>{draw(word)}</{tag}>", "<!-- -->"]))
        return f"<{tag}>{draw(good)}</{tag}>"

    files = []
    for picture in SIZES:
        objects = [
            "<object>"
            + element("name", st.sampled_from(NAMES))
            + (element("difficult", st.integers(0, 1)) if draw(st.booleans()) else "")
            + "<bndbox>" + "".join(element(tag, coordinate) for tag in ("xmin", "ymin", "xmax", "ymax")) + "</bndbox>"
            + "</object>"
            for _ in range(draw(st.integers(0, 3)))
        ]  # fmt: skip
        size = "".join(element(tag, st.integers(0, 120)) for tag in ("width", "height")) if draw(st.booleans()) else ""
        head = element("filename", st.sampled_from([picture, "gone.png", "broken.png"])) + f"<size>{size}</size>"
        text = f"<annotation>{head}{''.join(objects)}</annotation>".encode("utf-8", "replace")
        files.append(draw(st.just(text) | wild) if rate == 8 else text)
    return files


@fuzz
@given(files=voc_files())
def test_voc(pictures, files):
    def write(root: Path) -> None:
        for name, text in zip(SIZES, files, strict=True):
            (root / "train" / name).with_suffix(".xml").write_bytes(text)

    check("voc", pictures, write)


@st.composite
def csv_files(draw) -> bytes:
    rate = draw(st.sampled_from([0, 0, 40, 8]))
    columns = ["image", "x1", "y1", "x2", "y2", "class"]
    order = draw(st.permutations(columns)) if draw(st.booleans()) else None
    delimiter = draw(st.sampled_from([",", ";", "\t"]))
    rows = [order] if order else []
    for _ in range(draw(st.integers(0, 5))):
        picture, empty = draw(st.sampled_from([*SIZES, "gone.png", "broken.png"])), draw(st.integers(0, 4)) == 0
        cells = [
            f'"{picture}"',
            *([""] * 5 if empty else [*(str(draw(coordinate)) for _ in range(4)), draw(st.sampled_from(NAMES))]),
        ]
        if rate and draw(st.integers(0, rate // 4)) == 0:
            cells[draw(st.integers(0, 5))] = draw(word)
            cells = cells[: draw(st.integers(1, 6))]
        rows.append([cells[columns.index(c)] for c in order] if order and len(cells) == 6 else cells)
    text = "\n".join(delimiter.join(row) for row in rows).encode("utf-8", "replace")
    return draw(st.just(text) | wild) if rate == 8 else text


@fuzz
@given(content=csv_files())
def test_csv(pictures, content):
    check("csv", pictures, lambda root: (root / "train.csv").write_bytes(content) and None)


def test_both_outcomes_were_met():
    """Else the files above prove nothing.

    Hypothesis also draws constants of the modules that are loaded, so the counts depend a little on what ran before.
    """
    for name in {key.split()[0] for key in outcomes}:
        for outcome in ("read", "refused"):
            assert outcomes[f"{name} {outcome}"] >= EXAMPLES / 20, outcomes
