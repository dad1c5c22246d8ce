"""Optimizers and how their parameters are grouped."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from rfdetr_train.config.checks import MISSING, NOT_NEGATIVE, POSITIVE, Section, one_of
from rfdetr_train.errors import require


@dataclass
class ParameterRule(Section, place="optimizer.rules"):
    """A user's own hyperparameters for the parameters whose name matches a pattern; later rules win."""

    pattern: str = MISSING
    """Regular expression searched in the parameter's name; one that matches nothing is an error."""
    lr: Annotated[Optional[float], NOT_NEGATIVE] = None
    """Learning rate for them; null keeps what they have."""
    lr_factor: Annotated[Optional[float], NOT_NEGATIVE] = None
    """Factor on the learning rate that they have; null is 1."""
    weight_decay: Annotated[Optional[float], NOT_NEGATIVE] = None
    """Weight decay for them; null keeps what they have."""

    def _check(self) -> None:
        nothing = self.lr is None and self.lr_factor is None and self.weight_decay is None
        remedy = "sets nothing; give lr, lr_factor or weight_decay"
        require(not nothing, "optimizer.rules.pattern", self.pattern, remedy)
        one, remedy = None in (self.lr, self.lr_factor), f"give lr or lr_factor for pattern {self.pattern!r}, not both"
        require(one, "optimizer.rules.lr_factor", self.lr_factor, remedy)


@dataclass
class OptimizerConfig(Section, place="optimizer"):
    """What every optimizer shares: rates by layer (layer-wise decay) and how parameters are grouped."""

    name: str = MISSING
    """Which optimizer, as in `optimizer=adamw`."""
    lr: Annotated[float, NOT_NEGATIVE] = 1e-4
    """Learning rate of everything but the encoder (the decoder's is times component_decay)."""
    encoder_lr: Annotated[float, NOT_NEGATIVE] = 1.5e-4
    """Learning rate of the encoder before its decays."""
    layer_decay: Annotated[float, POSITIVE] = 0.8
    """Factor per encoder layer, from the last down to the embeddings."""
    component_decay: Annotated[float, POSITIVE] = 0.7
    """Factor on the decoder's rate, and twice on the encoder's."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 1e-4
    """Weight decay where the no_decay rule lets it act."""
    no_decay: Annotated[str, one_of("reference", "matrices_only", "none")] = "reference"
    """Which parameters do not decay. reference: the encoder's norms, biases and embeddings; matrices_only: all tensors
    of fewer than two dimensions; none: all parameters decay."""
    merge_groups: bool = True
    """true: one parameter group per distinct (lr, weight decay); false: one group per parameter."""
    rules: list[ParameterRule] = field(default_factory=list)
    """Own hyperparameters by name pattern, applied after the above."""

    def _check(self) -> None:
        """Of the keys below those that several optimizers have."""
        betas, fused, foreach = (getattr(self, key, None) for key in ("betas", "fused", "foreach"))
        ok = betas is None or (len(betas) == 2 and all(0.0 <= beta < 1.0 for beta in betas))
        require(ok, "optimizer.betas", betas, "give two numbers from 0 up to but not including 1")
        require(fused in (None, "auto", True, False), "optimizer.fused", fused, "choose one of auto, true, false")
        both = fused is True and foreach is True
        require(not both, "optimizer.foreach", foreach, "fused=true and foreach=true exclude each other")


@dataclass
class _KernelConfig(OptimizerConfig):
    fused: bool | str = "auto"
    """One kernel per group: auto uses it where torch has it and says why where not; true insists; false never."""
    foreach: Optional[bool] = None
    """Multi-tensor loops: null leaves the choice to torch."""


@dataclass
class AdamConfig(_KernelConfig):
    """Adam (arXiv 1412.6980): the decay is an L2 term in the gradient."""

    name: str = "adam"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """Decay rates of the first and second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    amsgrad: bool = False
    """Keep the largest second moment (arXiv 1904.09237)."""


@dataclass
class AdamWConfig(AdamConfig):
    """AdamW (arXiv 1711.05101): decay apart from the gradient."""

    name: str = "adamw"


@dataclass
class SGDConfig(_KernelConfig):
    """Stochastic gradient descent."""

    name: str = "sgd"
    momentum: float = 0.9
    """Factor on the velocity."""
    dampening: float = 0.0
    """Dampening of the gradient that enters the velocity."""
    nesterov: bool = False
    """Nesterov's look-ahead; wants momentum and no dampening."""

    def _check(self) -> None:
        super()._check()
        ok = not self.nesterov or (self.momentum > 0 and self.dampening == 0)
        require(ok, "optimizer.nesterov", self.nesterov, "wants momentum above 0 and dampening=0")


@dataclass
class AdagradConfig(_KernelConfig):
    """Adagrad (JMLR 12, 2011)."""

    name: str = "adagrad"
    lr_decay: float = 0.0
    """Decay of the rate by step."""
    initial_accumulator_value: float = 0.0
    """Start of the sum of squares."""
    eps: float = 1e-10
    """Added to the root of the sum of squares."""


@dataclass
class RMSpropConfig(_KernelConfig):
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

    def _check(self) -> None:
        super()._check()
        ok = self.fused is not True
        require(ok, "optimizer.fused", self.fused, f"{self.name} has no fused form; use auto or false")


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


@dataclass
class NAdamConfig(RAdamConfig):
    """Adam with Nesterov's momentum; torch has no fused form of it."""

    name: str = "nadam"
    momentum_decay: float = 4e-3
    """Decay of the momentum."""


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
    max_iter: Annotated[int, POSITIVE] = 4
    """Iterations a step."""
    history_size: Annotated[int, POSITIVE] = 10
    """Updates remembered."""
    line_search: Optional[str] = "strong_wolfe"
    """strong_wolfe or null."""

    def _check(self) -> None:
        super()._check()
        known = self.line_search in (None, "strong_wolfe")
        require(known, "optimizer.line_search", self.line_search, "choose strong_wolfe or null")
        for name in ("encoder_lr", "layer_decay", "component_decay", "no_decay", "merge_groups"):
            value, default = getattr(self, name), getattr(OptimizerConfig, name)
            require(
                value == default, f"optimizer.{name}", value, "does nothing: L-BFGS has one rate for all; leave it out"
            )


@dataclass
class MuonConfig(OptimizerConfig):
    """Muon for the matrices of encoder blocks, decoder and two-stage projections, AdamW for the rest; layer-wise rates
    hold for both."""

    name: str = "muon"
    momentum: float = 0.95
    """Muon's momentum."""
    nesterov: bool = True
    """Nesterov's form of it."""
    ns_steps: int = 5
    """Newton-Schulz iterations."""
    adjust_lr: Annotated[str, one_of("original", "match_rms_adamw")] = "match_rms_adamw"
    """How the rate scales with a matrix's shape: original or match_rms_adamw (the AdamW rates then fit)."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """AdamW's decay rates for the rest."""
    eps: float = 1e-8
    """AdamW's epsilon for the rest."""
    fused: bool | str = "auto"
    """As for AdamW, for the rest."""


@dataclass
class LionConfig(OptimizerConfig):
    """Lion (arXiv 2302.06675): the sign of an interpolated momentum; wants a rate 3 to 10 times below AdamW's."""

    name: str = "lion"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.99])
    """Interpolation of the update, decay of the momentum."""
    foreach: Optional[bool] = None
    """As for AdamW."""


@dataclass
class CustomOptimizerConfig(OptimizerConfig):
    """Any optimizer class: `optimizer=custom optimizer._target_=package.Class +optimizer.args.key=value`."""

    name: str = "custom"
    _target_: str = MISSING
    """Dotted path of a class that takes parameter groups."""
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for it."""
