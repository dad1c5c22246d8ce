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
