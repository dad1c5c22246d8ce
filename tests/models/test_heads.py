import math

import torch

from rfdetr_train.models.heads import MLP, box_head, class_head


def test_mlp_has_relu_between_its_layers_only():
    mlp = MLP(1, 2, 1)
    mlp.load_state_dict(
        {
            "layers.0.weight": torch.tensor([[1.0], [-1.0]]),
            "layers.0.bias": torch.zeros(2),
            "layers.1.weight": torch.tensor([[-2.0, -3.0]]),
            "layers.1.bias": torch.tensor([0.5]),
        }
    )
    assert mlp(torch.tensor([[4.0], [-1.0]])).tolist() == [[-7.5], [-2.5]]


def test_every_class_starts_at_one_percent():
    head = class_head(8, 5)
    torch.testing.assert_close(head(torch.zeros(8)).sigmoid(), torch.full((5,), 0.01))


def test_boxes_start_without_deltas():
    head = box_head(8)
    assert len(head.layers) == 3
    assert not head(torch.randn(3, 8)).any()


class TestGradientOfTheBoxHead:
    """It is computed for the rows that have one, and must be that of the same layers without this short cut."""

    ROWS = torch.randn(2, 50, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    WITH_GRADIENT = (torch.tensor([0, 0, 1]), torch.tensor([3, 41, 7]))

    def gradients(self, network: torch.nn.Module, state: dict) -> list[torch.Tensor]:
        network.double().load_state_dict(state)
        rows = self.ROWS.clone().requires_grad_()
        network(rows)[self.WITH_GRADIENT].square().sum().backward()
        return [rows.grad, *(parameter.grad for parameter in network.parameters())]

    def test_it_is_that_of_a_plain_perceptron(self):
        torch.manual_seed(1)
        plain = MLP(8, 8, 8, 4)
        state = plain.double().state_dict()
        for actual, expected in zip(self.gradients(box_head(8), state), self.gradients(plain, state), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)

    def test_a_loss_of_no_box_gives_zeros(self):
        head, rows = box_head(8), torch.randn(5, 8, requires_grad=True)
        (head(rows) * 0.0).sum().backward()
        assert not rows.grad.any()
        assert not any(parameter.grad.any() for parameter in head.parameters())

    def test_a_gradient_that_is_not_finite_is_not_lost(self):
        head, rows = box_head(8), torch.randn(5, 8, requires_grad=True)
        (head(rows)[2] * math.nan).sum().backward()
        assert rows.grad.isnan().any(dim=1).tolist() == [False, False, True, False, False]

    def test_frozen_layers_get_none(self):
        head = box_head(8)
        head.layers[1].requires_grad_(False)
        rows = torch.randn(5, 8)
        head(rows)[1].sum().backward()
        assert [parameter.grad is not None for parameter in head.parameters()] == [True] * 2 + [False] * 2 + [True] * 2

    def test_two_passes_under_autocast_both_count(self):
        head, rows = box_head(8), torch.randn(5, 8)
        torch.nn.init.normal_(head.layers[2].weight)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first, second = head(rows), head(rows + 1)
        gradients = [
            torch.autograd.grad(out.sum(), list(head.parameters()), retain_graph=True) for out in (first, second)
        ]
        (first.sum() + second.sum()).backward()
        for parameter, one, other in zip(head.parameters(), *gradients, strict=True):
            assert one.any()
            torch.testing.assert_close(parameter.grad, one + other)
