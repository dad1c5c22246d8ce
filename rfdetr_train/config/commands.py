"""What each command, and a sweep of them, takes: the sections of the other files, put together."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from rfdetr_train.config.augmentation import AugmentationConfig
from rfdetr_train.config.checks import (
    BELOW_ONE,
    COUNT_OR_AUTO,
    FOLDER,
    MISSING,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Section,
    check_address,
    one_of,
)
from rfdetr_train.config.data import FORMATS, DataConfig
from rfdetr_train.config.model import PUBLISHED_BACKBONE, ModelConfig
from rfdetr_train.config.optimizer import OptimizerConfig
from rfdetr_train.config.schedule import SchedulerConfig, WarmupConfig
from rfdetr_train.config.training import (
    BACKENDS,
    AveragingConfig,
    CheckpointConfig,
    EvaluationConfig,
    FreezeConfig,
    LoggerConfig,
    LossConfig,
    SwaConfig,
    TrainerConfig,
)
from rfdetr_train.errors import UserError, require


@dataclass
class TrainConfig(Section):
    """`python -m rfdetr_train key=value ...`."""

    model: ModelConfig = MISSING
    optimizer: OptimizerConfig = MISSING
    scheduler: SchedulerConfig = MISSING
    warmup: WarmupConfig = MISSING
    data: DataConfig = MISSING
    augmentation: AugmentationConfig = MISSING
    ema: AveragingConfig = MISSING
    evaluation: EvaluationConfig = MISSING
    loss: LossConfig = field(default_factory=LossConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logger: LoggerConfig = MISSING
    freeze: FreezeConfig = field(default_factory=FreezeConfig)
    weights: str = "auto"
    """Where training starts: auto (published weights if cached or reachable, else random, said loudly), coco (published
    weights or an error), none (random), a checkpoint file or run folder, or the https address of a file, best with its
    checksum: https://host/x.pth#sha256=... (or md5)."""
    weights_allow_partial: bool = False
    """Take what fits of `weights` or `resume` where it is less than half of the model; without it that is refused."""
    weights_dir: Annotated[str, FOLDER] = "~/.cache/rfdetr_train"
    """Folder of downloaded weights; processes may share it."""
    resume: Optional[str] = None
    """Continue a run: a checkpoint, also a .ckpt of the reference package, a run folder, or auto (the newest run of the
    same config under run_dir)."""
    seed: int = 0
    """The seed of everything random."""
    run_dir: Annotated[str, FOLDER] = "runs"
    """Folder in which each run makes its own."""
    name: Optional[str] = None
    """A name for the run, kept in summary.json."""
    notes: Optional[str] = None
    """Free text, kept in summary.json."""

    def _check(self) -> None:
        require(0 <= self.seed < 2**64, "seed", self.seed, "give a number from 0 to 2^64 - 1")
        require(bool(self.weights), "weights", repr(self.weights), "give auto, coco, none, a path or an address")
        if "://" in self.weights:
            check_address("weights", self.weights)
        self._check_model()
        unused = self.weights_allow_partial and self.weights == "none" and self.resume is None
        require(not unused, "weights_allow_partial", True, "does nothing with weights=none; leave it out")
        for part in ("encoder", "projector", "decoder"):
            until = getattr(self.freeze, part).until_epoch
            ok = until is None or until < self.trainer.epochs
            require(ok, f"freeze.{part}.until_epoch", until, f"never comes with trainer.epochs={self.trainer.epochs}; "
                    f"use freeze.{part}.always=true")  # fmt: skip
        off, epochs = self.augmentation.off_last_epochs, self.trainer.epochs
        require(off is None or off < epochs, "augmentation.off_last_epochs", off,
                f"leaves no epoch of trainer.epochs={epochs}; lower it, or choose another augmentation")  # fmt: skip
        if isinstance(self.ema, SwaConfig):
            require(self.ema.start_epoch < self.trainer.epochs, "ema.start_epoch", self.ema.start_epoch,
                    f"never comes with trainer.epochs={self.trainer.epochs}; lower it")  # fmt: skip
        if self.ema.name == "none" and self.evaluation.weights == "ema":
            raise UserError("evaluation.weights=ema: there is no average with ema=none; use evaluation.weights=raw")

    def _check_model(self) -> None:
        model = self.model
        channels = model.input_channels
        require(channels in (1, 3), "model.input_channels", channels, "training reads RGB; give 3, or 1 for luminance")
        published = model.backbone == PUBLISHED_BACKBONE and not model.pretrained
        require(published or self.weights != "coco", "weights", self.weights, "the published weights bring their own "
                f"{PUBLISHED_BACKBONE}: use weights=auto, or that backbone and model.pretrained=false")  # fmt: skip
        none_trains = model.lora_rank > 0 and self.freeze.encoder.always
        require(not none_trains, "freeze.encoder.always", True, f"freezes the adapters of model.lora_rank="
                f"{model.lora_rank} too; the rest of the encoder is frozen without it")  # fmt: skip


@dataclass
class DoctorConfig(TrainConfig):
    """`python -m rfdetr_train doctor key=value ...`: the keys of the training run whose data set is examined, so that
    one command line serves both. Of those, data, model, augmentation and seed matter here."""

    preview: bool = False
    """Show training pictures as the augmentation makes them."""
    num_pictures: Annotated[int, POSITIVE] = 8
    """Pictures on a sheet, of each finding and of the preview."""
    fail_on: Annotated[str, one_of("error", "warning")] = "error"
    """The least severity that makes the exit code 1: error or warning."""


@dataclass
class EvaluateDataConfig(Section, place="data"):
    """Where `evaluate` finds its pictures."""

    root: Optional[str] = None
    """Folder of a data set with the same classes; null takes the one that the checkpoint was trained on."""
    format: Annotated[str, one_of(*FORMATS, "auto")] = "auto"
    """Its format, as data.format of a training run; auto takes that of the run, and finds out another data set's."""
    num_workers: Annotated[int, NOT_NEGATIVE] = 2
    """Processes that read pictures; 0 reads in the main process."""
    on_error: Annotated[str, one_of("error", "skip")] = "error"
    """As data.on_error of a training run."""
    max_megapixels: Annotated[float, POSITIVE] = 150.0
    """As data.max_megapixels of a training run."""


@dataclass
class CheckpointConsumerConfig(Section):
    """What the commands that take a checkpoint share."""

    checkpoint: str = MISSING
    """A checkpoint file, or a run folder (its best.pt, else its last.pt)."""
    weights: Annotated[str, one_of("auto", "raw", "ema")] = "auto"
    """raw, ema, or auto: those that were best when the checkpoint was written."""
    run_dir: str = "runs"
    """Folder in which each evaluation, prediction or export makes its own."""


@dataclass
class InferenceConfig(CheckpointConsumerConfig):
    """What the commands that run the detector share."""

    batch_size: Annotated[int, POSITIVE] = 8
    """Pictures, or tiles, at once."""
    device: str = "auto"
    """As trainer.device."""
    precision: Annotated[str, one_of("auto", "fp32", "bf16", "fp16")] = "fp32"
    """As trainer.precision."""


@dataclass
class EvaluateConfig(InferenceConfig):
    """`python -m rfdetr_train evaluate checkpoint=RUN_OR_FILE key=value ...`."""

    split: Annotated[str, one_of("train", "valid", "test")] = "valid"
    """train, valid or test."""
    data: EvaluateDataConfig = field(default_factory=EvaluateDataConfig)
    devices: Annotated[int | str, COUNT_OR_AUTO] = 1
    """Processes on this machine, as trainer.devices; each batch is one's, and the results are those of one process."""
    max_dets: Annotated[int, POSITIVE] = 100
    """Detections of an image that count, by score (COCO: 100)."""
    backend: Annotated[str, one_of(*BACKENDS)] = "auto"
    """As evaluation.backend."""
    progress: Annotated[str, one_of("auto", "bar", "plain")] = "auto"
    """As logger.progress."""
    sample_images: Annotated[int, NOT_NEGATIVE] = 8
    """As logger.sample_images."""


@dataclass
class ExportConfig(CheckpointConsumerConfig):
    """`python -m rfdetr_train export checkpoint=RUN_OR_FILE format=... key=value ...`."""

    format: Annotated[str, one_of("onnx", "torch_export", "safetensors", "reference")] = "onnx"
    """onnx; torch_export (a .pt2 program); safetensors (weights alone); or reference (a .pth of the reference
    package)."""
    opset: Optional[int] = None
    """The version of ONNX's operators, for format=onnx; null is 20."""

    def _check(self) -> None:
        meant = self.opset is None or self.format == "onnx"
        require(meant, "opset", self.opset, f"means nothing with format={self.format}; leave it out")
        require(self.opset is None or 18 <= self.opset <= 23, "opset", self.opset, "give a number from 18 to 23")


@dataclass
class PredictConfig(InferenceConfig):
    """`python -m rfdetr_train predict checkpoint=RUN_OR_FILE source=IMAGE|FOLDER|GLOB|VIDEO key=value ...`."""

    source: str = MISSING
    """A picture, a folder (searched through), a pattern, or a video."""
    threshold: Annotated[float, SHARE] = 0.5
    """Detections below this score are left out."""
    classes: Optional[list[str]] = None
    """Names of the classes to keep; null keeps all."""
    tile_px: Annotated[Optional[int], POSITIVE] = None
    """Side of the tiles that larger pictures are cut into, so that small objects keep their pixels; null uses none."""
    tile_overlap: Annotated[float, BELOW_ONE] = 0.2
    """Least share of a tile that the next one covers too."""
    draw: bool = True
    """Write the pictures with their boxes."""
    max_megapixels: Annotated[float, POSITIVE] = 150.0
    """Larger pictures are skipped."""


@dataclass
class OptunaSweeperConfig(Section, place="hydra.sweeper"):
    """The keys of the sweeper `hydra/sweeper=optuna`, such as `hydra.sweeper.n_trials=50`."""

    _target_: str = "hydra_plugins.rfdetr_train_optuna.OptunaSweeper"
    """The class that Hydra makes."""
    params: dict[str, Any] = field(default_factory=dict)
    """What is searched: {key: "interval(0.1, 1)", "tag(log, interval(1e-5, 1e-2))", "int(interval(1, 9))",
    "range(0, 100, 10)" or "choice(a, b)"}. On the command line: KEY=interval(0.1,1)."""
    n_trials: Annotated[int, POSITIVE] = 20
    """Trials in all, pruned ones included, failed ones not; a study that is continued makes those that are missing."""
    n_jobs: Annotated[int, POSITIVE] = 1
    """Trials that are launched together; they run at once under hydra/launcher=joblib and the like."""
    startup_trials: Annotated[int, NOT_NEGATIVE] = 10
    """Random trials before the sampler (TPE) goes by what they found."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Seed of the sampler."""
    pruner: Annotated[str, one_of("none", "median", "hyperband")] = "median"
    """none, median (ends a trial below the median of the earlier ones after the same epoch), or hyperband."""
    pruner_startup_trials: Annotated[int, NOT_NEGATIVE] = 5
    """Trials that median lets finish first."""
    pruner_warmup_epochs: Annotated[int, POSITIVE] = 1
    """Epochs that every trial gets."""
