"""`python -m rfdetr_train predict`: what a trained detector finds in pictures and videos."""

import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rfdetr_train.allocator import keep_freed_memory
from rfdetr_train.config import PredictConfig
from rfdetr_train.data.sources import VIDEO_SUFFIXES, Source, find_files, import_av, read_sources
from rfdetr_train.engine.detector import Detections, Detector
from rfdetr_train.engine.signals import StopSignals
from rfdetr_train.errors import UserError
from rfdetr_train.evaluation.predictions import Predictions
from rfdetr_train.loggers import progress
from rfdetr_train.loggers.console import print_table
from rfdetr_train.loggers.files import write_json
from rfdetr_train.loggers.sheet import draw_boxes

log = logging.getLogger(__name__)

SAVED_SUFFIXES = (".jpg", ".jpeg", ".png")
"""A drawn picture keeps its name; of other formats it becomes a JPEG."""


def predict(config: PredictConfig, run_dir: Path) -> None:
    """Write pictures, predictions.json, results.json (COCO) and labels/*.txt (YOLO) into `run_dir`."""
    root, files = find_files(config.source)
    if any(path.suffix.lower() in VIDEO_SUFFIXES for path in files):
        import_av()
    detector = Detector.from_checkpoint(config.checkpoint, config.weights, config.device, config.precision)
    if detector.precision.device.type == "cpu":
        keep_freed_memory()
    skipped: list[str] = []
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals("finishing the batch"))
        counter = stack.enter_context(progress.Counter("predicting"))
        writer = stack.enter_context(ResultWriter(run_dir, detector, config.draw))
        stack.enter_context(detector.precision.kept_casts())
        sources = _readable(read_sources(root, files, config.max_megapixels), skipped)
        while batch := list(islice(sources, config.batch_size)):
            found = detector.predict(
                [source.image for source in batch],
                threshold=config.threshold,
                classes=config.classes,
                batch_size=config.batch_size,
                tile_px=config.tile_px,
                tile_overlap=config.tile_overlap,
            )
            for source, detections in zip(batch, found, strict=True):
                writer.add(source, detections)
            counter.show(len(writer.pictures), len(files) if len(writer.pictures) <= len(files) else None)
            if signals.received is not None:
                log.warning("interrupted after %d pictures; run folder: %s", len(writer.pictures), run_dir)
            signals.raise_if_received()
    if not writer.pictures:
        raise UserError(
            f"source={config.source}: none of its {len(files)} files can be read:\n  " + "\n  ".join(skipped)
        )
    _show(writer, skipped, run_dir)


def _readable(sources: Iterator[Source | UserError], skipped: list[str]) -> Iterator[Source]:
    """Pass over what cannot be read, say so, and keep count."""
    for source in sources:
        if isinstance(source, UserError):
            log.warning("skipped: %s", source)
            skipped.append(str(source))
        else:
            yield source


def _show(writer: "ResultWriter", skipped: list[str], run_dir: Path) -> None:
    if not writer.counts:
        log.warning("nothing was found; lower threshold?")
    print_table("found", ["class", "detections"], writer.counts.most_common())
    log.info("pictures or frames: %d, files skipped: %d", len(writer.pictures), len(skipped))
    log.info("run folder: %s", run_dir)


class ResultWriter:
    """Writes each picture's results as they come, and the files about all of them at the end."""

    def __init__(self, run_dir: Path, detector: Detector, draw: bool) -> None:
        self.run_dir = run_dir
        self.detector = detector
        self.draw = draw
        self.pictures: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()
        self._found: dict[int, dict[str, Any]] = {}
        self._video: VideoWriter | None = None
        self._label_files: set[Path] = set()

    def __enter__(self) -> "ResultWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self._close_video()
        names = self.detector.names
        write_json(self.run_dir / "predictions.json", {"classes": list(names), "pictures": self.pictures})
        results = Predictions.from_detections(self._found, self.detector.label_map).to_results()
        (self.run_dir / "results.json").write_text(json.dumps(results), encoding="utf-8")

    def add(self, source: Source, found: Detections) -> None:
        """The detections of one picture or frame."""
        height, width = source.image.shape[1:]
        rows = zip(found.names, found.labels.tolist(), found.scores.tolist(), found.boxes_xyxy.tolist(), strict=True)
        self.pictures.append({
            "image_id": len(self.pictures) + 1,
            "name": source.name,
            "path": str(source.path),
            **({} if source.frame is None else {"frame": source.frame}),
            "width": width,
            "height": height,
            "detections": [
                {"class": name, "label": label, "score": score, "box_xyxy": box} for name, label, score, box in rows
            ],
        })  # fmt: skip
        columns = {"boxes_xyxy": found.boxes_xyxy, "scores": found.scores, "labels": found.labels}
        self._found[len(self.pictures)] = columns
        self.counts.update(found.names)
        self._write_labels(source, found, (height, width))
        if self.draw:
            self._write_picture(source, found)

    def _write_labels(self, source: Source, found: Detections, size_px: tuple[int, int]) -> None:
        """YOLO's lines: label, centre and size as fractions of the picture, score."""
        height, width = size_px
        boxes = found.boxes_xyxy.double().numpy() / [width, height, width, height]
        centres, sizes = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
        rows = np.column_stack([centres, sizes, found.scores.numpy()])
        lines = [f"{label} " + " ".join(f"{value:.6f}" for value in row)
                 for label, row in zip(found.labels.tolist(), rows, strict=True)]  # fmt: skip
        frame = "" if source.frame is None else f"-{source.frame:06d}"
        path = self.run_dir / "labels" / f"{Path(source.name).with_suffix('').as_posix()}{frame}.txt"
        if path in self._label_files:  # a.jpg and a.png
            path = path.with_name(f"{Path(source.name).name}{frame}.txt")
            log.warning("%s: another picture has its name; its labels are in %s", source.path, path.name)
        self._label_files.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def _write_picture(self, source: Source, found: Detections) -> None:
        names = self.detector.names
        drawn = draw_boxes(source.image, found.boxes_xyxy, found.labels, found.scores, names)
        target = self.run_dir / "pictures" / source.name
        if source.frame is None:
            target.parent.mkdir(parents=True, exist_ok=True)
            drawn.save(target if target.suffix.lower() in SAVED_SUFFIXES else target.with_name(f"{target.name}.jpg"))
            return
        if self._video is None or source.frame == 0:
            self._close_video()
            self._video = VideoWriter(target.with_suffix(".mp4"), source.path)
        self._video.add(np.asarray(drawn))

    def _close_video(self) -> None:
        if self._video is not None:
            self._video.close()
            self._video = None


class VideoWriter:
    """The drawn frames of a video, at its own rate, as MPEG-4."""

    def __init__(self, path: Path, like: Path) -> None:
        av = import_av()
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(like)) as source:
            rate = source.streams.video[0].average_rate or 25
        self.path = path
        self._frame = av.VideoFrame
        self._file = av.open(str(path), "w")
        self._stream = self._file.add_stream("mpeg4", rate=rate)
        self._stream.pix_fmt = "yuv420p"
        self._stream.bit_rate = 8_000_000
        self._is_new = True

    def add(self, pixels: np.ndarray) -> None:
        """One frame, uint8 (height, width, 3), RGB; the last row and column of odd sizes are cut off."""
        height, width = (side // 2 * 2 for side in pixels.shape[:2])
        if self._is_new:
            self._stream.width, self._stream.height, self._is_new = width, height, False
        frame = self._frame.from_ndarray(np.ascontiguousarray(pixels[:height, :width]), format="rgb24")
        self._file.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Write what is left."""
        if not self._is_new:
            self._file.mux(self._stream.encode())
        self._file.close()
