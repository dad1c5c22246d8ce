"""What augmentations do to one picture. Each draws from the rng that it is given and from nothing else."""

import math

import numpy as np
import torch
from torchvision.transforms.v2 import InterpolationMode, functional

from rfdetr_train.boxes import iou_and_giou
from rfdetr_train.config import AugmentationConfig
from rfdetr_train.data.canvas import GROUND_RGB, Canvas, cropped, ground, pasted, resized, visible

SHORT_SIDES_PX = (400, 500, 600)  # resize before the crop: of the shorter side
_CROP_SIDES_PX = (384, 600)  # smallest and largest side of the square crop
_IOU_FLOORS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
_WINDOWS = 40  # tried by iou_crop
SMALLEST_WINDOW = 0.3  # share of the picture's side
_LUMA = torch.tensor([0.299, 0.587, 0.114])
_HUE_RADIANS = math.pi / 5  # largest turn at a strength of 1


def resize_crop(
    canvas: Canvas, rng: np.random.Generator, min_visible: float, view_px: tuple[int, int] = (1, 1)
) -> Canvas:
    """Resize the shorter side to 400, 500 or 600 pixels, then cut out a square of 384 to 600 (as far as it fits).

    For a view that is no square, a rectangle of its shape, whose shorter side is so long.
    """
    canvas = resized(canvas, int(rng.choice(SHORT_SIDES_PX)))
    height, width = canvas.size_px
    tall, wide = (side / min(view_px) for side in view_px)
    largest = int(min(_CROP_SIDES_PX[1], height / tall, width / wide))
    side = int(rng.integers(min(_CROP_SIDES_PX[0], largest), largest, endpoint=True))
    crop_height, crop_width = round(side * tall), round(side * wide)
    top = int(rng.integers(0, height - crop_height, endpoint=True))
    left = int(rng.integers(0, width - crop_width, endpoint=True))
    return cropped(canvas, top, left, crop_height, crop_width, min_visible)


def iou_crop(canvas: Canvas, rng: np.random.Generator, min_visible: float) -> Canvas:
    """SSD's crop (arXiv 1512.02325): a window of 0.3 to 1 of each side whose IoU with some box exceeds a random floor.

    The window's aspect ratio is at most twice or half the picture's. A picture without boxes takes any such window, and
    one in which no window of 40 will do stays whole.
    """
    floor = rng.choice(_IOU_FLOORS)
    shares = rng.uniform(SMALLEST_WINDOW, 1.0, (_WINDOWS, 2))
    sides = np.ceil(shares * canvas.size_px).astype(np.int64)
    corners = (rng.random((_WINDOWS, 2)) * (canvas.size_px - sides + 1)).astype(np.int64)
    suits = np.abs(np.log2(shares[:, 0] / shares[:, 1])) <= 1
    if len(canvas.labels):
        windows_xyxy = torch.from_numpy(np.hstack([corners, corners + sides])[:, [1, 0, 3, 2]])
        iou, _ = iou_and_giou(windows_xyxy[:, None], canvas.boxes_xyxy[None])
        suits &= (iou.amax(dim=1) > floor).numpy()
    if not suits.any():
        return canvas
    first = suits.argmax()
    (top, left), (height, width) = corners[first].tolist(), sides[first].tolist()
    return cropped(canvas, top, left, height, width, min_visible)


def quarter_turn(canvas: Canvas, rng: np.random.Generator) -> Canvas:
    """Turn by 90 degrees to the left or to the right."""
    return canvas.apply(functional.rotate, 90 if rng.random() < 0.5 else 270, expand=True)


def zoom_out(canvas: Canvas, rng: np.random.Generator, most: float) -> Canvas:
    """The picture up to `most` times smaller, anywhere on plain ground of its former size."""
    height, width = canvas.size_px
    factor = rng.uniform(1.0, most)
    small = resized(canvas, math.ceil(height / factor), math.ceil(width / factor))
    top = int(rng.integers(0, height - small.size_px[0], endpoint=True))
    left = int(rng.integers(0, width - small.size_px[1], endpoint=True))
    return pasted(ground((height, width)), small, top, left)


def affine(canvas: Canvas, rng: np.random.Generator, recipe: AugmentationConfig) -> Canvas:
    """A small rotation, zoom and shift around the middle; a box becomes the one that encloses its corners."""
    height, width = canvas.size_px
    degrees, scale, across, down = rng.uniform(-1, 1, 4).tolist()
    colour = torch.tensor(GROUND_RGB).view(3, 1, 1)
    above = canvas.image.contiguous() - colour.float()  # so that the zeros from outside are ground, without a dark seam
    moved = canvas._replace(image=above).apply(
        functional.affine,
        angle=degrees * recipe.affine_degrees,
        translate=[across * recipe.affine_translate * width, down * recipe.affine_translate * height],
        scale=(1 + recipe.affine_scale) ** scale,
        shear=[0.0, 0.0],
        interpolation=InterpolationMode.BILINEAR,
    )
    image = (moved.image + colour).round_().clamp_(0, 255).to(torch.uint8)
    return visible(moved._replace(image=image), recipe.min_visible)


def photometric(canvas: Canvas, rng: np.random.Generator, strength: float) -> Canvas:
    """Another contrast (about the mean grey), saturation, brightness and hue, as one linear map of the colours.

    torchvision's four functions, one after the other, take ten times as long.
    """
    contrast, saturation, brightness, hue = rng.uniform(-1, 1, 4).tolist()
    pixels = canvas.image.contiguous().float().flatten(1)
    grey = _LUMA.expand(3, 3)
    colours = grey + (1 + strength) ** saturation * (_turn_about_grey(hue * strength * _HUE_RADIANS) - grey)
    gain, spread = (1 + strength / 4) ** brightness, (1 + strength) ** contrast
    mean = _LUMA @ pixels.mean(dim=1)
    mapped = torch.addmm(gain * (1 - spread) * mean, gain * spread * colours, pixels)
    return canvas._replace(image=mapped.round_().clamp_(0, 255).to(torch.uint8).view(canvas.image.shape))


def _turn_about_grey(angle: float) -> torch.Tensor:
    """(3, 3): RGB turned about the line of greys by `angle` in radians (Rodrigues)."""
    a = (1 - math.cos(angle)) / 3
    b = math.sin(angle) / math.sqrt(3)
    c = math.cos(angle) + a
    return torch.tensor([[c, a - b, a + b], [a + b, c, a - b], [a - b, a + b, c]])
