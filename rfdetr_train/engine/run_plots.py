"""The pictures in a run's folder: curves from its metrics, and a sheet of images with truth and predictions."""

import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from rfdetr_train.data.image_file import read_image
from rfdetr_train.data.sample import Split
from rfdetr_train.loggers.files import METRICS_NAME, read_metrics
from rfdetr_train.loggers.plots import write_plots
from rfdetr_train.loggers.sheet import Picture, draw_sheet

log = logging.getLogger(__name__)

Detections = Mapping[int, Mapping[str, Tensor]]
"""Image id -> {"boxes_xyxy" (k, 4) in the pixels of the annotated size, "scores" (k,), "labels" (k,)}."""


class RunPlots:
    """Writes `plots/*.png`."""

    def __init__(self, run_dir: Path, split: Split, *, enabled: bool, num_samples: int) -> None:
        """`num_samples` images from the front of `split` are on the sheet; 0 draws no sheet."""
        self.run_dir = run_dir
        self.split = split
        self.enabled = enabled
        self.num_samples = min(num_samples, len(split)) if enabled else 0

    def samples_of(self, found: Detections) -> Detections:
        """The detections that `draw` needs: the rest of a large split need not be kept."""
        shown = (int(image_id) for image_id in self.split.image_ids[: self.num_samples])
        return {image_id: found[image_id] for image_id in shown}

    def draw(self, found: Detections) -> Path | None:
        """Draw everything anew; the sheet, if there is one. What cannot be drawn does not end a run, but is said."""
        if not self.enabled:
            return None
        try:
            if (self.run_dir / METRICS_NAME).is_file():
                write_plots(read_metrics(self.run_dir / METRICS_NAME), self.run_dir / "plots")
            return self._draw_sheet(found) if self.num_samples else None
        except Exception:
            log.exception("the plots of %s could not be drawn; the run goes on", self.run_dir)
            return None

    def _draw_sheet(self, found: Detections) -> Path:
        path = self.run_dir / "plots" / f"{self.split.name}_samples.png"
        pictures = [self._picture(index, found) for index in range(self.num_samples)]
        draw_sheet(path, pictures, self.split.label_map.names)
        return path

    def _picture(self, index: int, found: Detections) -> Picture:
        record = self.split.record(index)
        image = read_image(record.path)
        height, width = record.size_px
        scale = [image.shape[2] / width, image.shape[1] / height] * 2  # where the file has another size than annotated
        detected = found[record.image_id]
        return Picture(
            image=image,
            truth_boxes_xyxy=record.boxes_xyxy * scale,
            truth_labels=record.labels,
            boxes_xyxy=detected["boxes_xyxy"].numpy() * scale,
            labels=detected["labels"],
            scores=detected["scores"],
        )
