import pytest
import torch

from rfdetr_train.optim.lion import Lion


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
