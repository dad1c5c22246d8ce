import torch

from rfdetr_train.adapters import merge_adapters, under_adapters


def test_merging_by_hand():
    state = {
        "a.base_layer.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        "a.base_layer.bias": torch.tensor([1.0, 2.0, 3.0]),
        "a.lora_A.default.weight": torch.tensor([[1.0, -1.0]]),
        "a.lora_B.default.weight": torch.tensor([[1.0], [0.0], [2.0]]),
        "b.weight": torch.tensor([7.0]),
    }
    merged = merge_adapters(state, alpha=3)  # of rank 1: three times
    assert set(merged) == {"a.weight", "a.bias", "b.weight"}
    assert merged["a.weight"].tolist() == [[4.0, -1.0], [3.0, 4.0], [11.0, 0.0]]
    assert merged["a.bias"].tolist() == [1.0, 2.0, 3.0]
    assert merge_adapters(state, alpha=None)["a.weight"].tolist() == [[2.0, 1.0], [3.0, 4.0], [7.0, 4.0]]


def test_plain_names_find_the_layers_below_adapters():
    plain = {"a.weight": torch.zeros(1), "b.weight": torch.ones(1)}
    names = {"a.base_layer.weight", "a.lora_A.default.weight", "b.weight"}
    assert under_adapters(plain, names) == {"a.base_layer.weight": plain["a.weight"], "b.weight": plain["b.weight"]}
    assert under_adapters(plain, plain) == plain
