from collections.abc import Callable

import pytest
import timm
import torch
from torch.nn import functional

from rfdetr_train.config import TRANSFORMER_KEYS, ModelConfig
from rfdetr_train.errors import UserError
from rfdetr_train.models.projector import Projector, pyramid_resizer
from rfdetr_train.models.pyramid import Pyramid


@pytest.fixture
def pyramid_config(small_config: Callable[..., ModelConfig]) -> Callable[..., ModelConfig]:
    def config(**changes: object) -> ModelConfig:
        return small_config(**{**dict.fromkeys(TRANSFORMER_KEYS), "backbone": "test_resnet", **changes})

    return config


@torch.no_grad()
def test_its_maps_are_those_of_timms_feature_extractor(pyramid_config):
    """A pyramid of other sides than the configured resolution."""
    ours = Pyramid(pyramid_config()).eval()
    theirs = timm.create_model("test_resnet", features_only=True, out_indices=(2, 3, 4)).eval()
    theirs.load_state_dict(ours.net.state_dict())
    images = torch.randn(2, 3, 96, 128)
    maps = ours(images)
    assert ours.channels == theirs.feature_info.channels()
    assert [tuple(one.shape[-2:]) for one in maps] == [(12, 16), (6, 8), (3, 4)]
    for actual, expected in zip(maps, theirs(images), strict=True):
        torch.testing.assert_close(actual, expected)


def test_swin_takes_other_sizes_than_it_was_made_for(pyramid_config):
    with torch.device("meta"):
        swin = Pyramid(pyramid_config(backbone="swin_tiny_patch4_window7_224"))
        assert [tuple(one.shape[1:]) for one in swin(torch.zeros(1, 3, 96, 64))] == [
            (192, 12, 8),
            (384, 6, 4),
            (768, 3, 2),
        ]


@pytest.mark.parametrize("name", ["mixer_s16_224", "inception_v3", "coatnet_0_224", "levit_128", "mobilevitv2_050"])
def test_networks_without_such_maps_are_refused_with_the_remedy(pyramid_config, name):
    """No maps, maps of other sides, one size of pictures only, coarser maps, even sides only."""
    with (
        torch.device("meta"),
        pytest.raises(UserError, match=f"model.backbone={name}: is no plain .* such as resnet50"),
    ):
        Pyramid(pyramid_config(backbone=name))


def test_a_network_without_groups_of_layers_is_refused(pyramid_config):
    with torch.device("meta"), pytest.raises(UserError, match=r"poolformer_s12: has no groups of layers in timm"):
        Pyramid(pyramid_config(backbone="poolformer_s12"))


@torch.no_grad()
@pytest.mark.parametrize("steps", [-2, -1, 0, 1, 2])
def test_resizers_keep_what_is_even(steps):
    """A map without detail stays what it is, on a grid of 8 / 2^steps."""
    resizer = pyramid_resizer(3, 8, steps)
    plain = torch.randn(1, 3, 1, 1)
    lateral = resizer[0] if steps else resizer
    expected = functional.silu(lateral.norm(lateral.conv(plain)))
    side = {-2: 32, -1: 16, 0: 8, 1: 4, 2: 2}[steps]
    torch.testing.assert_close(resizer(plain.expand(1, 3, 8, 8)), expected.expand(1, 8, side, side))


@pytest.mark.parametrize(("levels", "sides"), [(["P3"], [8]), (["P4"], [4]), (["P3", "P4", "P5"], [8, 4, 2])])
def test_every_map_reaches_every_level(pyramid_config, levels, sides):
    projector = Projector([4, 6, 8], pyramid_config(levels=levels))
    maps = [torch.randn(1, c, s, s, requires_grad=True) for c, s in ((4, 8), (6, 4), (8, 2))]
    outputs = projector(maps)
    assert [one.shape[-1] for one in outputs] == sides
    for level in outputs:
        gradients = torch.autograd.grad(level.square().sum(), maps, retain_graph=True)
        assert all(gradient.abs().max() > 0 for gradient in gradients)
