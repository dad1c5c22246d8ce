"""Train RF-DETR detectors: Hydra configs, grouped optimizers, exact resume.

`rfdetr_train.RFDETR` is the door for predictions from Python, see `engine/detector.py`.
"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """RFDETR, imported when it is asked for: torch takes longer than a refused config may."""
    if name == "RFDETR":
        from rfdetr_train.engine.detector import Detector

        return Detector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
