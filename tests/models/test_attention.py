"""Both ways of attention against the formula in float64."""

import pytest
import torch

from rfdetr_train.models.attention import attend, plain_products_are_faster


@pytest.mark.parametrize(("autocast", "tolerance"), [(False, 1e-6), (True, 2e-2)])
def test_attention_is_the_formula(autocast: bool, tolerance: float) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 7, 8, dtype=torch.float64)
    expected = torch.softmax(query @ key.transpose(-1, -2) / 8**0.5, -1) @ value
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert plain_products_are_faster(query.device) == autocast
        attended = attend(query.float(), key.float(), value.float())
    assert (attended - expected).abs().max() < tolerance
