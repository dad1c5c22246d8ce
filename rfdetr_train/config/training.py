"""The run over time: precision, averaging, evaluation, checkpoints, what is shown."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from rfdetr_train.config.checks import BELOW_ONE, COUNT_OR_AUTO, NOT_NEGATIVE, POSITIVE, Section, one_of
from rfdetr_train.errors import require

TRACKERS = ("tensorboard", "wandb", "mlflow")
BACKENDS = ("auto", "pycocotools", "hotcoco", "faster_coco_eval")


@dataclass
class AveragingConfig(Section, place="ema"):
    """Averaged weights, evaluated and saved beside the raw ones; `ema=none` keeps no average."""

    name: str = "none"
    """Which average, as in `ema=default`."""


@dataclass
class EmaConfig(AveragingConfig):
    """Exponential moving average, updated after every step."""

    name: str = "default"
    decay: Annotated[float, BELOW_ONE] = 0.993
    """Decay d; update t (from 1) uses d * (1 - exp(-t / tau)), and the first copies."""
    tau: Annotated[float, NOT_NEGATIVE] = 100.0
    """Ramp of the decay in steps; 0 uses d at once."""


@dataclass
class SwaConfig(AveragingConfig):
    """Stochastic weight averaging (arXiv 1803.05407): the equal average of the weights at the end of late epochs."""

    name: str = "swa"
    start_epoch: Annotated[int, NOT_NEGATIVE] = 10
    """Epochs trained before averaging, and the rate of SWA, begin."""
    lr_factor: Annotated[float, POSITIVE] = 0.1
    """SWA's constant rate as a share of each group's initial one (torch's SWALR)."""
    anneal_epochs: Annotated[int, NOT_NEGATIVE] = 1
    """Epochs in which the rate moves to SWA's."""


@dataclass
class EarlyStoppingConfig(Section, place="trainer.early_stopping"):
    """Stop when the best AP has not improved for a while."""

    patience: Annotated[Optional[int], POSITIVE] = None
    """Evaluations without improvement before the run ends; null never stops early."""
    min_delta: Annotated[float, NOT_NEGATIVE] = 0.0
    """AP gain that counts as an improvement."""


@dataclass
class TrainerConfig(Section, place="trainer"):
    """The run over time."""

    epochs: Annotated[int, POSITIVE] = 100
    """Passes over the train split."""
    max_steps: Annotated[Optional[int], POSITIVE] = None
    """Ends the run, and the schedule, after this many steps if the epochs have not."""
    batch_size: Annotated[int | str, COUNT_OR_AUTO] = 4
    """Pictures of a micro-batch in each process; auto finds the largest that fits."""
    accumulation_steps: Annotated[int, POSITIVE] = 1
    """Micro-batches of a step; the loss is normalised over all of them."""
    precision: Annotated[str, one_of("auto", "fp32", "bf16", "fp16")] = "auto"
    """fp32, bf16 or fp16 for the network's products; boxes, costs and losses are always fp32. auto: bf16 where the
    hardware has it, else fp32."""
    clip_norm: Annotated[float, NOT_NEGATIVE] = 0.1
    """Largest gradient norm; 0 does not clip."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    devices: Annotated[int | str, COUNT_OR_AUTO] = 1
    """Processes that train together on this machine, each on a GPU of its own, or all on the CPU; auto: one for each
    GPU. N processes of batch_size b train like one of N b. torchrun starts them itself, also on several machines."""
    timeout_minutes: Annotated[float, POSITIVE] = 5.0
    """How long processes wait for one that neither answers nor ends, before the job fails."""
    memory_budget_gib: Annotated[Optional[float], POSITIVE] = None
    """Memory that batch_size=auto may fill; null is 80% of what is free."""
    checkpointing: bool = False
    """true: activations inside the decoder's layers and a plain vision transformer's blocks are computed again in the
    backward pass instead of kept: less memory, more time, the same gradients."""
    compile: bool = False
    """true: torch.compile fuses what each block of a plain vision transformer and each layer of the decoder computes.
    The first steps take minutes, results are equal to rounding. It needs a C++ compiler; on a CPU it gained nothing."""
    log_every_steps: Annotated[int, POSITIVE] = 10
    """Train lines in metrics.jsonl: every so many steps, and the last of an epoch."""
    deterministic: bool = False
    """torch.use_deterministic_algorithms: bit-equal runs on CUDA too, but for the operations that torch then warns of
    (the backward passes of grid sampling and of bicubic resizing). On a CPU runs are bit-equal without it."""
    max_bad_steps: Annotated[int, POSITIVE] = 10
    """Steps in a row whose loss or gradient is not finite, after which the run ends. Each of them leaves the weights,
    the optimizer and the average alone; data and schedule move on."""
    spike_factor: Annotated[float, NOT_NEGATIVE] = 10.0
    """A loss of more than so many times the median of the last 50 steps is marked in the log; 0 marks none."""
    on_oom: Annotated[str, one_of("error", "shrink")] = "error"
    """When a step does not fit into the device's memory: error, or shrink, which halves what is computed at once and
    accumulates twice as often, so that a step's pictures stay the same."""
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)


@dataclass
class LossConfig(Section, place="loss"):
    """The training loss."""

    class_weights: Any = None
    """Factors on the class loss of the queries matched with objects of a class: {name: weight}, 1 for the others; auto,
    1 / sqrt(boxes of the class) scaled to a mean of 1 over all boxes; null, none (RF-DETR's loss)."""

    def _check(self) -> None:
        weights = self.class_weights
        numbers = weights.values() if isinstance(weights, dict) else [1.0]
        ok = weights in (None, "auto") or isinstance(weights, dict)
        ok = ok and all(isinstance(w, int | float) and 0 < w < float("inf") for w in numbers)
        require(ok, "loss.class_weights", weights, "give auto, or {name: weight} with numbers above 0")


@dataclass
class EvaluationConfig(Section, place="evaluation"):
    """When and how the valid split is scored during training."""

    every_epochs: Annotated[int, POSITIVE] = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    max_dets: Annotated[int, POSITIVE] = 100
    """Detections of an image that count, by score (COCO: 100)."""
    weights: Annotated[str, one_of("raw", "ema", "both")] = "both"
    """Which weights are scored: raw, ema, or both. Without an EMA it is raw."""
    batch_size: Annotated[Optional[int], POSITIVE] = None
    """Pictures at once; null uses the training batch size."""
    backend: Annotated[str, one_of(*BACKENDS)] = "auto"
    """The library that computes the metrics, all equal to 1e-9: pycocotools (the reference), hotcoco,
    faster_coco_eval, or auto, the fastest that is installed."""


@dataclass
class CheckpointConfig(Section, place="checkpoint"):
    """What is saved beside `last.pt` at each epoch's end and `best.pt`."""

    every_steps: Annotated[Optional[int], POSITIVE] = None
    """Also save `last.pt` every so many steps."""
    every_epochs: Annotated[int, POSITIVE] = 1
    """Epochs between saves of `last.pt`; it is also saved before each evaluation, after a new best, and at the end."""
    every_minutes: Annotated[Optional[float], POSITIVE] = None
    """Also save `last.pt` at the first step after so many minutes."""
    keep: Annotated[int, NOT_NEGATIVE] = 0
    """Numbered copies `step-NNNNNN.pt` of the newest saves to keep."""


@dataclass
class LoggerConfig(Section, place="logger"):
    """What a run shows of itself beside metrics.jsonl and metrics.csv."""

    progress: Annotated[str, one_of("auto", "bar", "plain")] = "auto"
    """bar, plain, or auto: bars on a terminal, plain lines elsewhere."""
    group_norms: bool = True
    """Log the norms of gradient and update of every parameter group with each train line; such a step costs a copy of
    the weights."""
    plots: bool = True
    """Write plots/*.png after each evaluation and report.html at the end; false writes none of them."""
    sample_images: Annotated[int, NOT_NEGATIVE] = 8
    """Pictures on each sheet of truth and predictions; 0 draws none."""
    trackers: list[str] = field(default_factory=list)
    """Experiment trackers that are told as well: tensorboard, wandb, mlflow."""
    project: str = "rfdetr_train"
    """W&B's project, MLflow's experiment."""
    wandb_mode: Annotated[str, one_of("online", "offline")] = "offline"
    """online, or offline: files that `wandb sync` sends later."""
    mlflow_uri: Optional[str] = None
    """MLflow's store; null is the file mlflow.db in run_dir."""

    def _check(self) -> None:
        for tracker in self.trackers:
            require(tracker in TRACKERS, "logger.trackers", tracker, f"choose one of {', '.join(TRACKERS)}")


@dataclass
class FreezePartConfig(Section, place="freeze.(encoder|projector|decoder)"):
    """How long one part of the model does not train."""

    always: bool = False
    """true: the part never trains."""
    until_epoch: Annotated[Optional[int], POSITIVE] = None
    """Epoch (from 0) at whose start the part joins the optimizer."""

    def _check(self) -> None:
        both, key = self.always and self.until_epoch is not None, f"{self.place}until_epoch"
        require(not both, key, self.until_epoch, "does nothing beside always=true; give one of them")

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
