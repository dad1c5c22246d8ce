import math

import pytest
import torch
from torch import nn

from rfdetr_train.models import decoder
from rfdetr_train.models.decoder import Decoder, DecoderLayer, GroupedSelfAttention, sine_embedding


def test_sine_embedding_by_hand():
    x, y, w, h = 0.3, 0.7, 0.1, 0.2
    width = 6
    expected = []
    for value in (y, x, w, h):
        for k in range(width):
            angle = 2 * math.pi * value / 10000 ** (2 * (k // 2) / width)
            expected.append(math.sin(angle) if k % 2 == 0 else math.cos(angle))
    actual = sine_embedding(torch.tensor([[x, y, w, h]], dtype=torch.float64), width)
    assert actual.tolist()[0] == pytest.approx(expected, abs=1e-14)


@torch.no_grad()
def test_self_attention_is_torchs_in_each_group():
    torch.manual_seed(0)
    ours, torchs = GroupedSelfAttention(16, heads=4).double(), nn.MultiheadAttention(16, 4, batch_first=True).double()
    for parameter in ours.parameters():
        parameter.normal_(std=0.3)
    torchs.in_proj_weight.copy_(ours.in_projection.weight)
    torchs.in_proj_bias.copy_(ours.in_projection.bias)
    torchs.out_proj.load_state_dict(ours.out_projection.state_dict())
    x, positions = torch.randn(2, 15, 16).double(), torch.randn(2, 15, 16).double()
    attended = ours(x, positions, num_groups=3)
    for group in (slice(0, 5), slice(5, 10), slice(10, 15)):
        query = x[:, group] + positions[:, group]
        expected, _ = torchs(query, query, x[:, group], need_weights=False)
        torch.testing.assert_close(attended[:, group], expected)


@torch.no_grad()
def test_queries_of_other_groups_change_nothing(toy_config):
    decoder = Decoder(toy_config, levels=1)
    references, memory = torch.rand(1, 60, 4), torch.randn(1, 64, 32)
    queries = torch.randn(1, 60, 32)
    changed = queries.clone()
    changed[:, 20:40] += 1.0
    before, after = (decoder(q, references, memory, [(8, 8)], num_groups=3) for q in (queries, changed))
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[:, :20], new[:, :20])
        assert torch.equal(old[:, 40:], new[:, 40:])
        assert not torch.isclose(old[:, 20:40], new[:, 20:40]).all(-1).any()


def test_initial_matrices_are_xavier_as_whole_tensors(toy_config):
    decoder = Decoder(toy_config, levels=1)
    layer = decoder.layers[1]
    matrices = (
        layer.self_attention.in_projection.weight,
        layer.self_attention.out_projection.weight,
        layer.linear1.weight,
        layer.linear2.weight,
        decoder.position_head.layers[0].weight,
        decoder.position_head.layers[1].weight,
    )
    for matrix in matrices:
        bound = (6 / sum(matrix.shape)) ** 0.5
        assert 0.95 * bound < matrix.abs().max() <= bound
    assert not layer.self_attention.in_projection.bias.any()
    assert not layer.self_attention.out_projection.bias.any()


def test_feed_forward_in_parts_is_the_formula_and_has_its_gradients(toy_config, monkeypatch):
    """20 rows in parts of 7, against two products written out."""
    monkeypatch.setattr(decoder, "FEED_FORWARD_ROWS", 7)
    torch.manual_seed(0)
    layer = DecoderLayer(toy_config, levels=1).double().train()
    x = torch.randn(2, 10, 32, dtype=torch.float64, requires_grad=True)
    weights = (layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias)
    expected = torch.clamp(x @ weights[0].T + weights[1], min=0) @ weights[2].T + weights[3]
    slope = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (x, *weights), slope)
    found = layer._feed_forward(x)
    assert (found - expected).abs().max() < 1e-13
    for mine, other in zip(torch.autograd.grad(found, (x, *weights), slope), gradients, strict=True):
        assert (mine - other).abs().max() < 1e-12
