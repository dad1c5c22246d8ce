"""The pictures of a run: curves from its metrics, what its best evaluation found, sheets; its report; and training
pictures before there is a run."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from rfdetr_train.boxes import cxcywh_to_xyxy
from rfdetr_train.config import AugmentationConfig
from rfdetr_train.data.canvas import STRETCH, Placement
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.data.sample import Batch, Split
from rfdetr_train.engine.validator import Validation
from rfdetr_train.loggers import diagnosis_plots
from rfdetr_train.loggers.figure import save_figure
from rfdetr_train.loggers.files import EVALUATION_NAME, METRICS_NAME, read_metrics
from rfdetr_train.loggers.page import write_report
from rfdetr_train.loggers.plots import write_plots
from rfdetr_train.loggers.sheet import Picture, draw_sheet

log = logging.getLogger(__name__)


class RunPlots:
    """Writes `plots/*.png` and report.html."""

    def __init__(self, run_dir: Path, split: Split, *, enabled: bool, num_samples: int) -> None:
        """`num_samples` images are on each sheet; 0 draws no sheets."""
        self.run_dir = run_dir
        self.folder = run_dir / "plots"
        self.split = split
        self.enabled = enabled
        self.num_samples = min(num_samples, len(split)) if enabled else 0

    def draw_batch(self, batch: Batch) -> None:
        """Draw a training batch as the network sees it, with its targets."""
        if self.num_samples:
            with self._carrying_on():
                pictures = pictures_of(batch)[: self.num_samples]
                draw_sheet(self.folder / "train_batch.png", pictures, self.split.label_map.names)

    def draw(self, validation: Validation, *, with_diagnosis: bool) -> Path | None:
        """Draw everything anew; the sheet of the split's first images, if there is one.

        with_diagnosis adds the figures of errors, and sheets of the best and the worst images.
        """
        if not self.enabled:
            return None
        with self._carrying_on():
            if (self.run_dir / METRICS_NAME).is_file():
                write_plots(read_metrics(self.run_dir / METRICS_NAME), self.folder)
            if with_diagnosis and validation.diagnosis is not None:
                self._draw_diagnosis(validation)
            if self.num_samples:
                ids = self.split.image_ids.tolist()
                there = [index for index, image_id in enumerate(ids) if image_id in validation.detections]
                return self._draw_sheet("samples", there[: self.num_samples], validation)
        return None

    def write_report(self) -> None:
        """Write report.html from what the folder holds by now."""
        if self.enabled and any((self.run_dir / name).is_file() for name in (METRICS_NAME, EVALUATION_NAME)):
            with self._carrying_on():
                log.info("report: %s", write_report(self.run_dir))

    @contextmanager
    def _carrying_on(self) -> Iterator[None]:
        """What cannot be drawn does not end a run, but is said."""
        try:
            yield
        except Exception:
            log.exception("the plots of %s could not be drawn; the run goes on", self.run_dir)

    def _draw_diagnosis(self, validation: Validation) -> None:
        assert validation.diagnosis is not None
        plain = asdict(validation.diagnosis)
        for name, draw in diagnosis_plots.FIGURES.items():
            save_figure(draw(plain), self.folder / f"{name}.png")
        if self.num_samples:
            rows = [plain["images"].get(image_id) for image_id in self.split.image_ids.tolist()]
            scored = [(row["F1"], i) for i, row in enumerate(rows) if row and row["right"] + row["missed"] > 0]
            ranked = [index for _, index in sorted(scored)]
            self._draw_sheet("worst", ranked[: self.num_samples], validation)
            self._draw_sheet("best", ranked[::-1][: self.num_samples], validation)

    def _draw_sheet(self, name: str, indices: Sequence[int], validation: Validation) -> Path:
        path = self.folder / f"{self.split.name}_{name}.png"
        draw_sheet(path, [self._picture(index, validation) for index in indices], self.split.label_map.names)
        return path

    def _picture(self, index: int, validation: Validation) -> Picture:
        record = self.split.record(index)
        image = self.split.read_image(index)
        height, width = record.size_px
        scale = [image.shape[2] / width, image.shape[1] / height] * 2  # where the file has another size than annotated
        detected = validation.detections[record.image_id]
        found_xyxy = detected["boxes_xyxy"].numpy() * scale
        truth = record.boxes_xyxy * scale, record.labels
        return Picture(image, *truth, found_xyxy, detected["labels"], detected["scores"])


def augmented_pictures(
    split: Split,
    augmentation: AugmentationConfig,
    sides_px: Sequence[int],
    *,
    num_pictures: int,
    seed: int = 0,
    placement: Placement = STRETCH,
) -> list[Picture]:
    """The first num_pictures that a run of this seed would train on, for `loggers.sheet.draw_sheet`.

    `sides_px` as `TrainLoader`'s scales: all pictures have one of these sides.
    """
    loader = TrainLoader(
        split,
        augmentation,
        sides_px,
        batch_size=num_pictures,
        accumulation_steps=1,
        seed=seed,
        num_workers=0,
        placement=placement,
    )
    with loader, closing(loader.epoch(0)) as steps:
        (batch,) = next(steps)
    return pictures_of(batch)


def pictures_of(batch: Batch) -> list[Picture]:
    """A training batch as the network sees it, with its targets."""
    pictures = []
    for image, target, (h, w) in zip(batch.images, batch.targets, batch.frames_in_view_px(), strict=True):
        boxes_xyxy = cxcywh_to_xyxy(target["boxes_cxcywh"]) * torch.tensor([w, h, w, h])
        pictures.append(Picture(image, boxes_xyxy, target["labels"], [], [], []))
    return pictures
