"""Predictions on folders with broken files, large pictures and videos, and the same from Python."""

import json
import logging

import numpy as np
import pytest
import torch
from PIL import Image

import rfdetr_train
from rfdetr_train.cli import compose_config
from rfdetr_train.commands.predict import predict
from rfdetr_train.errors import UserError


@pytest.fixture
def checkpoint(run):
    return run("a", "trainer.epochs=1", "logger.plots=false")


@pytest.fixture
def folder(tmp_path, shapes_root):
    """Two pictures, one of them in a sub-folder, and two files that are none."""
    picture = next(shapes_root.rglob("*.jpg"))
    folder = tmp_path / "pictures [1]"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(picture.read_bytes())
    with Image.open(picture) as image:
        image.resize((90, 60)).save(folder / "sub" / "b.png")
    (folder / "broken.jpg").write_bytes(picture.read_bytes()[:300])
    (folder / "page.png").write_text("<html>")
    (folder / "notes.txt").write_text("no picture")
    return folder


def start(tmp_path, checkpoint, source, *overrides):
    config = compose_config("predict", [f"checkpoint={checkpoint}", f"source='{source}'", *overrides])
    run_dir = tmp_path / "prediction"
    run_dir.mkdir(exist_ok=True)
    predict(config, run_dir)
    return run_dir, json.loads((run_dir / "predictions.json").read_text())


def test_a_folder_with_broken_files(tmp_path, checkpoint, folder, caplog):
    with caplog.at_level(logging.INFO):
        run_dir, content = start(tmp_path, checkpoint, folder, "threshold=0.0", "batch_size=1")
    assert [(p["name"], p["width"], p["height"]) for p in content["pictures"]] == [
        ("a.jpg", 64, 64),
        ("sub/b.png", 90, 60),
    ]
    assert caplog.text.count("skipped: /") == 2
    assert "pictures or frames: 2, files skipped: 2" in caplog.text
    detections = content["pictures"][1]["detections"]
    assert len(detections) == 10  # all queries, at threshold 0
    assert [d["score"] for d in detections] == sorted((d["score"] for d in detections), reverse=True)
    results = json.loads((run_dir / "results.json").read_text())
    assert {result["image_id"] for result in results} == {1, 2}
    x1, y1, x2, y2 = detections[0]["box_xyxy"]
    first = next(result for result in results if result["image_id"] == 2)
    assert first["bbox"] == [x1, y1, x2 - x1, y2 - y1]
    label, *numbers = (run_dir / "labels" / "sub" / "b.txt").read_text().splitlines()[0].split()
    assert int(label) == detections[0]["label"]
    expected = [(x1 + x2) / 180, (y1 + y2) / 120, (x2 - x1) / 90, (y2 - y1) / 60, detections[0]["score"]]
    assert [float(number) for number in numbers] == pytest.approx(expected, abs=1e-6)
    with Image.open(run_dir / "pictures" / "sub" / "b.png") as drawn:
        assert drawn.size == (90, 60)


def test_pictures_above_max_megapixels_are_skipped(tmp_path, checkpoint, folder, caplog):
    start(tmp_path, checkpoint, folder, "max_megapixels=0.005", "draw=false")  # 90x60 has 0.0054, 64x64 0.0041
    assert caplog.text.count("skipped: /") == 3


def test_threshold_classes_and_tiles(tmp_path, checkpoint, folder):
    _, content = start(tmp_path, checkpoint, folder / "a.jpg", "threshold=1.0", "draw=false")
    assert content["pictures"][0]["detections"] == []
    assert not (tmp_path / "prediction" / "pictures").exists()
    _, content = start(tmp_path, checkpoint, folder / "*.jpg", "threshold=0.0", "classes=[square]", "tile_px=40")
    (picture,) = content["pictures"]
    assert {d["class"] for d in picture["detections"]} == {"square"}
    boxes = np.array([d["box_xyxy"] for d in picture["detections"]])
    assert boxes.min() >= 0
    assert boxes.max() <= 64


def test_refusals(tmp_path, checkpoint, folder):
    with pytest.raises(UserError, match="no picture or video there"):
        start(tmp_path, checkpoint, folder / "nothing")
    with pytest.raises(UserError, match="classes=sqare: no class of this detector; it has circle, square, triangle"):
        start(tmp_path, checkpoint, folder, "classes=[sqare]")
    with pytest.raises(UserError, match="none of its 1 files can be read"):
        start(tmp_path, checkpoint, folder / "page.png")


def test_a_video(tmp_path, checkpoint):
    av = pytest.importorskip("av")
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as video:
        stream = video.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for shade in (0, 120, 240):
            video.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), shade, np.uint8), format="rgb24")))
        video.mux(stream.encode())
    run_dir, content = start(tmp_path, checkpoint, path, "threshold=0.0", "batch_size=2")
    assert [picture["frame"] for picture in content["pictures"]] == [0, 1, 2]
    assert sorted(p.name for p in (run_dir / "labels").iterdir()) == [f"clip-{i:06d}.txt" for i in range(3)]
    with av.open(str(run_dir / "pictures" / "clip.mp4")) as drawn:
        frames = list(drawn.decode(video=0))
        assert (len(frames), frames[0].width, frames[0].height) == (3, 64, 48)
        assert drawn.streams.video[0].average_rate == 10


def test_from_python(checkpoint, folder):
    detector = rfdetr_train.RFDETR.from_checkpoint(checkpoint)
    assert detector.names == ("circle", "square", "triangle")
    with Image.open(folder / "a.jpg") as image:
        pixels = np.array(image)
        kinds = [folder / "a.jpg", image, pixels, torch.from_numpy(pixels).permute(2, 0, 1)]
        found = detector.predict(kinds, threshold=0.0)
    assert len(found) == 4
    for one in found[1:]:
        torch.testing.assert_close(one.boxes_xyxy, found[0].boxes_xyxy, rtol=0, atol=1e-4)
    assert found[0].names == tuple(detector.names[label] for label in found[0].labels.tolist())
    (alone,) = detector.predict(folder / "a.jpg", threshold=0.0)
    torch.testing.assert_close(alone.scores, found[0].scores, rtol=0, atol=1e-6)
    with pytest.raises(UserError, match=r"shape \(3, 8, 8\) and type torch.float32"):
        detector.predict(torch.zeros(3, 8, 8))


@pytest.mark.parametrize(("wrong", "message"), [
    ({"threshold": 2}, "threshold=2: give a number from 0.0 to 1.0"), ({"threshold": None}, "threshold=None"),
    ({"batch_size": 0}, "batch_size=0"), ({"tile_px": -3}, "tile_px=-3"), ({"tile_overlap": 1.0}, "tile_overlap=1.0"),
    ({"classes": "circle"}, "classes=circle: give a list"),
])  # fmt: skip
def test_from_python_what_makes_no_sense_is_refused(checkpoint, folder, wrong, message):
    with pytest.raises(UserError, match=message):
        rfdetr_train.RFDETR.from_checkpoint(checkpoint).predict(folder / "a.jpg", **wrong)


def test_a_pil_image_is_turned_upright_like_its_file(checkpoint, folder):
    with Image.open(folder / "a.jpg") as image:
        exif = image.getexif()
        exif[0x0112] = 6
        image.resize((60, 90)).save(folder / "turned.jpg", exif=exif)
    detector = rfdetr_train.RFDETR.from_checkpoint(checkpoint)
    with Image.open(folder / "turned.jpg") as image:
        of_file, of_image = detector.predict([folder / "turned.jpg", image], threshold=0.0)
    torch.testing.assert_close(of_file.boxes_xyxy, of_image.boxes_xyxy, rtol=0, atol=1e-4)
    assert of_file.boxes_xyxy[:, 2].max() > 60  # 90 wide


def test_pictures_of_one_name_keep_their_labels(tmp_path, checkpoint, folder, caplog):
    with Image.open(folder / "a.jpg") as image:
        image.save(folder / "a.png")
    run_dir, _ = start(tmp_path, checkpoint, folder / "a.*", "threshold=0.0")
    assert sorted(path.name for path in (run_dir / "labels").iterdir()) == ["a.png.txt", "a.txt"]
    assert sorted(path.name for path in (run_dir / "pictures").iterdir()) == ["a.jpg", "a.png"]
    assert "another picture has its name" in caplog.text


def test_supervision(checkpoint, folder):
    supervision = pytest.importorskip("supervision")
    (found,) = rfdetr_train.RFDETR.from_checkpoint(checkpoint).predict(folder / "a.jpg", threshold=0.0)
    converted = found.to_supervision()
    assert isinstance(converted, supervision.Detections)
    assert converted.xyxy.tolist() == found.boxes_xyxy.tolist()
    assert tuple(converted.data["class_name"]) == found.names
