"""The pictures of a run: curves from its metrics, and a sheet of images with truth and predictions."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from rfdetr_train.data.image_file import read_image
from rfdetr_train.data.sample import Split
from rfdetr_train.loggers.files import METRICS_NAME, read_metrics
from rfdetr_train.loggers.plots import write_plots
from rfdetr_train.loggers.sheet import Picture, draw_sheet


class Pictures:
    """Writes `plots/*.png` of a run folder."""

    def __init__(self, run_dir: Path, split: Split, curves: bool, num_samples: int) -> None:
        """`num_samples` images from the front of `split` are on the sheet; 0 draws none."""
        self.run_dir = run_dir
        self.split = split
        self.curves = curves
        self.num_samples = min(num_samples, len(split))

    def draw(self, found: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Draw everything anew; `found`: image id -> detections, boxes in the pixels of the annotated size."""
        if self.curves:
            write_plots(read_metrics(self.run_dir / METRICS_NAME), self.run_dir / "plots")
        if self.num_samples:
            draw_sheet(
                self.run_dir / "plots" / f"{self.split.name}_samples.png",
                [self._picture(index, found) for index in range(self.num_samples)],
                self.split.label_map.names,
            )

    def _picture(self, index: int, found: Mapping[int, Mapping[str, Tensor]]) -> Picture:
        record = self.split.record(index)
        image = read_image(record.path)
        height, width = record.size_px
        scale = [image.shape[2] / width, image.shape[1] / height] * 2  # a picture of another size than annotated
        detected = found[record.image_id]
        return Picture(
            image=image,
            truth_boxes_xyxy=record.boxes_xyxy * scale,
            truth_labels=record.labels,
            boxes_xyxy=detected["boxes_xyxy"].numpy() * scale,
            labels=detected["labels"],
            scores=detected["scores"],
        )
