"""Let parts of the model join the optimizer while it runs."""

from collections.abc import Sequence

from torch.optim import LBFGS, Adagrad, Optimizer

from rfdetr_train.errors import UserError
from rfdetr_train.optim.muon import MuonWithAdamW
from rfdetr_train.optim.param_groups import AnnotatedParameter, group
from rfdetr_train.optim.schedulers import ManagedScheduler


def check_can_join(optimizer: Optimizer, scheduler: ManagedScheduler) -> None:
    """Refuse, before training, an optimizer or scheduler that no part can join later."""
    if isinstance(optimizer, LBFGS):
        raise UserError("freeze: lbfgs has one fixed group, so no part can join later; freeze it throughout")
    scheduler.check_extensible()


def join(
    optimizer: Optimizer, scheduler: ManagedScheduler, annotated: Sequence[AnnotatedParameter], merge: bool
) -> None:
    """Add the parameters as new groups, with the rates that they would have by now had they trained from the start.

    Their moments start empty. Raises UserError where `check_can_join` does.
    """
    check_can_join(optimizer, scheduler)
    first = len(optimizer.param_groups)
    taken = {one_group["group_name"] for one_group in optimizer.param_groups if "group_name" in one_group}
    groups = group(annotated, merge, split_hidden_matrices=isinstance(optimizer, MuonWithAdamW))
    for one_group in groups:
        while one_group["group_name"] in taken:
            one_group["group_name"] += ".joined"
        optimizer.add_param_group(one_group)
    if isinstance(optimizer, Adagrad):
        _fill_sums(optimizer, first)
    scheduler.add_groups(first)


def _fill_sums(optimizer: Adagrad, first: int) -> None:
    """Adagrad makes its state when it is built, and only then."""
    for one_group in optimizer.param_groups[first:]:
        own = {key: value for key, value in one_group.items() if key in optimizer.defaults}
        fresh = Adagrad(one_group["params"], **own)
        optimizer.state.update(fresh.state)
