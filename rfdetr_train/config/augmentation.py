"""What is done to training pictures."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Optional

from rfdetr_train.config.checks import MISSING, NOT_NEGATIVE, SHARE, Section
from rfdetr_train.errors import UserError, require

STRONG_STAGES = ("mosaic", "mixup", "copy_paste", "iou_crop", "zoom_out", "affine", "photometric")
"""What `off_last_epochs` turns off."""


@dataclass
class AugmentationConfig(Section, place="augmentation"):
    """Random changes of a training picture: functions of (seed, epoch, index) alone, the scale of (seed, step).

    A key named after a stage is the stage's probability, 0 leaves it out; they are applied in the order of
    `data/transforms.py`.
    """

    name: str = MISSING
    """Which recipe, as in `augmentation=reference`."""
    horizontal_flip: Annotated[float, SHARE] = 0.0
    """Probability of a left-right flip."""
    vertical_flip: Annotated[float, SHARE] = 0.0
    """Probability of an upside-down flip."""
    quarter_turn: Annotated[float, SHARE] = 0.0
    """Probability of a turn by 90 degrees; with both flips at 0.5, 0.5 makes all eight orientations equally likely."""
    resize_crop: Annotated[float, SHARE] = 0.0
    """Probability of resize - random crop - resize instead of a plain resize."""
    multi_scale: bool = False
    """Draw the resolution of each step around model.resolution, in steps of patch_size * num_windows."""
    iou_crop: Annotated[float, SHARE] = 0.0
    """Probability of SSD's crop: a window whose IoU with some box reaches a random floor."""
    zoom_out: Annotated[float, SHARE] = 0.0
    """Probability of a smaller picture on a plain ground."""
    zoom_out_most: float = 2.0
    """Most that zoom_out makes a picture smaller by, in each direction."""
    affine: Annotated[float, SHARE] = 0.0
    """Probability of a small rotation, zoom and shift, in the pixels of the view."""
    affine_degrees: Annotated[float, NOT_NEGATIVE] = 5.0
    """Largest angle of affine, to either side."""
    affine_scale: Annotated[float, NOT_NEGATIVE] = 0.25
    """Largest zoom of affine: by a factor of up to 1 + affine_scale, in or out."""
    affine_translate: Annotated[float, SHARE] = 0.1
    """Largest shift of affine, as a share of the view's sides."""
    photometric: Annotated[float, SHARE] = 0.0
    """Probability of other colours: contrast, saturation, brightness and hue."""
    photometric_strength: Annotated[float, SHARE] = 0.5
    """How far colours change: contrast and saturation by a factor of up to 1 + strength, brightness by a quarter of
    that, up or down, hue by up to 36 degrees times strength."""
    mosaic: Annotated[float, SHARE] = 0.0
    """Probability of four pictures around a point in the place of one."""
    mixup: Annotated[float, SHARE] = 0.0
    """Probability that another picture shines through."""
    copy_paste: Annotated[float, SHARE] = 0.0
    """Probability that boxes cut from another picture, with what they show, are pasted where they cover no box."""
    min_visible: Annotated[float, SHARE] = 0.0
    """A box that a stage cuts keeps its visible part, and is dropped where that is less than this share of its area."""
    min_box_px: Annotated[float, NOT_NEGATIVE] = 0.0
    """Boxes with a side of fewer pixels of the view are dropped."""
    off_last_epochs: Annotated[Optional[int], NOT_NEGATIVE] = None
    """Epochs at the end of the run without mosaic, mixup, copy_paste, iou_crop, zoom_out, affine and photometric; null
    is a tenth of the run's epochs."""
    extra: list[dict[str, Any]] = field(default_factory=list)
    """The user's own transforms of torchvision's v2 kind, `{_target_: dotted.path, argument: value, ...}`, applied to
    the view after all others, in every epoch. They may not change its size."""

    def _check(self) -> None:
        most = self.zoom_out_most
        require(1.0 < most <= 16.0, "augmentation.zoom_out_most", most, "give a number above 1, up to 16")
        for index, entry in enumerate(self.extra):
            if not isinstance(entry.get("_target_"), str):
                raise UserError(f"augmentation.extra[{index}]={entry}: give _target_, the dotted path of a transform")

    def calm_from(self, num_epochs: int) -> int:
        """The first epoch (from 0) without strong stages in a run of num_epochs."""
        tail = num_epochs // 10 if self.off_last_epochs is None else self.off_last_epochs
        return max(0, num_epochs - tail)

    def in_epoch(self, epoch: int, num_epochs: int | None) -> "AugmentationConfig":
        """What holds in `epoch` (from 0) of a run of num_epochs, or of one without end."""
        if num_epochs is None or epoch < self.calm_from(num_epochs):
            return self
        off: dict[str, Any] = dict.fromkeys(STRONG_STAGES, 0.0)
        return replace(self, **off)
