from copy import deepcopy

import pytest
import torch

from rfdetr_train.config import MuonConfig
from rfdetr_train.optim.algorithms import Lion
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate


def make_parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in ((3, 4), (5,), (2, 3, 2))
    ]


def give(parameters, step):
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


@pytest.mark.parametrize("foreach", [False, True])
def test_follows_the_paper_in_float64(foreach):
    """Algorithm 2 of arXiv 2302.06675, one number at a time."""
    lr, beta1, beta2, decay = 0.01, 0.9, 0.99, 0.1
    parameters = make_parameters(torch.float64)
    optimizer = Lion(parameters, lr=lr, betas=(beta1, beta2), weight_decay=decay, foreach=foreach)
    weights = [value for p in parameters for value in p.detach().flatten().tolist()]
    momenta = [0.0] * len(weights)
    for step in range(10):
        give(parameters, step)
        grads = [value for p in parameters for value in p.grad.flatten().tolist()]
        optimizer.step()
        for i, grad in enumerate(grads):
            interpolated = beta1 * momenta[i] + (1 - beta1) * grad
            sign = (interpolated > 0) - (interpolated < 0)
            weights[i] -= lr * (sign + decay * weights[i])
            momenta[i] = beta2 * momenta[i] + (1 - beta2) * grad
    found = [value for p in parameters for value in p.detach().flatten().tolist()]
    assert found == pytest.approx(weights, abs=1e-14)
    assert [v for p in parameters for v in optimizer.state[p]["exp_avg"].flatten().tolist()] == pytest.approx(momenta)


def test_foreach_equals_the_loop_to_the_bit():
    results = []
    for foreach in (False, True):
        parameters = make_parameters()
        optimizer = Lion(parameters, lr=0.01, weight_decay=0.1, foreach=foreach)
        for step in range(20):
            give(parameters, step)
            optimizer.step()
        results.append(parameters)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_first_step_moves_every_weight_by_the_rate():
    (weight,) = parameters = [torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))]
    weight.grad = torch.tensor([5.0, -1e-6, 0.0])
    Lion(parameters, lr=0.25).step()
    assert weight.tolist() == [0.75, -1.75, 3.0]


def test_closure_runs_with_gradients_and_its_loss_comes_back():
    (weight,) = parameters = [torch.nn.Parameter(torch.tensor([2.0]))]
    optimizer = Lion(parameters, lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 4.0
    assert weight.item() == 1.5


def test_parameters_without_gradient_stay_and_keep_no_state():
    parameters = make_parameters()
    optimizer = Lion(parameters)
    optimizer.step()
    assert not optimizer.state


@pytest.mark.parametrize("bad", [{"lr": -1.0}, {"betas": (1.0, 0.9)}, {"weight_decay": -0.1}, {"lr": float("nan")}])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ValueError, match="Invalid"):
        Lion(make_parameters(), **bad)


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
