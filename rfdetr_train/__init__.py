"""Train RF-DETR detectors: Hydra configs, grouped optimizers, exact resume."""

__version__ = "0.1.0"
