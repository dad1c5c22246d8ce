"""The published COCO weights: which file, and from where."""

from pathlib import Path

from rfdetr_train.checkpoint.download import OnBytes, Unavailable, download

HOST = "https://storage.googleapis.com/rfdetr/"


PUBLISHED = {
    "nano": ("rf-detr-nano.pth", "nano_coco/checkpoint_best_regular.pth", "fb6504cce7fbdc783f7a46991f07639f"),
    "small": ("rf-detr-small.pth", "small_coco/checkpoint_best_regular.pth", "fb37061c1af7bace359c91b723a8d5c1"),
    "medium": ("rf-detr-medium.pth", "medium_coco/checkpoint_best_regular.pth", "7223f764a87b863f02eb8d52bf0ce2ee"),
    "large": ("rf-detr-large-2026.pth", "rf-detr-large-2026.pth", "5cb72153541cbcb9aa6efa26222acc75"),
    "base": ("rf-detr-base.pth", "rf-detr-base-coco.pth", "b4d3ce46099eaed50626ede388caf979"),
}
"""Model -> its file's name, its address under the host, its MD5."""


def fetch(variant: str, folder: Path, on_bytes: OnBytes = lambda done, total: None, host: str = HOST) -> Path:
    """The published file of `variant` in `folder`, downloaded from `host` if it is not there, its MD5 checked.

    `on_bytes(done, total)` is told of the progress. Raises as `download` does, and `Unavailable` for a variant of which
    nothing is published.
    """
    if variant not in PUBLISHED:
        raise Unavailable(f"there are no published weights for model={variant}")
    file_name, place, md5 = PUBLISHED[variant]
    download(host + place, folder / file_name, f"md5={md5}", on_bytes)
    return folder / file_name
