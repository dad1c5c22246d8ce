import math

import pytest
import torch

from rfdetr_train.models.deformable_attention import DeformableAttention, ring_of_offsets


def bilinear(field: torch.Tensor, x: float, y: float) -> torch.Tensor:
    """A map (h, w, D) at a point in fractions of the picture: pixel centres at halves, zero outside."""
    height, width = field.shape[:2]
    column, row = x * width - 0.5, y * height - 0.5
    left, top = math.floor(column), math.floor(row)
    value = torch.zeros(field.shape[2], dtype=field.dtype)
    for i, j in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        if 0 <= i < height and 0 <= j < width:
            value += field[i, j] * (1 - abs(row - i)) * (1 - abs(column - j))
    return value


def by_loops(attention, queries, references, memory, grids):
    """The definition, one head, level and point at a time."""
    heads, levels, points = attention.heads, attention.levels, attention.points
    batch, num_queries, width = queries.shape
    offsets = attention.sampling_offsets(queries).view(batch, num_queries, heads, levels, points, 2)
    weights = attention.attention_weights(queries).view(batch, num_queries, heads, levels * points).softmax(-1)
    values = attention.value_projection(memory)
    result = torch.zeros(batch, num_queries, width, dtype=queries.dtype)
    for b in range(batch):
        for n in range(num_queries):
            x, y, w, h = references[b, n].tolist()
            for head in range(heads):
                channels = slice(head * width // heads, (head + 1) * width // heads)
                start = 0
                for level, (rows, columns) in enumerate(grids):
                    field = values[b, start : start + rows * columns, channels].view(rows, columns, -1)
                    start += rows * columns
                    for point in range(points):
                        dx, dy = offsets[b, n, head, level, point].tolist()
                        at = (x + dx / points * w * 0.5, y + dy / points * h * 0.5)
                        result[b, n, channels] += weights[b, n, head, level * points + point] * bilinear(field, *at)
    return attention.output_projection(result)


@torch.no_grad()
@pytest.mark.parametrize("grids", [[(3, 5)], [(4, 6), (2, 3)]])
def test_attention_over_levels_equals_its_definition(grids):
    torch.manual_seed(0)
    attention = DeformableAttention(width=8, heads=2, levels=len(grids), points=3).double()
    for parameter in attention.parameters():
        parameter.normal_(std=0.5)
    tokens = sum(rows * columns for rows, columns in grids)
    queries, memory = torch.randn(2, 4, 8).double(), torch.randn(2, tokens, 8).double()
    references = torch.rand(2, 4, 4).double() * 0.9 + 0.05  # some points fall outside the picture
    expected = by_loops(attention, queries, references, memory, grids)
    torch.testing.assert_close(attention(queries, references, memory, grids), expected)


def test_the_ring_goes_round_and_its_points_go_out():
    ring = ring_of_offsets(heads=4, levels=2, points=2)
    directions = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    for level in range(2):
        torch.testing.assert_close(ring[:, level, 0], directions)
        torch.testing.assert_close(ring[:, level, 1], 2 * directions)
    torch.testing.assert_close(ring_of_offsets(8, 1, 1)[1, 0, 0], torch.tensor([1.0, 1.0]))  # scaled, not normalised


def test_initial_attention_looks_everywhere_on_its_ring_alike():
    attention = DeformableAttention(width=8, heads=4, levels=1, points=2)
    queries = torch.randn(1, 3, 8)
    assert torch.equal(attention.sampling_offsets(queries)[0, 0], ring_of_offsets(4, 1, 2).flatten())
    assert not attention.attention_weights(queries).any()
    assert not attention.value_projection.bias.any()
    assert not attention.output_projection.bias.any()
    bound = (6 / 16) ** 0.5  # Xavier: sqrt(6 / (8 + 8))
    assert 0.8 * bound < attention.value_projection.weight.abs().max() <= bound
