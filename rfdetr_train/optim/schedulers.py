"""The scheduler as the training loop sees it, whatever drives it: presets, torch schedulers per step or per epoch.

The loop calls `step()` after each optimizer step, `epoch_end()` after the last of an epoch and `evaluated(metrics)`
after each evaluation; a scheduler ignores the calls that are not its own.
"""

import logging
from collections.abc import Mapping, Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from rfdetr_train.config import SchedulerConfig, TorchSchedulerConfig
from rfdetr_train.errors import UserError
from rfdetr_train.optim.scheduler_state import check_extensible, extend, kind_of, loadable, plain
from rfdetr_train.optim.schedules import Schedule, build_schedule, check_warmup, warmup
from rfdetr_train.optim.torch_schedulers import build_torch_scheduler
from rfdetr_train.state_dicts import State, group_names, initial_lr_of, set_lr

log = logging.getLogger(__name__)


def build_scheduler(
    optimizer: Optimizer,
    config: SchedulerConfig,
    *,
    warmup_steps: int,
    total_steps: int,
    steps_per_epoch: int,
    parameter_order: Sequence[str] | None = None,
) -> "ManagedScheduler":
    """The config's scheduler on `optimizer`, whose groups stand at their initial rates; sets the rates of step 0.

    parameter_order: parameter names in the order of an `lr_lambda` list with one entry per parameter.
    Raises UserError for a warmup as long as the run and for compositions that torch computes wrongly.
    """
    schedule = build_schedule(
        config, warmup_steps=warmup_steps, total_steps=total_steps, steps_per_epoch=steps_per_epoch
    )
    if schedule is not None:
        return PresetScheduler(optimizer, schedule)
    if not isinstance(config, TorchSchedulerConfig):
        raise UserError(f"scheduler={config.name}: there is no such schedule")
    check_warmup(warmup_steps, total_steps)
    per_step = config.interval == "step"
    torch_scheduler = build_torch_scheduler(
        optimizer, config, warmup_steps=warmup_steps if per_step else 0, parameter_order=parameter_order
    )
    if per_step:
        return ManagedScheduler(optimizer, torch_scheduler)
    return EpochScheduler(optimizer, torch_scheduler, config, warmup_steps)


class ManagedScheduler:
    """A torch scheduler that steps with the optimizer."""

    def __init__(self, optimizer: Optimizer, scheduler: LRScheduler) -> None:
        self.optimizer = optimizer
        self.scheduler = scheduler

    @property
    def last_lr(self) -> dict[str, float]:
        """The rate of the next optimizer step, by group name."""
        groups = self.optimizer.param_groups
        return {name: float(group["lr"]) for name, group in zip(group_names(groups), groups, strict=True)}

    def lr_at(self, step: int) -> dict[str, float]:
        """The rate at any step (from 0) by group name, where the schedule is a pure function of the step."""
        raise UserError(f"scheduler={type(self.scheduler).__name__}: its rates are known only by stepping it")

    def step(self) -> None:
        """To be called after each optimizer step."""
        self.scheduler.step()

    def epoch_end(self) -> None:
        """To be called after the last `step()` of each epoch."""

    def evaluated(self, metrics: Mapping[str, float | None]) -> None:
        """To be called after each evaluation of the valid split."""

    def state_dict(self) -> State:
        """Plain values only; the torch scheduler's own state, and `kind`, what it is."""
        return {**plain(self.scheduler.state_dict()), "kind": kind_of(self.scheduler)}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state`, as given by `state_dict()` or by a torch scheduler of the same kind.

        Over the groups of this optimizer, which is loaded first: torch schedulers go on from the rates that the groups
        have. Raises UserError for the state of another kind.
        """
        self._check_kind(state)
        torch_state = {key: value for key, value in state.items() if key != "kind"}
        self.scheduler.load_state_dict(loadable(self.scheduler, torch_state))

    def check_extensible(self) -> None:
        """Refuse, before training, a scheduler that cannot take over groups later."""
        check_extensible(self.scheduler)

    def add_groups(self, first: int) -> None:
        """Take over the optimizer's groups from index `first` on, as if they had been there from the start."""
        self.check_extensible()
        factor = self._common_factor(first)
        for group in self.optimizer.param_groups[first:]:
            group["initial_lr"] = float(group["lr"])
            set_lr(group, group["initial_lr"] * factor)
        extend(self.scheduler, self.optimizer, first)

    def _check_kind(self, state: State) -> None:
        """A state without `kind`, as torch writes it, is judged by its keys."""
        own = kind_of(self.scheduler)
        same = state["kind"] == own if "kind" in state else set(state) == set(self.scheduler.state_dict())
        if not same:
            raise UserError(
                f"resume: the checkpoint's scheduler is {state.get('kind', 'of another kind')}, the config's is {own}; "
                "keep the run's scheduler, or start a new run from its weights"
            )

    def _common_factor(self, first: int) -> float:
        """Present over initial rate, which must be one number for all groups before `first`."""
        groups = [group for group in self.optimizer.param_groups[:first] if group["initial_lr"]]  # not those held at 0
        factors = [float(group["lr"]) / float(group["initial_lr"]) for group in groups] or [1.0]
        if max(factors) - min(factors) > 1e-9 * max(factors):
            raise UserError(
                f"scheduler={type(self.scheduler).__name__}: its groups do not share one factor, so the rate of a part "
                "that joins later is not defined; use a preset such as scheduler=cosine"
            )
        return factors[0]


class PresetScheduler(ManagedScheduler):
    """A pure function of the step, driven by one `LambdaLR`: its state is one integer."""

    def __init__(self, optimizer: Optimizer, schedule: Schedule) -> None:
        super().__init__(optimizer, LambdaLR(optimizer, schedule))
        self.schedule = schedule

    def lr_at(self, step: int) -> dict[str, float]:
        factor, groups = self.schedule(step), self.optimizer.param_groups
        return {name: initial_lr_of(g) * factor for name, g in zip(group_names(groups), groups, strict=True)}

    def load_state_dict(self, state: State) -> None:
        """Also sets the groups to the rates of the loaded step: the present config's schedule and rates hold."""
        super().load_state_dict(state)
        factor = self.schedule(self.scheduler.last_epoch)
        self.scheduler.base_lrs = [group["initial_lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            set_lr(group, initial_lr_of(group) * factor)
        self.scheduler._last_lr = [float(group["lr"]) for group in self.optimizer.param_groups]

    def _common_factor(self, first: int) -> float:
        return self.schedule(self.scheduler.last_epoch)


class EpochScheduler(ManagedScheduler):
    """A torch scheduler that steps once an epoch, or once an evaluation, under a warmup that runs per step.

    Two clocks do not fit into one `SequentialLR`. So the torch scheduler sees its own, full rates whenever it steps,
    and an optimizer step uses (w + 1) / W of them during warmup. Epochs are counted from the start of the run.
    """

    def __init__(
        self, optimizer: Optimizer, scheduler: LRScheduler, config: TorchSchedulerConfig, warmup_steps: int
    ) -> None:
        super().__init__(optimizer, scheduler)
        self.interval, self.monitor, self.warmup_steps = config.interval, config.monitor, warmup_steps
        self.steps = 0
        self.full_lrs = self._group_lrs()
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", float(group["lr"]))  # ReduceLROnPlateau does not
        self._use_share_of_full_lrs()

    def step(self) -> None:
        self.steps += 1
        self._use_share_of_full_lrs()

    def epoch_end(self) -> None:
        if self.interval == "epoch":
            self._step_at_full_lrs()

    def evaluated(self, metrics: Mapping[str, float | None]) -> None:
        if self.interval != "evaluation":
            return
        if self.monitor not in metrics:
            raise UserError(f"scheduler.monitor={self.monitor}: the evaluation gives {', '.join(metrics)}")
        value = metrics[self.monitor]
        if value is None:
            log.warning("%s has no value: %s does not step", self.monitor, type(self.scheduler).__name__)
        else:
            self._step_at_full_lrs(value)

    def state_dict(self) -> State:
        return {**super().state_dict(), "steps": self.steps, "full_lrs": list(self.full_lrs)}

    def load_state_dict(self, state: State) -> None:
        own = ("steps", "full_lrs")
        super().load_state_dict({key: value for key, value in state.items() if key not in own})
        self.steps, self.full_lrs = state["steps"], list(state["full_lrs"])
        self._use_share_of_full_lrs()

    def add_groups(self, first: int) -> None:
        super().add_groups(first)
        share = warmup(self.steps, self.warmup_steps)
        self.full_lrs += [lr / share for lr in self._group_lrs()[first:]]

    def _group_lrs(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _step_at_full_lrs(self, *metric: float) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.full_lrs, strict=True):
            set_lr(group, lr)
        self.scheduler.step(*metric)  # type: ignore[arg-type]  # ReduceLROnPlateau takes a metric
        self.full_lrs = self._group_lrs()
        self._use_share_of_full_lrs()

    def _use_share_of_full_lrs(self) -> None:
        share = warmup(self.steps, self.warmup_steps)
        for group, lr in zip(self.optimizer.param_groups, self.full_lrs, strict=True):
            set_lr(group, lr * share)
