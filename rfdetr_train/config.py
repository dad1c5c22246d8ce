"""Every key of the application: its type, its default, its meaning and what is refused.

No torch, hydra or omegaconf here, so that a config is checked in milliseconds. `conf/` only chooses values for these
dataclasses; a docstring under a field says what the key does. One step is one optimizer step, everywhere.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from rfdetr_train.errors import UserError, require

MISSING: Any = "???"  # OmegaConf's mark for a value that the user must give


def _one_of(key: str, value: object, *choices: str) -> None:
    require(value in choices, key, value, f"choose one of {', '.join(choices)}")


def _positive(prefix: str, section: object, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        require(value is None or value > 0, f"{prefix}.{name}", value, "give a number above 0")


def _fraction(key: str, value: float) -> None:
    require(0.0 <= value <= 1.0, key, value, "give a number from 0 to 1")


def _not_negative(prefix: str, section: object, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        require(value is None or value >= 0, f"{prefix}.{name}", value, "give 0 or a larger number")


# ---------------------------------------------------------------------------------------------------------------- model
@dataclass
class ModelConfig:
    """One RF-DETR detector (arXiv 2511.09554). The letters of the shapes: see `rfdetr_train/models/rfdetr.py`."""

    name: str = MISSING
    """The variant, as in `model=nano`; it names run folders and published weights."""
    resolution: int = MISSING
    """Side of the square input in pixels; divisible by patch_size * num_windows."""
    backbone: str = "vit_small_patch14_dinov2"
    """timm name of a plain vision transformer; its patch size is replaced by patch_size."""
    encoder_width: Optional[int] = None
    """Embedding width of the backbone; null keeps the one that timm gives."""
    encoder_depth: Optional[int] = None
    """Number of transformer blocks; null keeps timm's."""
    encoder_heads: Optional[int] = None
    """Attention heads of a block; null keeps timm's."""
    patch_size: int = 16
    """Side of a patch in pixels."""
    num_windows: int = 2
    """Windows per side W: the blocks outside the global ones attend inside W x W windows."""
    feature_blocks: list[int] = field(default_factory=lambda: [3, 6, 9, 12])
    """Blocks (counted from 1) whose outputs the projector joins."""
    hidden_dim: int = 256
    """Width D of projector, queries and decoder."""
    decoder_layers: int = 3
    """Number of decoder layers."""
    self_attention_heads: int = 8
    """Heads of the self-attention among queries."""
    cross_attention_heads: int = 16
    """Heads H of the deformable cross-attention."""
    sampling_points: int = 2
    """Points P that each head samples on each feature level."""
    ffn_dim: int = 2048
    """Hidden width of the decoder's feed-forward blocks."""
    num_queries: int = 300
    """Queries Q per group, and the largest number of detections of an image."""
    group_detr: int = 13
    """Groups G of queries in training (Group DETR, arXiv 2207.13085); evaluation uses the first."""

    def __post_init__(self) -> None:
        _positive(
            "model",
            self,
            "resolution",
            "encoder_width",
            "encoder_depth",
            "encoder_heads",
            "patch_size",
            "num_windows",
            "hidden_dim",
            "decoder_layers",
            "self_attention_heads",
            "cross_attention_heads",
            "sampling_points",
            "ffn_dim",
            "num_queries",
            "group_detr",
        )
        self._check_resolution()
        for key in ("self_attention_heads", "cross_attention_heads"):
            heads = getattr(self, key)
            require(
                self.hidden_dim % heads == 0, f"model.{key}", heads, f"hidden_dim={self.hidden_dim} must divide by it"
            )
        require(self.hidden_dim % 4 == 0, "model.hidden_dim", self.hidden_dim, "give a multiple of 4 (sine embedding)")
        blocks = self.feature_blocks
        require(
            bool(blocks) and blocks == sorted(set(blocks)) and blocks[0] >= 1,
            "model.feature_blocks",
            blocks,
            "give rising block numbers, the first block being 1",
        )

    @property
    def stride(self) -> int:
        """Pixels that the input's sides must divide by: patch_size * num_windows."""
        return self.patch_size * self.num_windows

    def _check_resolution(self) -> None:
        below = self.resolution // self.stride * self.stride
        nearby = " or ".join(str(r) for r in (below, below + self.stride) if r > 0)
        require(
            self.resolution % self.stride == 0,
            "model.resolution",
            self.resolution,
            f"must divide by patch_size x num_windows = {self.stride}; the nearest that do: {nearby}",
        )
        tokens = (self.resolution // self.patch_size) ** 2
        require(
            self.num_queries <= tokens,
            "model.num_queries",
            self.num_queries,
            f"is more than the {tokens} tokens of resolution {self.resolution}; lower num_queries or raise resolution",
        )


# ------------------------------------------------------------------------------------------------------------ optimizer
@dataclass
class ParameterRule:
    """A user's own hyperparameters for the parameters whose name matches a pattern; later rules win."""

    pattern: str = MISSING
    """Regular expression searched in the parameter's name; one that matches nothing is an error."""
    lr: Optional[float] = None
    """Learning rate for them; null keeps what they have."""
    lr_factor: Optional[float] = None
    """Factor on the learning rate that they have; null is 1."""
    weight_decay: Optional[float] = None
    """Weight decay for them; null keeps what they have."""

    def __post_init__(self) -> None:
        _not_negative("optimizer.rules", self, "lr", "lr_factor", "weight_decay")
        require(
            self.lr is None or self.lr_factor is None,
            "optimizer.rules.lr_factor",
            self.lr_factor,
            f"give lr or lr_factor for pattern {self.pattern!r}, not both",
        )


@dataclass
class OptimizerConfig:
    """What every optimizer shares: the rates by layer (architecture: layer-wise decay) and how parameters are grouped."""

    name: str = MISSING
    """Which optimizer, as in `optimizer=adamw`."""
    lr: float = 1e-4
    """Learning rate of everything but the encoder (the decoder's is times component_decay)."""
    encoder_lr: float = 1.5e-4
    """Learning rate of the encoder before its decays."""
    layer_decay: float = 0.8
    """Factor per encoder layer, from the last down to the embeddings."""
    component_decay: float = 0.7
    """Factor on the decoder's rate, and twice on the encoder's."""
    weight_decay: float = 1e-4
    """Weight decay where the no_decay rule lets it act."""
    no_decay: str = "reference"
    """Which parameters do not decay. reference: the encoder's norms, biases and embeddings; matrices_only: all tensors of
    fewer than two dimensions; none: all parameters decay."""
    merge_groups: bool = True
    """true: one parameter group per distinct (lr, weight decay); false: one group per parameter."""
    rules: list[ParameterRule] = field(default_factory=list)
    """Own hyperparameters by name pattern, applied after the above."""

    def __post_init__(self) -> None:
        _not_negative("optimizer", self, "lr", "encoder_lr", "weight_decay")
        _positive("optimizer", self, "layer_decay", "component_decay")
        _one_of("optimizer.no_decay", self.no_decay, "reference", "matrices_only", "none")


def _check_fused(fused: Any, foreach: Any = None) -> None:
    require(fused in ("auto", True, False), "optimizer.fused", fused, "choose one of auto, true, false")
    require(
        not (fused is True and foreach is True),
        "optimizer.foreach",
        foreach,
        "fused=true and foreach=true exclude each other",
    )


def _check_betas(betas: list[float]) -> None:
    require(
        len(betas) == 2 and all(0.0 <= b < 1.0 for b in betas),
        "optimizer.betas",
        betas,
        "give two numbers from 0 up to but not including 1",
    )


@dataclass
class AdamConfig(OptimizerConfig):
    """Adam (arXiv 1412.6980): the decay is an L2 term in the gradient."""

    name: str = "adam"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """Decay rates of the first and second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    amsgrad: bool = False
    """Keep the largest second moment (arXiv 1904.09237)."""
    fused: bool | str = "auto"
    """One kernel per group: auto uses it where torch has it and says why where not; true insists; false never."""
    foreach: Optional[bool] = None
    """Multi-tensor loops: null leaves the choice to torch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas)
        _check_fused(self.fused, self.foreach)


@dataclass
class AdamWConfig(AdamConfig):
    """AdamW (arXiv 1711.05101): decay apart from the gradient."""

    name: str = "adamw"


@dataclass
class SGDConfig(OptimizerConfig):
    """Stochastic gradient descent."""

    name: str = "sgd"
    momentum: float = 0.9
    """Factor on the velocity."""
    dampening: float = 0.0
    """Dampening of the gradient that enters the velocity."""
    nesterov: bool = False
    """Nesterov's look-ahead; wants momentum and no dampening."""
    fused: bool | str = "auto"
    """As for AdamW."""
    foreach: Optional[bool] = None
    """As for AdamW."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_fused(self.fused, self.foreach)
        require(
            not self.nesterov or (self.momentum > 0 and self.dampening == 0),
            "optimizer.nesterov",
            self.nesterov,
            "wants momentum above 0 and dampening=0",
        )


@dataclass
class AdagradConfig(OptimizerConfig):
    """Adagrad (JMLR 12, 2011)."""

    name: str = "adagrad"
    lr_decay: float = 0.0
    """Decay of the rate by step."""
    initial_accumulator_value: float = 0.0
    """Start of the sum of squares."""
    eps: float = 1e-10
    """Added to the root of the sum of squares."""
    fused: bool | str = "auto"
    """As for AdamW."""
    foreach: Optional[bool] = None
    """As for AdamW."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_fused(self.fused, self.foreach)


@dataclass
class RMSpropConfig(OptimizerConfig):
    """RMSprop; torch has no fused form of it."""

    name: str = "rmsprop"
    alpha: float = 0.99
    """Decay rate of the squared gradient."""
    eps: float = 1e-8
    """Added to the root."""
    momentum: float = 0.0
    """Factor on the velocity."""
    centered: bool = False
    """Divide by the estimated variance."""
    fused: bool | str = "auto"
    """auto or false; true is refused."""
    foreach: Optional[bool] = None
    """As for AdamW."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.fused is not True, "optimizer.fused", self.fused, f"{self.name} has no fused form; use auto or false"
        )
        _check_fused(self.fused)


@dataclass
class NAdamConfig(OptimizerConfig):
    """NAdam; torch has no fused form of it."""

    name: str = "nadam"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """Decay rates of the moments."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    momentum_decay: float = 4e-3
    """Decay of the momentum."""
    decoupled_weight_decay: bool = True
    """Decay as in AdamW rather than in the gradient."""
    foreach: Optional[bool] = None
    """As for AdamW."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas)


@dataclass
class RAdamConfig(OptimizerConfig):
    """RAdam (arXiv 1908.03265); torch has no fused form of it."""

    name: str = "radam"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """Decay rates of the moments."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    decoupled_weight_decay: bool = True
    """Decay as in AdamW rather than in the gradient."""
    foreach: Optional[bool] = None
    """As for AdamW."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas)


@dataclass
class AdafactorConfig(OptimizerConfig):
    """Adafactor (arXiv 1804.04235); torch has no fused form of it."""

    name: str = "adafactor"
    beta2_decay: float = -0.8
    """Exponent of the second moment's decay."""
    d: float = 1.0
    """Clipping threshold of the update."""
    foreach: Optional[bool] = None
    """As for AdamW."""


@dataclass
class LBFGSConfig(OptimizerConfig):
    """L-BFGS: a closure that is evaluated several times a step, one group, one rate for all (`lr`)."""

    name: str = "lbfgs"
    max_iter: int = 4
    """Iterations a step."""
    history_size: int = 10
    """Updates remembered."""
    line_search: Optional[str] = "strong_wolfe"
    """strong_wolfe or null."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("optimizer", self, "max_iter", "history_size")
        require(
            self.line_search in (None, "strong_wolfe"),
            "optimizer.line_search",
            self.line_search,
            "choose strong_wolfe or null",
        )


@dataclass
class MuonConfig(OptimizerConfig):
    """Muon for the matrices of blocks and decoder, AdamW for the rest, both under the same layer-wise rates."""

    name: str = "muon"
    momentum: float = 0.95
    """Muon's momentum."""
    nesterov: bool = True
    """Nesterov's form of it."""
    ns_steps: int = 5
    """Newton-Schulz iterations."""
    adjust_lr: str = "match_rms_adamw"
    """How the rate scales with a matrix's shape: original or match_rms_adamw (the AdamW rates then fit)."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """AdamW's decay rates for the rest."""
    eps: float = 1e-8
    """AdamW's epsilon for the rest."""
    fused: bool | str = "auto"
    """As for AdamW, for the rest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas)
        _check_fused(self.fused)
        _one_of("optimizer.adjust_lr", self.adjust_lr, "original", "match_rms_adamw")


@dataclass
class LionConfig(OptimizerConfig):
    """Lion (arXiv 2302.06675): the sign of an interpolated momentum; wants a rate 3 to 10 times below AdamW's."""

    name: str = "lion"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.99])
    """Interpolation of the update, decay of the momentum."""
    foreach: Optional[bool] = None
    """As for AdamW."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas)


@dataclass
class CustomOptimizerConfig(OptimizerConfig):
    """Any optimizer class: `optimizer=custom optimizer._target_=package.Class +optimizer.args.key=value`."""

    name: str = "custom"
    _target_: str = MISSING
    """Dotted path of a class that takes parameter groups."""
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for it."""


# ------------------------------------------------------------------------------------------------------------ scheduler
@dataclass
class SchedulerConfig:
    """A schedule: a factor on each group's own initial rate, a pure function of the step."""

    name: str = MISSING
    """Which schedule, as in `scheduler=cosine`."""


@dataclass
class ConstantScheduleConfig(SchedulerConfig):
    """Factor 1 throughout."""

    name: str = "constant"


@dataclass
class StepScheduleConfig(SchedulerConfig):
    """The reference's schedule: the rate is multiplied by `factor` after each of the epochs in `drop_epochs`."""

    name: str = "step"
    drop_epochs: list[float] = field(default_factory=lambda: [100.0])
    """Epochs after which the rate drops."""
    factor: float = 0.1
    """What it is multiplied by."""

    def __post_init__(self) -> None:
        _positive("scheduler", self, "factor")
        require(
            self.drop_epochs == sorted(self.drop_epochs) and all(e > 0 for e in self.drop_epochs),
            "scheduler.drop_epochs",
            self.drop_epochs,
            "give rising numbers above 0",
        )


@dataclass
class _FloorScheduleConfig(SchedulerConfig):
    min_factor: float = 0.0
    """The floor, as a share of the initial rate, reached at the last step."""

    def __post_init__(self) -> None:
        _fraction("scheduler.min_factor", self.min_factor)


@dataclass
class CosineScheduleConfig(_FloorScheduleConfig):
    """Half a cosine from 1 to the floor."""

    name: str = "cosine"


@dataclass
class LinearScheduleConfig(_FloorScheduleConfig):
    """A straight line from 1 to the floor."""

    name: str = "linear"


@dataclass
class PolynomialScheduleConfig(_FloorScheduleConfig):
    """(1 - progress) ** power from 1 to the floor."""

    name: str = "polynomial"
    power: float = 2.0
    """The exponent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("scheduler", self, "power")


@dataclass
class WSDScheduleConfig(_FloorScheduleConfig):
    """Warmup-stable-decay (arXiv 2404.06395): 1, then a straight line to the floor in the last part of the run."""

    name: str = "wsd"
    decay_fraction: float = 0.2
    """Share of the steps after warmup that decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _fraction("scheduler.decay_fraction", self.decay_fraction)


@dataclass
class FlatCosineScheduleConfig(_FloorScheduleConfig):
    """1, then half a cosine to the floor in the last part of the run."""

    name: str = "flat_cosine"
    flat_fraction: float = 0.5
    """Share of the steps after warmup that stay at 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _fraction("scheduler.flat_fraction", self.flat_fraction)


@dataclass
class TorchSchedulerConfig(SchedulerConfig):
    """A torch scheduler: `scheduler=torch scheduler._target_=torch.optim.lr_scheduler.StepLR +scheduler.args.step_size=5`."""

    name: str = "torch"
    _target_: str = MISSING
    """Dotted path of a class whose first argument is the optimizer."""
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for it; a nested `_target_` builds a child scheduler."""
    interval: str = "step"
    """When it steps: step, epoch, or evaluation (ReduceLROnPlateau)."""
    monitor: str = "AP"
    """The validation metric given to it with interval=evaluation."""

    def __post_init__(self) -> None:
        _one_of("scheduler.interval", self.interval, "step", "epoch", "evaluation")


@dataclass
class WarmupConfig:
    """A rise to the full rate in front of the schedule; step w (from 0) of W uses (w + 1) / W of it."""

    name: str = "none"
    """none or linear."""
    steps: Optional[int] = None
    """Length in steps; give steps or epochs."""
    epochs: Optional[float] = None
    """Length in epochs, turned into steps once."""

    def __post_init__(self) -> None:
        _one_of("warmup.name", self.name, "none", "linear")
        _not_negative("warmup", self, "steps", "epochs")
        given = [key for key in ("steps", "epochs") if getattr(self, key) is not None]
        if self.name == "linear":
            require(
                len(given) == 1,
                "warmup",
                f"linear with {' and '.join(given) or 'neither steps nor epochs'}",
                "give one of warmup.steps and warmup.epochs",
            )
        else:
            require(
                not given,
                f"warmup.{given[0] if given else ''}",
                getattr(self, given[0]) if given else None,
                "does nothing with warmup=none; add warmup=linear",
            )


# ----------------------------------------------------------------------------------------------------------------- data
@dataclass
class DataConfig:
    """A data set and how it is read."""

    name: str = MISSING
    """shapes or coco."""
    root: str = MISSING
    """Folder of the data set; relative to the working folder."""
    num_workers: int = 2
    """Processes that read and transform pictures; 0 reads in the main process. The numbers do not depend on it."""
    on_error: str = "error"
    """What an unreadable picture does, found before training starts: error refuses the run, skip leaves it out and says so."""

    def __post_init__(self) -> None:
        _not_negative("data", self, "num_workers")
        _one_of("data.on_error", self.on_error, "error", "skip")


@dataclass
class CocoDataConfig(DataConfig):
    """COCO JSON: `{train,valid,test}/_annotations.coco.json` beside the pictures, or `annotations/*.json` + folders."""

    name: str = "coco"


@dataclass
class ShapesDataConfig(DataConfig):
    """The demo set: coloured shapes, written once with a seed as JPEG files and a COCO file."""

    name: str = "shapes"
    root: str = "data/shapes"
    train_images: int = 200
    """Pictures in the train split."""
    valid_images: int = 50
    """Pictures in the valid split."""
    image_size_px: int = 256
    """Side of a picture."""
    shapes_seed: int = 0
    """Seed of the pictures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("data", self, "train_images", "valid_images")
        require(self.image_size_px >= 32, "data.image_size_px", self.image_size_px, "give 32 or more")


@dataclass
class AugmentationConfig:
    """Random changes of a training picture; each a function of (seed, epoch, index) alone, the scale of (seed, step)."""

    name: str = MISSING
    """Which recipe, as in `augmentation=reference`."""
    horizontal_flip: float = 0.0
    """Probability of a left-right flip."""
    resize_crop: float = 0.0
    """Probability of resize - random crop - resize instead of a plain resize."""
    multi_scale: bool = False
    """Draw the resolution of each step around model.resolution, in steps of patch_size * num_windows."""

    def __post_init__(self) -> None:
        _fraction("augmentation.horizontal_flip", self.horizontal_flip)
        _fraction("augmentation.resize_crop", self.resize_crop)


# ------------------------------------------------------------------------------------------------------------- training
@dataclass
class EmaConfig:
    """Averaged weights, evaluated and saved beside the raw ones."""

    name: str = "default"
    """default: exponential moving average; swa: equal average of the epochs after swa_start_epoch; none."""
    decay: float = 0.993
    """EMA decay d; update t (from 1) uses d * (1 - exp(-t / tau))."""
    tau: float = 100.0
    """Ramp of the decay in steps; 0 uses d at once."""
    swa_start_epoch: int = 10
    """Epochs trained before SWA averages (once an epoch) and its own rate begins."""
    swa_lr_factor: float = 0.1
    """SWA's constant rate as a share of each group's initial one (torch's SWALR)."""
    swa_anneal_epochs: int = 1
    """Epochs in which the rate moves to SWA's."""

    def __post_init__(self) -> None:
        _one_of("ema.name", self.name, "default", "swa", "none")
        require(0.0 <= self.decay < 1.0, "ema.decay", self.decay, "give a number from 0 up to but not including 1")
        _not_negative("ema", self, "tau", "swa_start_epoch", "swa_anneal_epochs")
        _positive("ema", self, "swa_lr_factor")


@dataclass
class EarlyStoppingConfig:
    """Stop when the best AP has not improved for a while."""

    patience: Optional[int] = None
    """Evaluations without improvement before the run ends; null never stops early."""
    min_delta: float = 0.0
    """AP gain that counts as an improvement."""

    def __post_init__(self) -> None:
        _positive("trainer.early_stopping", self, "patience")
        _not_negative("trainer.early_stopping", self, "min_delta")


@dataclass
class TrainerConfig:
    """The run over time."""

    epochs: int = 100
    """Passes over the train split."""
    max_steps: Optional[int] = None
    """Ends the run, and the schedule, after this many steps if the epochs have not."""
    batch_size: int | str = 4
    """Pictures of a micro-batch; auto finds the largest that fits."""
    accumulation_steps: int = 1
    """Micro-batches of a step; the loss is normalised over all of them."""
    precision: str = "auto"
    """fp32, bf16 or fp16 for the network's products; boxes, costs and losses are always fp32. auto: bf16 where the
    hardware has it, else fp32."""
    clip_norm: float = 0.1
    """Largest gradient norm; 0 does not clip."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    memory_budget_gib: Optional[float] = None
    """Memory that batch_size=auto may fill; null is 80% of what is free."""
    log_every_steps: int = 10
    """Train lines in metrics.jsonl: every so many steps, and the last of an epoch."""
    deterministic: bool = False
    """torch.use_deterministic_algorithms: bit-equal runs on CUDA too, where torch can."""
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)

    def __post_init__(self) -> None:
        _positive("trainer", self, "epochs", "max_steps", "accumulation_steps", "log_every_steps", "memory_budget_gib")
        _one_of("trainer.precision", self.precision, "auto", "fp32", "bf16", "fp16")
        _not_negative("trainer", self, "clip_norm")
        ok = self.batch_size == "auto" or (isinstance(self.batch_size, int) and self.batch_size > 0)
        require(ok, "trainer.batch_size", self.batch_size, "give a number above 0, or auto")


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

    def __post_init__(self) -> None:
        _positive("evaluation", self, "every_epochs", "max_dets", "batch_size")
        _one_of("evaluation.weights", self.weights, "raw", "ema", "both")


@dataclass
class CheckpointConfig:
    """What is saved beside `last.pt` at each epoch's end and `best.pt`."""

    every_steps: Optional[int] = None
    """Also save `last.pt` every so many steps."""
    every_epochs: int = 1
    """Epochs between saves of `last.pt`."""
    every_minutes: Optional[float] = None
    """Also save `last.pt` at the first step after so many minutes."""
    keep: int = 0
    """Numbered copies `step-NNNNNN.pt` of the newest saves to keep."""

    def __post_init__(self) -> None:
        _positive("checkpoint", self, "every_steps", "every_epochs", "every_minutes")
        _not_negative("checkpoint", self, "keep")


@dataclass
class LoggerConfig:
    """What a run shows of itself beside metrics.jsonl and metrics.csv."""

    progress: str = "auto"
    """bar, plain, or auto: bars on a terminal, plain lines elsewhere."""
    plots: bool = True
    """Write plots/*.png after each evaluation."""
    sample_images: int = 8
    """Pictures on the sheet of truth and predictions; 0 draws none."""

    def __post_init__(self) -> None:
        _one_of("logger.progress", self.progress, "auto", "bar", "plain")
        _not_negative("logger", self, "sample_images")


@dataclass
class FreezeConfig:
    """A part of the model that does not train, or not at first."""

    until_epoch: Optional[int] = None
    """Epoch at whose start it joins the optimizer; null keeps it frozen throughout."""

    def __post_init__(self) -> None:
        _positive("freeze", self, "until_epoch")


FREEZABLE_PARTS = ("encoder", "projector", "decoder")


@dataclass
class TrainConfig:
    """`python -m rfdetr_train key=value ...`."""

    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    freeze: dict[str, FreezeConfig] = field(default_factory=dict)
    """Parts that do not train: `+freeze.encoder.until_epoch=3`; the parts are encoder, projector and decoder."""
    weights: str = "auto"
    """Where training starts: auto (published weights if cached or reachable, else random, said loudly), none, or a file."""
    weights_dir: str = "~/.cache/rfdetr_train"
    """Folder of downloaded weights."""
    resume: Optional[str] = None
    """Continue a run: a checkpoint, a run folder, or auto (the newest run of the same config under run_dir)."""
    seed: int = 0
    """The seed of everything random."""
    run_dir: str = "runs"
    """Folder in which each run makes its own."""
    name: Optional[str] = None
    """A name for the run, kept in summary.json."""
    notes: Optional[str] = None
    """Free text, kept in summary.json."""

    def __post_init__(self) -> None:
        require(self.seed >= 0, "seed", self.seed, "give 0 or a larger number")
        for part in self.freeze:
            require(
                part in FREEZABLE_PARTS,
                f"freeze.{part}",
                self.freeze[part],
                f"the parts are {', '.join(FREEZABLE_PARTS)}",
            )
        if self.ema.name == "none" and self.evaluation.weights == "ema":
            raise UserError("evaluation.weights=ema: there is no average with ema=none; use evaluation.weights=raw")


@dataclass
class EvaluateDataConfig:
    """Where `evaluate` finds its pictures."""

    root: Optional[str] = None
    """Folder of a data set with the same classes; null takes the one that the checkpoint was trained on."""
    num_workers: int = 2
    """Processes that read pictures; 0 reads in the main process."""

    def __post_init__(self) -> None:
        _not_negative("data", self, "num_workers")


@dataclass
class EvaluateConfig:
    """`python -m rfdetr_train evaluate checkpoint=RUN_OR_FILE key=value ...`."""

    checkpoint: str = MISSING
    """A checkpoint file, or a run folder (its best.pt, else its last.pt)."""
    split: str = "valid"
    """train, valid or test."""
    weights: str = "auto"
    """raw, ema, or auto: those that were best when the checkpoint was written."""
    data: EvaluateDataConfig = field(default_factory=EvaluateDataConfig)
    batch_size: int = 8
    """Pictures at once."""
    max_dets: int = 100
    """Detections of an image that count, by score (COCO: 100)."""
    device: str = "auto"
    """As trainer.device."""
    precision: str = "fp32"
    """As trainer.precision."""
    progress: str = "auto"
    """As logger.progress."""
    sample_images: int = 8
    """As logger.sample_images."""
    run_dir: str = "runs"
    """Folder in which each evaluation makes its own."""

    def __post_init__(self) -> None:
        _positive("evaluate", self, "batch_size", "max_dets")
        _not_negative("evaluate", self, "sample_images")
        _one_of("split", self.split, "train", "valid", "test")
        _one_of("weights", self.weights, "auto", "raw", "ema")
        _one_of("precision", self.precision, "auto", "fp32", "bf16", "fp16")
        _one_of("progress", self.progress, "auto", "bar", "plain")
