"""`hydra/sweeper=optuna`: the trials of a study as jobs of the same numbers; it lies in the sweep's folder (SQLite)."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

from rfdetr_train.config import OptunaSweeperConfig
from rfdetr_train.errors import JobFailed, UserError
from rfdetr_train.sweeps.folder import Job, read_jobs

HOPELESS = "hopeless"
"""The mark on a trial that has been ended early."""


class StudySweeper(Sweeper):
    """Asks the study for values, launches the jobs, and tells it what came of them."""

    def __init__(self, **keys: Any) -> None:
        self.keys = OptunaSweeperConfig(**keys)
        if find_spec("optuna") is None:
            raise UserError("hydra/sweeper=optuna: Optuna is not installed; pip install 'rfdetr_train[optuna]'")

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """What Hydra calls first."""
        self.loader, self.sweep_dir = hydra_context.config_loader, Path(config.hydra.sweep.dir).resolve()
        self.launcher: Any = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> None:
        """Finish the trials that a killed process has left running, then make those that are missing.

        Raises JobFailed at the end if a job has failed.
        """
        fixed, space = self._split(arguments)
        with opened_study(self.sweep_dir, self.keys) as study:
            left = [trial for trial in study.trials if trial.state.name == "RUNNING"]
            failed = sum(self._launch(study, [trial], fixed) for trial in left)
            missing = self.keys.n_trials - sum(trial.state.name in ("COMPLETE", "PRUNED") for trial in study.trials)
            for first in range(0, missing, self.keys.n_jobs):
                count = min(self.keys.n_jobs, missing - first)
                failed += self._launch(study, [study.ask(space) for _ in range(count)], fixed)
        if failed:
            raise JobFailed(f"{failed} trials have no AP")

    def _split(self, arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        """Overrides that all jobs share, and the distribution of each key that is searched."""
        given = [*(f"{key}={value}" for key, value in self.keys.params.items()), *arguments]
        parsed = OverridesParser.create(config_loader=self.loader).parse_overrides(given)
        last = {override.get_key_element(): override for override in parsed}  # the command line comes after the file
        space = {key: _distribution(override) for key, override in last.items() if override.is_sweep_override()}
        if not space:
            raise UserError("hydra/sweeper=optuna: nothing to search; give hparams=rates, or 'KEY=interval(LOW,HIGH)'")
        return [str(override.input_line) for key, override in last.items() if key not in space], space

    def _launch(self, study: Any, trials: Sequence[Any], fixed: list[str]) -> int:
        """Run trials of consecutive numbers and tell the study; how many failed."""
        from optuna.trial import TrialState

        self.launcher.launch([[*fixed, *_overrides(trial)] for trial in trials], initial_job_idx=trials[0].number)
        ended = {job.number: job for job in read_jobs(self.sweep_dir)}
        for number in (trial.number for trial in trials):
            job = ended.get(number, Job(number, []))
            if job.status == "completed" and job.AP is not None:
                study.tell(number, job.AP)
            else:  # one without an AP, or with NaN, teaches nothing: it failed
                study.tell(number, state=TrialState.PRUNED if job.status == "pruned" else TrialState.FAIL)
        return sum(study.trials[trial.number].state == TrialState.FAIL for trial in trials)


def _overrides(trial: Any) -> list[str]:
    """Six digits of a number are enough for everything that is searched, and can be read."""
    return [
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in trial.params.items()
    ]


def _distribution(override: Any) -> Any:
    """What Hydra's grammar of sweeps means to Optuna; UserError where it means nothing."""
    try:
        return _as_optuna_has_it(override)
    except (ValueError, TypeError) as error:
        raise UserError(f"{override.input_line}: cannot be searched: {error}") from error


def _as_optuna_has_it(override: Any) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    sweep, log = override.value(), "log" in override.value().tags
    if override.is_interval_sweep():
        kind = IntDistribution if isinstance(sweep.start, int) and isinstance(sweep.end, int) else FloatDistribution
        return kind(sweep.start, sweep.end, log=log)
    if override.is_range_sweep() and isinstance(sweep.range(), range):
        return IntDistribution(sweep.range()[0], sweep.range()[-1], step=sweep.step)
    return CategoricalDistribution(list(override.sweep_string_iterator()))


@contextmanager
def opened_study(sweep_dir: Path, keys: OptunaSweeperConfig) -> Iterator[Any]:
    """The study of the folder, made if there is none, maximising AP; its file is closed when the block is left."""
    import optuna
    from sqlalchemy.engine import URL

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    address = URL.create("sqlite", database=str(sweep_dir / "study.db")).render_as_string()
    storage = optuna.storages.RDBStorage(address, engine_kwargs={"connect_args": {"timeout": 120}})
    pruners = {
        "none": optuna.pruners.NopPruner(),
        # it looks from this step on; a trial's steps are its epochs, from 1
        "median": optuna.pruners.MedianPruner(keys.pruner_startup_trials, n_warmup_steps=keys.pruner_warmup_epochs + 1),
        "hyperband": optuna.pruners.HyperbandPruner(min_resource=keys.pruner_warmup_epochs),
    }
    try:
        study = optuna.create_study(
            storage=storage, study_name="sweep", direction="maximize", load_if_exists=True, pruner=pruners[keys.pruner]
        )
        seed = keys.seed + len(study.trials)  # one that goes on does not draw its first points again
        study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=keys.startup_trials)
        yield study
    finally:
        storage.engine.dispose()


def report(sweep_dir: Path, keys: OptunaSweeperConfig, job: Job, epoch: int, ap: float | None) -> bool:
    """Tell the study how a job does and ask its pruner whether that is hopeless; an AP of None is not told."""
    import optuna

    if ap is None or not math.isfinite(ap):
        return False
    with opened_study(sweep_dir, keys) as study:
        study.sampler = optuna.samplers.RandomSampler()  # nothing is drawn here
        known = study.trials[job.number]
        trial = optuna.Trial(study, known._trial_id)
        if epoch not in known.intermediate_values:  # a resumed job may have told it before
            trial.report(ap, epoch)
        hopeless = bool(trial.should_prune())
        if hopeless:
            trial.set_user_attr(HOPELESS, True)
    return hopeless


def is_hopeless(sweep_dir: Path, keys: OptunaSweeperConfig, job: Job) -> bool:
    """Whether the study has ended a job, perhaps in another process than this one."""
    with opened_study(sweep_dir, keys) as study:
        return HOPELESS in study.trials[job.number].user_attrs
