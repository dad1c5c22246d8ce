import torch
from torch.nn import functional

from rfdetr_train.models.projector import C2f, ChannelLayerNorm, ConvX, Projector


def test_channel_layer_norm_acts_on_the_channels_of_each_position():
    norm = ChannelLayerNorm(3)
    x = torch.tensor([1.0, 2.0, 6.0]).view(1, 3, 1, 1).repeat(1, 1, 2, 2)
    x[..., 1, 1] *= 10  # the scale of a position does not matter
    deviation = (14 / 3) ** 0.5  # mean 3, squares 4 + 1 + 9
    expected = torch.tensor([-2.0, -1.0, 3.0]) / deviation
    torch.testing.assert_close(norm(x), expected.view(1, 3, 1, 1).expand(1, 3, 2, 2), rtol=1e-5, atol=1e-6)


def test_convx_is_convolution_norm_silu_and_keeps_the_size():
    layer = ConvX(4, 6, 3)
    x = torch.randn(2, 4, 5, 7)
    convolved = functional.conv2d(x, layer.conv.weight, padding=1)
    mean, variance = convolved.mean(1, keepdim=True), convolved.var(1, keepdim=True, correction=0)
    normal = (convolved - mean) / (variance + 1e-6).sqrt()
    torch.testing.assert_close(layer(x), normal * normal.sigmoid())


def test_c2f_joins_both_halves_and_each_bottleneck():
    block = C2f(10, 8, num_bottlenecks=2)
    x = torch.randn(1, 10, 3, 3)
    first, second = block.split(x).chunk(2, dim=1)
    third = block.bottlenecks[0](second)
    fourth = block.bottlenecks[1](third)
    torch.testing.assert_close(block(x), block.join(torch.cat((first, second, third, fourth), dim=1)))
    assert block.join.conv.weight.shape == (8, 16, 1, 1)


def test_one_level_on_the_grid_of_the_backbone(small_config):
    (level,) = Projector([6] * 4, small_config(hidden_dim=16))([torch.randn(2, 6, 3, 5)] * 4)
    assert level.shape == (2, 16, 3, 5)
    torch.testing.assert_close(level.mean(1), torch.zeros(2, 3, 5), rtol=0, atol=1e-5)  # under its LayerNorm
