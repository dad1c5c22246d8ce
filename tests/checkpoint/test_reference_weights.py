import json
from pathlib import Path

import pytest
import torch

from rfdetr_train.checkpoint.reference_weights import (
    IGNORED,
    MASK_TOKEN,
    OurName,
    from_reference,
    our_name,
    reference_groups,
    reference_names,
    reference_order,
    to_reference,
)
from rfdetr_train.errors import UserError

BLOCK = "backbone.0.encoder.encoder.encoder.layer.3."


def test_toy_weights_come_back_as_they_were(reference_toy):
    state = reference_toy["state_dict"]
    back = to_reference(from_reference(state))
    assert back.keys() == state.keys() - {"_kp_active_mask"}
    for name in state.keys() - IGNORED:
        assert torch.equal(back[name], state[name])
    assert back[MASK_TOKEN].shape == state[MASK_TOKEN].shape
    assert not back[MASK_TOKEN].any()


def test_our_weights_come_back_as_they_were(toy_model):
    state = toy_model.state_dict()
    back = from_reference(to_reference(state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_weights_of_two_levels_come_back_as_they_were(pyramid_model, reference_pyramid):
    state = pyramid_model.state_dict()
    theirs = to_reference(state)
    assert {name: list(tensor.shape) for name, tensor in theirs.items()} == reference_pyramid["shapes"] | {
        MASK_TOKEN: [1, 48]
    }
    back = from_reference(theirs)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_names_by_example():
    stages = {"stages.0.1": "norm", "stages.1.0.cv2.conv": "others.1.c2f.join.conv", "stages.2.1": "others.2.norm"}
    sampling = {"stages_sampling.0.3.0": "resizers.3", "stages_sampling.1.2.0.bn": "others.1.resizers.2.norm"}
    for theirs, ours in (stages | sampling).items():
        assert our_name(f"backbone.0.projector.{theirs}.weight").name == f"projector.{ours}.weight"
        assert reference_names(f"projector.{ours}.weight") == [f"backbone.0.projector.{theirs}.weight"]
    assert our_name(f"{BLOCK}mlp.fc1.bias") == OurName("backbone.vit.blocks.3.mlp.fc1.bias", None)
    assert our_name(f"{BLOCK}attention.attention.value.weight") == OurName("backbone.vit.blocks.3.attn.qkv.weight", 2)
    assert (
        our_name("transformer.enc_out_bbox_embed.12.layers.2.bias").name
        == "two_stage.groups.12.box_embed.layers.2.bias"
    )
    assert reference_names("backbone.vit.blocks.3.attn.qkv.bias") == [
        f"{BLOCK}attention.attention.{third}.bias" for third in ("query", "key", "value")
    ]
    assert reference_names("projector.c2f.bottlenecks.2.conv1.norm.bias") == [
        "backbone.0.projector.stages.0.0.m.2.cv1.bn.bias"
    ]


def test_thirds_are_joined_in_their_order_whatever_the_files_order():
    thirds = {"value": 3.0, "query": 1.0, "key": 2.0}
    state = {f"{BLOCK}attention.attention.{name}.bias": torch.full((2,), value) for name, value in thirds.items()}
    (joined,) = from_reference(state).values()
    assert joined.tolist() == [1, 1, 2, 2, 3, 3]


def test_a_missing_third_is_an_error_that_names_it():
    state = {f"{BLOCK}attention.attention.{name}.bias": torch.zeros(2) for name in ("query", "value")}
    with pytest.raises(UserError, match=r"blocks.3.attn.qkv.bias lack key"):
        from_reference(state)


@pytest.mark.parametrize("name", ["segmentation_head.weight", "backbone.0.projector.stages.1.2.cv1.conv.weight"])
def test_an_unknown_name_is_an_error_that_names_it(name):
    with pytest.raises(UserError, match=name):
        from_reference({name: torch.zeros(1)})
    with pytest.raises(UserError, match=name):
        to_reference({name: torch.zeros(1)})


def test_parts_of_a_joined_tensor_own_their_memory():
    whole = torch.arange(6.0)
    parts = to_reference({"backbone.vit.blocks.0.attn.qkv.bias": whole})
    whole.zero_()
    assert [part.tolist() for part in parts.values()] == [[0, 1], [2, 3], [4, 5]]


FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_order_of_the_references_groups():
    """Its own list for nano: everything else, the encoder, the decoder."""
    rows = json.loads((FIXTURES / "reference_param_groups.json").read_text())["nano"]["parameters"]
    names = [row["name"] for row in rows]
    encoder_first = sorted(names, key=lambda name: not name.startswith("backbone.0.encoder."))
    assert encoder_first != names
    assert reference_order(encoder_first) == names


@pytest.mark.parametrize("model", ["nano", "small", "medium"])
def test_how_newer_releases_join_the_groups(model: str):
    """By equal hyperparameters in order of appearance, here from the rates and decays that the reference gives."""
    rows = json.loads((FIXTURES / "reference_param_groups.json").read_text())[model]["parameters"]
    joined: dict[tuple[float, float], list[str]] = {}
    for row in rows:
        joined.setdefault((row["lr"], row["weight_decay"]), []).append(row["name"])
    assert reference_groups(row["name"] for row in rows) == list(joined.values())


@pytest.mark.parametrize(("recipe", "groups"), [
    ({"weight_decay": 0.0}, 16), ({"component_decay": 1.0}, 27), ({"layer_decay": 1.0}, 4),
    ({"weight_decay": 0.0, "component_decay": 1.0, "layer_decay": 1.0}, 2),
])  # fmt: skip
def test_a_recipe_without_some_of_its_decays_joins_more(recipe: dict[str, float], groups: int):
    """As many groups as release 1.11.2 makes of nano."""
    rows = json.loads((FIXTURES / "reference_param_groups.json").read_text())["nano"]["parameters"]
    assert len(reference_groups((row["name"] for row in rows), **recipe)) == groups
