"""A table of positions on another grid."""

import torch

from rfdetr_train.position_table import resize_positions


def test_positions_keep_their_table_on_its_own_grid():
    table = torch.randn(1, 9, 5)
    assert torch.equal(resize_positions(table, (3, 3)), table.view(1, 3, 3, 5))


def test_resized_positions_keep_a_constant_and_are_computed_in_float32():
    table = torch.full((1, 16, 2), 0.7, dtype=torch.bfloat16)
    resized = resize_positions(table, (6, 10))
    assert resized.dtype == torch.float32
    torch.testing.assert_close(resized, table[0, 0].float().expand(1, 6, 10, 2))


def test_shrunken_positions_are_smoothed_first():
    """A pattern at the finest frequency cancels under an antialiasing filter, and is sampled as it stands without."""
    stripes = torch.tensor([1.0, -1.0]).repeat(8).expand(16, 16).reshape(1, 256, 1)
    assert resize_positions(stripes, (4, 4))[:, 1:3, 1:3].abs().max() < 0.05
