"""The 80 classes of COCO (arXiv 1405.0312) and their sparse category ids, which the published class logits follow."""

from torchvision.models import get_model_weights

_CATEGORIES = get_model_weights("fasterrcnn_resnet50_fpn").DEFAULT.meta["categories"]

COCO_LOGITS = tuple(None if name in ("__background__", "N/A") else name for name in _CATEGORIES)
"""What each of the 91 logits of a published model stands for; None for an id that COCO does not use."""
COCO_NAMES = {category_id: name for category_id, name in enumerate(COCO_LOGITS) if name}
"""Category id, 1 to 90, -> name."""
