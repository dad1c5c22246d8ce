"""The run over time: precision, averaging, evaluation, checkpoints, what is shown."""

from dataclasses import dataclass, field
from typing import Any, Optional

from rfdetr_train.config.checks import not_negative, number_or_auto, one_of, positive
from rfdetr_train.errors import require

TRACKERS = ("tensorboard", "wandb", "mlflow")
BACKENDS = ("auto", "pycocotools", "hotcoco", "faster_coco_eval")


@dataclass
class AveragingConfig:
    """Averaged weights, evaluated and saved beside the raw ones; `ema=none` keeps no average."""

    name: str = "none"
    """Which average, as in `ema=default`."""


@dataclass
class EmaConfig(AveragingConfig):
    """Exponential moving average, updated after every step."""

    name: str = "default"
    decay: float = 0.993
    """Decay d; update t (from 1) uses d * (1 - exp(-t / tau)), and the first copies."""
    tau: float = 100.0
    """Ramp of the decay in steps; 0 uses d at once."""

    def __post_init__(self) -> None:
        require(0.0 <= self.decay < 1.0, "ema.decay", self.decay, "give a number from 0 up to but not including 1")
        not_negative("ema", self, "tau")


@dataclass
class SwaConfig(AveragingConfig):
    """Stochastic weight averaging (arXiv 1803.05407): the equal average of the weights at the end of late epochs."""

    name: str = "swa"
    start_epoch: int = 10
    """Epochs trained before averaging, and the rate of SWA, begin."""
    lr_factor: float = 0.1
    """SWA's constant rate as a share of each group's initial one (torch's SWALR)."""
    anneal_epochs: int = 1
    """Epochs in which the rate moves to SWA's."""

    def __post_init__(self) -> None:
        not_negative("ema", self, "start_epoch", "anneal_epochs")
        positive("ema", self, "lr_factor")


@dataclass
class EarlyStoppingConfig:
    """Stop when the best AP has not improved for a while."""

    patience: Optional[int] = None
    """Evaluations without improvement before the run ends; null never stops early."""
    min_delta: float = 0.0
    """AP gain that counts as an improvement."""

    def __post_init__(self) -> None:
        positive("trainer.early_stopping", self, "patience")
        not_negative("trainer.early_stopping", self, "min_delta")


@dataclass
class TrainerConfig:
    """The run over time."""

    epochs: int = 100
    """Passes over the train split."""
    max_steps: Optional[int] = None
    """Ends the run, and the schedule, after this many steps if the epochs have not."""
    batch_size: int | str = 4
    """Pictures of a micro-batch in each process; auto finds the largest that fits."""
    accumulation_steps: int = 1
    """Micro-batches of a step; the loss is normalised over all of them."""
    precision: str = "auto"
    """fp32, bf16 or fp16 for the network's products; boxes, costs and losses are always fp32. auto: bf16 where the
    hardware has it, else fp32."""
    clip_norm: float = 0.1
    """Largest gradient norm; 0 does not clip."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    devices: int | str = 1
    """Processes that train together on this machine, each on a GPU of its own, or all on the CPU; auto: one for each
    GPU. N processes of batch_size b train like one of N b. torchrun starts them itself, also on several machines."""
    timeout_minutes: float = 5.0
    """How long processes wait for one that neither answers nor ends, before the job fails."""
    memory_budget_gib: Optional[float] = None
    """Memory that batch_size=auto may fill; null is 80% of what is free."""
    checkpointing: bool = False
    """true: activations inside the decoder's layers and a plain vision transformer's blocks are computed again in the
    backward pass instead of kept: less memory, more time, the same gradients."""
    compile: bool = False
    """true: torch.compile fuses what each block of a plain vision transformer and each layer of the decoder computes.
    The first steps take minutes, results are equal to rounding. It needs a C++ compiler; on a CPU it gained nothing."""
    log_every_steps: int = 10
    """Train lines in metrics.jsonl: every so many steps, and the last of an epoch."""
    deterministic: bool = False
    """torch.use_deterministic_algorithms: bit-equal runs on CUDA too, but for the operations that torch then warns of
    (the backward passes of grid sampling and of bicubic resizing). On a CPU runs are bit-equal without it."""
    max_bad_steps: int = 10
    """Steps in a row whose loss or gradient is not finite, after which the run ends. Each of them leaves the weights,
    the optimizer and the average alone; data and schedule move on."""
    spike_factor: float = 10.0
    """A loss of more than so many times the median of the last 50 steps is marked in the log; 0 marks none."""
    on_oom: str = "error"
    """When a step does not fit into the device's memory: error, or shrink, which halves what is computed at once and
    accumulates twice as often, so that a step's pictures stay the same."""
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)

    def __post_init__(self) -> None:
        positive("trainer", self, "epochs", "max_steps", "accumulation_steps", "log_every_steps", "memory_budget_gib",
                 "max_bad_steps", "timeout_minutes")  # fmt: skip
        number_or_auto("trainer.devices", self.devices)
        number_or_auto("trainer.batch_size", self.batch_size)
        one_of("trainer.on_oom", self.on_oom, "error", "shrink")
        one_of("trainer.precision", self.precision, "auto", "fp32", "bf16", "fp16")
        not_negative("trainer", self, "clip_norm", "spike_factor")


@dataclass
class LossConfig:
    """The training loss."""

    class_weights: Any = None
    """Factors on the class loss of the queries matched with objects of a class: {name: weight}, 1 for the others; auto,
    1 / sqrt(boxes of the class) scaled to a mean of 1 over all boxes; null, none (RF-DETR's loss)."""

    def __post_init__(self) -> None:
        weights = self.class_weights
        numbers = weights.values() if isinstance(weights, dict) else [1.0]
        ok = weights in (None, "auto") or isinstance(weights, dict)
        ok = ok and all(isinstance(w, int | float) and 0 < w < float("inf") for w in numbers)
        require(ok, "loss.class_weights", weights, "give auto, or {name: weight} with numbers above 0")


@dataclass
class EvaluationConfig:
    """When and how the valid split is scored during training."""

    every_epochs: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    max_dets: int = 100
    """Detections of an image that count, by score (COCO: 100)."""
    weights: str = "both"
    """Which weights are scored: raw, ema, or both. Without an EMA it is raw."""
    batch_size: Optional[int] = None
    """Pictures at once; null uses the training batch size."""
    backend: str = "auto"
    """The library that computes the metrics, all equal to 1e-9: pycocotools (the reference), hotcoco,
    faster_coco_eval, or auto, the fastest that is installed."""

    def __post_init__(self) -> None:
        one_of("evaluation.backend", self.backend, *BACKENDS)
        positive("evaluation", self, "every_epochs", "max_dets", "batch_size")
        one_of("evaluation.weights", self.weights, "raw", "ema", "both")


@dataclass
class CheckpointConfig:
    """What is saved beside `last.pt` at each epoch's end and `best.pt`."""

    every_steps: Optional[int] = None
    """Also save `last.pt` every so many steps."""
    every_epochs: int = 1
    """Epochs between saves of `last.pt`; it is also saved before each evaluation, after a new best, and at the end."""
    every_minutes: Optional[float] = None
    """Also save `last.pt` at the first step after so many minutes."""
    keep: int = 0
    """Numbered copies `step-NNNNNN.pt` of the newest saves to keep."""

    def __post_init__(self) -> None:
        positive("checkpoint", self, "every_steps", "every_epochs", "every_minutes")
        not_negative("checkpoint", self, "keep")


@dataclass
class LoggerConfig:
    """What a run shows of itself beside metrics.jsonl and metrics.csv."""

    progress: str = "auto"
    """bar, plain, or auto: bars on a terminal, plain lines elsewhere."""
    group_norms: bool = True
    """Log the norms of gradient and update of every parameter group with each train line; such a step costs a copy of
    the weights."""
    plots: bool = True
    """Write plots/*.png after each evaluation and report.html at the end; false writes none of them."""
    sample_images: int = 8
    """Pictures on each sheet of truth and predictions; 0 draws none."""
    trackers: list[str] = field(default_factory=list)
    """Experiment trackers that are told as well: tensorboard, wandb, mlflow."""
    project: str = "rfdetr_train"
    """W&B's project, MLflow's experiment."""
    wandb_mode: str = "offline"
    """online, or offline: files that `wandb sync` sends later."""
    mlflow_uri: Optional[str] = None
    """MLflow's store; null is the file mlflow.db in run_dir."""

    def __post_init__(self) -> None:
        for tracker in self.trackers:
            one_of("logger.trackers", tracker, *TRACKERS)
        one_of("logger.wandb_mode", self.wandb_mode, "online", "offline")
        one_of("logger.progress", self.progress, "auto", "bar", "plain")
        not_negative("logger", self, "sample_images")


@dataclass
class FreezePartConfig:
    """How long one part of the model does not train."""

    always: bool = False
    """true: the part never trains."""
    until_epoch: Optional[int] = None
    """Epoch (from 0) at whose start the part joins the optimizer."""

    def __post_init__(self) -> None:
        place = "freeze.(encoder|projector|decoder)"
        positive(place, self, "until_epoch")
        both = self.always and self.until_epoch is not None
        require(not both, f"{place}.until_epoch", self.until_epoch, "does nothing beside always=true; give one of them")

    @property
    def frozen_at_start(self) -> bool:
        """Whether training starts without the part."""
        return self.always or self.until_epoch is not None


@dataclass
class FreezeConfig:
    """Parts of the model that do not train, or not at first."""

    encoder: FreezePartConfig = field(default_factory=FreezePartConfig)
    """The backbone; with model.lora_rank its adapters, the rest being frozen anyway."""
    projector: FreezePartConfig = field(default_factory=FreezePartConfig)
    """The projector behind it."""
    decoder: FreezePartConfig = field(default_factory=FreezePartConfig)
    """The decoder."""
