"""The score of some weights on a split."""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

from torch import Tensor, nn

from rfdetr_train import distributed
from rfdetr_train.config import ModelConfig
from rfdetr_train.data.canvas import Placement
from rfdetr_train.data.loader import evaluation_batches
from rfdetr_train.data.sample import Split
from rfdetr_train.engine.inference import detect
from rfdetr_train.engine.precision import Precision
from rfdetr_train.errors import UserError
from rfdetr_train.evaluation.coco_metrics import CocoEvaluator, CocoMetrics
from rfdetr_train.evaluation.diagnosis import Diagnosis, diagnose
from rfdetr_train.evaluation.predictions import Predictions
from rfdetr_train.loggers.progress import Progress

log = logging.getLogger(__name__)


@dataclass
class Validation:
    """The result of one pass over a split."""

    metrics: CocoMetrics
    detections: dict[int, dict[str, Tensor]]
    """Image id -> {"boxes_xyxy" (k, 4) px, "scores" (k,), "labels" (k,)} on the CPU, best score first; of several
    processes the main one's has all, and another's none."""
    predictions: Predictions
    """The same as arrays, with the data set's own ids."""
    evaluator: CocoEvaluator
    """What has scored them."""

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """The errors behind the metrics; None without truth."""
        return diagnose(self.evaluator.truth, self.predictions, self.evaluator.max_dets)

    def to_plain(self) -> dict[str, Any]:
        """All numbers: the content of evaluation.json."""
        return {
            **self.metrics.overall,
            "per_class": self.metrics.per_class,
            "class_agnostic": self.evaluator.class_agnostic(self.predictions),
            "diagnosis": asdict(self.diagnosis) if self.diagnosis else None,
        }


class Validator:
    """Calling it with a model runs the split through it and scores what it finds."""

    def __init__(
        self,
        split: Split,
        config: ModelConfig,
        placement: Placement,
        precision: Precision,
        progress: Progress,
        *,
        batch_size: int,
        num_workers: int,
        max_dets: int,
        backend: str = "auto",
    ) -> None:
        """`config` tells the sizes of what is scored. Of its detections in an image `max_dets` per class count;
        `backend` computes the metrics."""
        self.split, self.config, self.precision, self.progress = split, config, precision, progress
        self.evaluator = CocoEvaluator(split.to_coco(), max_dets, backend)
        self.batches = partial(
            evaluation_batches,
            split,
            config.resolution,
            batch_size=batch_size,
            num_workers=num_workers,
            placement=placement,
            first=distributed.rank(),
            every=distributed.size(),
        )
        self.num_batches = -(-len(split) // (batch_size * distributed.size()))

    def __call__(self, model: nn.Module, on_batch: Callable[[], None] = lambda: None) -> Validation:
        """Score `model` (left in the mode that it had); `on_batch` is called between batches and may raise.

        Several processes take the batches of one in turn, so that the results are the same to the bit.
        """
        distributed.meet()  # the main process may still be saving
        distributed.take_buffers_of_main(model)
        was_training = model.training
        model.eval()
        found: dict[int, dict[str, Tensor]] = {}
        num_labels = len(self.split.label_map.names)
        self.progress.start_evaluation(self.num_batches)
        try:
            with closing(self.batches()) as batches, self.precision.kept_casts():
                for batch in batches:
                    if batch.targets:
                        detections = detect(model, self.config, batch, self.precision, num_labels)
                        found |= zip((target["image_id"] for target in batch.targets), detections, strict=True)
                    self.progress.advance_evaluation()
                    on_batch()
            distributed.meet()
        finally:
            model.train(was_training)
            self.progress.end_evaluation()
        found = self._of_all(found)
        predictions = Predictions.from_detections(found, self.split.label_map)
        evaluator = self._evaluator_of(found) if distributed.is_main() else self.evaluator
        metrics = CocoMetrics(**distributed.from_main(lambda: vars(evaluator.evaluate(predictions))))
        return Validation(metrics, found, predictions, evaluator)

    def _evaluator_of(self, found: Mapping[int, object]) -> CocoEvaluator:
        """The truth of the pictures that could be read; of those that were skipped nothing can be asked."""
        missing = [index for index, image_id in enumerate(self.split.image_ids.tolist()) if image_id not in found]
        if not missing:
            return self.evaluator
        place, first = f"{len(missing)} of {len(self.split)}", self.split.path(missing[0])
        log.warning("%s: %s PICTURES ARE MISSING IN THIS SCORE, such as %s", self.split.name, place, first)
        left = self.split.without(missing, "unreadable_pictures")
        return CocoEvaluator(left.to_coco(), self.evaluator.max_dets, self.evaluator.backend)

    def _of_all(self, found: dict[int, dict[str, Tensor]]) -> dict[int, dict[str, Tensor]]:
        """What all processes have found, in the order of the split."""
        parts = distributed.gather(found)
        if not distributed.is_main():
            return {}
        together = {image_id: one for part in parts for image_id, one in part.items()}
        if not together:
            raise UserError(f"{self.split.folder}: none of the {len(self.split)} pictures of {self.split.name} can "
                            "be read any more: restore them and go on with resume=auto")  # fmt: skip
        return {image_id: together[image_id] for image_id in self.split.image_ids.tolist() if image_id in together}
