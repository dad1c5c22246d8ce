import json
from pathlib import Path

import pytest
import torch

from rfdetr_train.checkpoint.reference_weights import our_name
from rfdetr_train.config import AdamWConfig, ModelConfig, ParameterRule
from rfdetr_train.errors import UserError
from rfdetr_train.models.rfdetr import build_model
from rfdetr_train.optim.param_groups import AnnotatedParameter, annotate, check_groups, group, group_table

REFERENCE = Path(__file__).parents[1] / "fixtures" / "reference_param_groups.json"


def annotated(module, **config):
    return annotate(module.named_parameters(), module.parameter_roles(), AdamWConfig(**config))


def rates(items):
    return {item.name: (item.lr, item.weight_decay) for item in items}


def test_rates_of_each_place(make_toy):
    found = rates(annotated(make_toy(), lr=1e-3, encoder_lr=2e-3, layer_decay=0.5, component_decay=0.25))

    encoder = 2e-3 * 0.25**2
    assert found["embed"] == (encoder * 0.5**4, 0.0)
    assert found["blocks.0.weight"] == (encoder * 0.5**3, 1e-4)
    assert found["blocks.1.bias"] == (encoder * 0.5**2, 0.0)
    assert found["scale"] == (encoder * 0.5**2, 1e-4)
    assert found["norm.weight"] == (encoder, 0.0)
    assert found["decoder.bias"] == (1e-3 * 0.25, 1e-4)
    assert found["projector.bias"] == found["head.weight"] == (1e-3, 1e-4)


@pytest.fixture(scope="module")
def nano():
    with torch.device("meta"):
        return build_model(ModelConfig(name="nano", resolution=384, decoder_layers=2), num_classes=90)


def test_nano_has_the_reference_rates_to_the_last_bit(nano):
    reference = json.loads(REFERENCE.read_text())["nano"]
    found = rates(annotated(nano))

    seen = set()
    for row in reference["parameters"]:
        if row["name"].endswith("mask_token"):
            continue
        name = our_name(row["name"]).name
        assert found[name] == (row["lr"], row["weight_decay"]), name
        seen.add(name)
    assert seen == set(found)
    assert len(found) == 416
    assert len(group(annotated(nano), merge=True)) == reference["merged_groups"] == 28
    assert len(group(annotated(nano), merge=False)) == 416


def test_no_decay_rules(make_toy):
    module = make_toy()
    undecayed = {
        rule: [name for name, (_, decay) in rates(annotated(module, no_decay=rule)).items() if not decay]
        for rule in ("reference", "matrices_only", "none")
    }

    assert undecayed["reference"] == ["embed", "blocks.0.bias", "blocks.1.bias", "norm.weight", "norm.bias"]
    vectors = [name for name, parameter in module.named_parameters() if parameter.ndim < 2]
    assert undecayed["matrices_only"] == vectors
    assert undecayed["none"] == []


def test_own_rules_apply_in_order_and_later_ones_win(make_toy):
    rules = [ParameterRule("^blocks", lr=0.5), ParameterRule("blocks.1", lr_factor=0.5, weight_decay=0.25)]

    found = rates(annotated(make_toy(), rules=rules))

    assert found["blocks.0.weight"] == (0.5, 1e-4)
    assert found["blocks.1.weight"] == found["blocks.1.bias"] == (0.25, 0.25)


@pytest.mark.parametrize(("pattern", "message"), [("blocs", "blocs.*matches no parameter.*embed"), ("(", "regular")])
def test_a_rule_that_matches_nothing_is_refused(make_toy, pattern, message):
    with pytest.raises(UserError, match=message):
        annotated(make_toy(), rules=[ParameterRule(pattern, lr=1.0)])


def test_a_rule_may_wait_for_frozen_parameters(make_toy):
    module = make_toy()
    module.head.requires_grad_(False)

    annotated(module, rules=[ParameterRule("head", lr=1.0)])


def test_frozen_parameters_are_left_out_and_tied_ones_come_once(make_toy):
    module = make_toy()
    module.head.requires_grad_(False)
    module.blocks[1].weight = module.blocks[0].weight

    items = annotate(module.named_parameters(remove_duplicate=False), module.parameter_roles(), AdamWConfig())

    names = [item.name for item in items]
    assert "blocks.0.weight" in names
    assert not {"blocks.1.weight", "head.weight", "head.bias"} & set(names)
    assert len({id(item.parameter) for item in items}) == len(items) == 11


def test_merging_keeps_what_each_parameter_had(make_toy):
    items = annotated(make_toy())

    groups = group(items, merge=True)

    expected = rates(items)
    regained = {name: (g["lr"], g["weight_decay"]) for g in groups for name in g["param_names"]}
    assert regained == expected
    assert len(groups) == len(set(expected.values())) == 8
    by_name = dict(make_toy().named_parameters())
    for g in groups:
        assert [p.shape for p in g["params"]] == [by_name[name].shape for name in g["param_names"]]


def test_group_names_are_readable(make_toy):
    names = [g["group_name"] for g in group(annotated(make_toy()), merge=True)]

    assert names == [
        "encoder.embeddings.no_decay",
        "encoder.block1",
        "encoder.block0",
        "encoder.block0.no_decay",
        "encoder.block1.no_decay",
        "encoder.norm.no_decay",
        "head+projector",
        "decoder",
    ]


def test_group_names_stay_unique_when_a_rule_splits_a_place(make_toy):
    rules = [ParameterRule("head.bias", lr=0.5)]

    names = [g["group_name"] for g in group(annotated(make_toy(), rules=rules), merge=True)]

    assert names[-2:] == ["decoder", "head"]
    assert len(set(names)) == len(names)


def test_unmerged_groups_are_named_after_their_parameter(make_toy):
    module = make_toy()

    groups = group(annotated(module), merge=False)

    assert [g["group_name"] for g in groups] == [name for name, _ in module.named_parameters()]
    assert all(g["param_names"] == [g["group_name"]] for g in groups)


def test_groups_that_are_not_complete_and_disjoint_are_an_error(make_toy):
    items = annotated(make_toy())
    groups = group(items, merge=True)

    with pytest.raises(AssertionError, match=r"two parameter groups.*embed"):
        check_groups([*groups, groups[0]], items)
    with pytest.raises(AssertionError, match=r"no parameter group.*embed"):
        check_groups(groups[1:], items)
    with pytest.raises(AssertionError, match="lost its hyperparameters"):
        check_groups([{**groups[0], "lr": 1.0}, *groups[1:]], items)


def test_hidden_matrices_are_apart_where_asked(make_toy):
    groups = group(annotated(make_toy()), merge=True, split_hidden_matrices=True)

    matrices = [name for g in groups if g["use_muon"] for name in g["param_names"]]
    assert matrices == ["blocks.0.weight", "blocks.1.weight", "decoder.weight"]


def test_group_table(make_toy):
    rows = group_table(group(annotated(make_toy()), merge=True))

    assert rows[-1] == ("decoder", 7e-05, 1e-4, 2, 42)
    assert sum(row.parameters for row in rows) == sum(p.numel() for p in make_toy().parameters())


def test_annotated_parameters_cannot_be_changed(make_toy):
    item: AnnotatedParameter = annotated(make_toy())[0]
    with pytest.raises(AttributeError):
        item.lr = 1.0
