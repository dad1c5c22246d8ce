"""How a picture is brought to the size of the network's input: stretched over it, or letterboxed.

A letterboxed picture lies in the upper left of its view; below it and to its right is padding. Its boxes are fractions
of its frame, the picture rounded up to whole strides: there a token of every level ends, so that the network, which
counts in tokens, sees boxes where they are.
"""

from typing import NamedTuple

from rfdetr_train.config import ModelConfig

SizePx = tuple[int, int]
"""(height, width) in pixels."""


class Placement(NamedTuple):
    """What `data.resize` and the model's input make of pictures."""

    letterbox: bool = False
    """Keep the aspect ratio. The published weights expect False: both sides stretched to those of the view."""
    stride_px: int = 1
    aspect: float = 1.0
    """Width of a view over its height."""

    @classmethod
    def of(cls, resize: str, model: ModelConfig) -> "Placement":
        """From `data.resize`, stretch or letterbox."""
        height, width = model.size_px
        return cls(resize == "letterbox", model.stride, width / height)

    def view_px(self, height_px: int) -> SizePx:
        """The size of a view of this height; the width is rounded to whole strides."""
        return height_px, max(1, round(height_px * self.aspect / self.stride_px)) * self.stride_px

    def picture_px(self, picture_px: SizePx, view_px: SizePx) -> SizePx:
        """The size of a picture in its view: the view's, or the largest of the picture's own shape that fits."""
        if not self.letterbox:
            return view_px
        scale = min(view_px[0] / picture_px[0], view_px[1] / picture_px[1])
        height, width = (max(1, round(scale * side)) for side in picture_px)
        return height, width

    def frame_px(self, picture_px: SizePx) -> SizePx:
        """What boxes in the view are fractions of, for a picture of picture_px there."""
        height, width = (-(-side // self.stride_px) * self.stride_px for side in picture_px)
        return height, width


STRETCH = Placement()
