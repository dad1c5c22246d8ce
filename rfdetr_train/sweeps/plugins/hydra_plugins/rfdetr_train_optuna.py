"""Hydra takes sweepers from this namespace package only, and imports all of it: so there is little here."""

from rfdetr_train.sweeps.study import StudySweeper


class OptunaSweeper(StudySweeper):
    """`hydra/sweeper=optuna`."""
