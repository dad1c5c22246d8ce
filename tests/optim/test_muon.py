from copy import deepcopy

import torch

from rfdetr_train.config import MuonConfig
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate

CONFIG = MuonConfig(lr=1e-2, encoder_lr=1e-2, fused=False)


def build(module):
    return build_optimizer(CONFIG, annotate(module.named_parameters(), module.parameter_roles(), CONFIG), "cpu")


def test_equals_torchs_two_optimizers_to_the_bit(make_toy, give_gradients):
    module, twin = make_toy(), make_toy()
    optimizer = build(module)
    parameters = dict(twin.named_parameters())
    shares: dict[bool, list[dict]] = {True: [], False: []}
    for group in optimizer.param_groups:
        params = [parameters[name] for name in group["param_names"]]
        shares[group["use_muon"]].append({"params": params, "lr": group["lr"], "weight_decay": group["weight_decay"]})
    muon = torch.optim.Muon(shares[True], momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(shares[False])
    for step in range(5):
        give_gradients(module, step)
        give_gradients(twin, step)
        optimizer.step()
        muon.step()
        adamw.step()
    for one, other in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


def test_is_one_optimizer(make_toy, give_gradients):
    """State dict, load, hooks, zero_grad and closure as of any other."""
    module, twin = make_toy(), make_toy()
    optimizer, other = build(module), build(twin)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for step in range(3):
        give_gradients(module, step)
        optimizer.step()
    assert len(calls) == 3
    twin.load_state_dict(module.state_dict())
    other.load_state_dict(deepcopy(optimizer.state_dict()))  # torch would share the tensors
    give_gradients(module, 9)
    give_gradients(twin, 9)
    assert optimizer.step(lambda: 1.5) == 1.5
    other.step()
    for one, two in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two)
    keys = {name: set(optimizer.state[p]) for name, p in module.named_parameters()}
    assert keys["decoder.weight"] == {"momentum_buffer"}
    assert keys["head.weight"] == {"step", "exp_avg", "exp_avg_sq"}
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in module.parameters())
