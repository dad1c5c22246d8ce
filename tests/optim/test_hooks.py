import pytest
import torch

from rfdetr_train.config import AdamWConfig, LBFGSConfig
from rfdetr_train.optim.hooks import StepNorms
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate


@pytest.fixture
def parts(make_toy):
    module = make_toy()
    config = AdamWConfig(lr=1e-2, encoder_lr=1e-2)
    annotated = annotate(module.named_parameters(), module.parameter_roles(), config)
    return module, build_optimizer(config, annotated, "cpu")


def test_norms_of_each_group(parts, give_gradients):
    module, optimizer = parts
    norms = StepNorms(optimizer)
    before = {name: parameter.detach().double() for name, parameter in module.named_parameters()}
    give_gradients(module, 0)

    norms.arm()
    optimizer.step()

    measured = norms.read()
    after = dict(module.named_parameters())
    for group in optimizer.param_groups:
        names = group["param_names"]
        grads = torch.cat([after[name].grad.double().flatten() for name in names])
        update = torch.cat([(after[name].detach().double() - before[name]).flatten() for name in names])
        assert measured["grad_norm"][group["group_name"]] == pytest.approx(grads.norm().item(), rel=1e-5)
        assert measured["update_norm"][group["group_name"]] == pytest.approx(update.norm().item(), rel=1e-3)


def test_only_armed_steps_are_measured_and_read_once(parts, give_gradients):
    module, optimizer = parts
    norms = StepNorms(optimizer)
    give_gradients(module, 0)
    optimizer.step()
    assert norms.read() is None

    norms.arm()
    optimizer.step()
    optimizer.step()
    assert norms.read() is not None
    assert norms.read() is None


def test_measuring_changes_no_bit(make_toy, give_gradients):
    modules = []
    for measure in (True, False):
        module = make_toy()
        annotated = annotate(module.named_parameters(), module.parameter_roles(), AdamWConfig())
        optimizer = build_optimizer(AdamWConfig(), annotated, "cpu")
        norms = StepNorms(optimizer)
        for step in range(3):
            give_gradients(module, step)
            if measure:
                norms.arm()
            optimizer.step()
        modules.append(module)
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in modules), strict=True))


def test_a_group_without_gradients_has_norm_zero(parts):
    _, optimizer = parts
    norms = StepNorms(optimizer)
    norms.arm()
    optimizer.step()
    measured = norms.read()
    assert set(measured["grad_norm"].values()) == set(measured["update_norm"].values()) == {0.0}


def test_a_step_with_a_closure(make_toy):
    module = make_toy()
    config = LBFGSConfig(lr=1.0)
    optimizer = build_optimizer(config, annotate(module.named_parameters(), module.parameter_roles(), config), "cpu")
    norms = StepNorms(optimizer)
    norms.arm()

    def closure():
        optimizer.zero_grad()
        loss = sum((parameter**2).sum() for parameter in module.parameters())
        loss.backward()
        return loss

    optimizer.step(closure)
    assert norms.read()["update_norm"]["all"] > 1.0
