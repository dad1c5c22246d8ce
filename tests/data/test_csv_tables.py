"""CSV files: columns, separators, splits, faults."""

import pytest

from rfdetr_train.data.csv_tables import read_lines
from rfdetr_train.errors import UserError

PLAIN = "a.png,10,10,40,30,cell\nb.png,,,,,\n"


@pytest.fixture
def write_csv(write_picture):
    """Write a data set: `{file: text}` and the pictures that the test names."""

    def write(root, files: dict[str, str], pictures=("a.png", "b.png")) -> None:
        for file, text in files.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(text.encode())
        for picture in pictures:
            write_picture(root / picture)

    return write


def lines_of(tmp_path, text: str) -> list:
    (tmp_path / "x.csv").write_bytes(text.encode())
    return [
        (line.image, line.split, *[(b.name, b.numbers) for b in line.boxes]) for line in read_lines(tmp_path / "x.csv")
    ]


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        f"\ufeff{PLAIN}".replace("\n", "\r\n"),
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        f"image,x1,y1,x2,y2,class\n{PLAIN}",
        "filename,width,height,class,xmin,ymin,xmax,ymax\na.png,100,100,cell,10,10,40,30\nb.png,100,100,,,,,\n",
        'Label, Image_Path, X_Max, Y_Max, X_Min, Y_Min\n\n"cell","a.png",40.0,3e1,10,10\n,b.png,,,,\n,,,,,\n',
        "a.png,10,10,40,30,cell,train\nb.png,,,,,,TRAINING\n",
    ],
)
def test_spellings(tmp_path, text):
    assert lines_of(tmp_path, text) == [("a.png", "train", ("cell", (10, 10, 40, 30))), ("b.png", "train")]


def test_quoted_names_and_commas(tmp_path):
    assert lines_of(tmp_path, '"a,b=c ""1"".png",1,2,3,4,"red, blood"\n')[0] == (
        'a,b=c "1".png', "train", ("red, blood", (1, 2, 3, 4)),
    )  # fmt: skip


IN_FOLDERS = {split: [f"{split}/{name}.png" for name in "ab"] for split in ("train", "valid", "val")}
WITH_SPLIT = "image,x1,y1,x2,y2,class,split\n" + PLAIN.replace("\n", ",train\n") + PLAIN.replace("\n", ",validation\n")


@pytest.mark.parametrize(
    ("files", "pictures"),
    [
        ({"train.csv": PLAIN, "valid.csv": PLAIN}, ["a.png", "b.png"]),
        ({"train.csv": PLAIN, "val.csv": PLAIN}, ["images/a.png", "images/b.png"]),
        ({"train.csv": PLAIN, "valid.csv": PLAIN}, IN_FOLDERS["train"] + IN_FOLDERS["valid"]),
        ({f"{split}/_annotations.csv": PLAIN for split in ("train", "val")}, IN_FOLDERS["train"] + IN_FOLDERS["val"]),
        ({"annotations.csv": WITH_SPLIT}, ["a.png", "b.png"]),
    ],
)
def test_layouts(tmp_path, write_csv, read, files, pictures):
    write_csv(tmp_path, files, pictures)
    for split in read(tmp_path).splits.values():
        assert [split.path(i).name for i in range(len(split))] == ["a.png", "b.png"]
        assert all(split.path(i).is_file() for i in range(2))
        assert split.boxes_xywh.tolist() == [[10, 10, 30, 20]]
        assert split.sizes_px.tolist() == [[100, 100]] * 2


def test_one_file_without_splits_is_train(tmp_path, write_csv, read):
    write_csv(tmp_path, {"labels.csv": PLAIN})
    with pytest.raises(UserError, match="no valid split"):
        read(tmp_path)
    assert [len(split) for split in read(tmp_path, valid_fraction=0.5).splits.values()] == [1, 1]


def test_ids_follow_the_order_of_names_whatever_that_of_lines(tmp_path, write_csv, read):
    train = "b.png,1,1,9,9,wolf\na.png,1,1,9,9,ant\nb.png,20,20,30,30,bee\n"
    write_csv(tmp_path, {"train.csv": train, "valid.csv": "a.png,1,1,9,9,wolf\n"})
    dataset = read(tmp_path)
    assert dataset.label_map == ((1, 2, 3), ("ant", "bee", "wolf"))
    assert dataset.splits["train"].labels.tolist() == [0, 2, 1]
    assert dataset.splits["valid"].labels.tolist() == [2]


def test_degenerate_boxes_are_named_by_line(tmp_path, write_csv, read, caplog):
    write_csv(tmp_path, {"train.csv": f"{PLAIN}a.png,50,50,50,60,cell\na.png,60,60,50,70,cell\n", "valid.csv": PLAIN})
    assert read(tmp_path).dropped["train"] == {"degenerate_boxes": 2}
    assert f"{tmp_path}/train.csv:3, {tmp_path}/train.csv:4" in caplog.text


def test_windows_paths(tmp_path, write_csv, read):
    write_csv(
        tmp_path, {"train.csv": "images\\a.png,1,1,9,9,cell\n", "valid.csv": "images\\a.png,,,,,\n"}, ("images/a.png",)
    )
    assert read(tmp_path).splits["train"].path(0).is_file()


def test_paths_out_of_the_root(tmp_path, write_csv, read):
    write_csv(tmp_path / "set", {"train.csv": "../a.png,1,1,9,9,cell\n", "valid.csv": PLAIN})
    with pytest.raises(UserError, match="leads out of"):
        read(tmp_path / "set")


def test_fractions_are_refused(tmp_path, write_csv, read):
    write_csv(tmp_path, {"train.csv": "a.png,0.1,0.1,0.9,1,cell\n", "valid.csv": PLAIN})
    with pytest.raises(UserError, match=r"train\.csv: no corner lies beyond 1"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png,1,1,9,9\n", ":1: must have image"),
        (",1,1,9,9,cell\n", ":1: must have image"),
        ("image,class,y2,x2,y1,x1\na.png,cell,9,9,1\n", ":2: must have image"),
        ("a.png,1,1,9,nan,cell\n", ":1: y2 must be a number, not 'nan'"),
        ("a.png,1,1,9,,cell\n", ":1: y2 must be a number, not ''"),
        (f"{PLAIN}a.png,x,1,9,9,cell\n", ":3: x1 must be a number, not 'x'"),
        ("a.png,1,1,9,9,\n", ":1: the box has no class"),
        ("a.png,1,1,9,9,cell,holdout\n", ":1: split 'holdout' is none of"),
        ("image,x1,y1,x2,class\na.png,1,1,9,cell\n", ":1: the header must name"),
        ("picture,left,top,right,bottom,what\n", ":1: x1 must be a number, not 'left'"),
        ("image,x1,y1,x2,y2,class\na.png,1,1,9,9,cat, black\n", ":2: 7 cells for 6 columns"),
        ("a.png,1,1,9,9,cell,train\na.png,1,1,9,9,cell,\n", ":2: split '' is none of"),
        ('"a' + "x" * 200_000, ":1: not valid CSV"),
        ("\n\na.png,1,1,9,9,\n", ":3: the box has no class"),
    ],
)
def test_faults(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        lines_of(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "x.csv"))


def test_an_empty_file(tmp_path, write_csv, read):
    write_csv(tmp_path, {"train.csv": "", "valid.csv": PLAIN})
    with pytest.raises(UserError, match="the train split has no pictures"):
        read(tmp_path)


def test_width_and_height_are_the_annotated_size(tmp_path, write_csv, read):
    head = "filename,width,height,class,xmin,ymin,xmax,ymax\n"
    write_csv(tmp_path, {"train.csv": f"{head}a.png,200,50,cell,10,10,40,30\nb.png,,,,,,,\n", "valid.csv": PLAIN})
    assert read(tmp_path).splits["train"].sizes_px.tolist() == [[50, 200], [100, 100]]
    (tmp_path / "train.csv").write_text(f"{head}a.png,200,50,cell,10,10,40,30\na.png,50,50,cell,10,10,40,30\n")
    with pytest.raises(UserError, match=r"a\.png has lines of different width or height"):
        read(tmp_path)


def test_two_spellings_of_a_file_are_one_picture(tmp_path, write_csv, read):
    write_csv(tmp_path, {"train.csv": "a.png,1,1,9,9,cell\n./a.png,20,20,30,30,cell\n", "valid.csv": PLAIN})
    assert read(tmp_path).splits["train"].boxes_xywh.tolist() == [[1, 1, 8, 8], [20, 20, 10, 10]]
    assert len(read(tmp_path).splits["train"]) == 1


def test_difficult_boxes_are_no_targets(tmp_path, write_csv, read):
    head = "image,x1,y1,x2,y2,class,difficult\n"
    write_csv(tmp_path, {"train.csv": f"{head}a.png,1,1,9,9,cell,1\na.png,2,2,9,9,cell,0\n", "valid.csv": PLAIN})
    assert read(tmp_path).splits["train"].crowd.tolist() == [True, False]
