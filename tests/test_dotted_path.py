"""Classes and functions by their path, with arguments that may be built the same way."""

from fractions import Fraction

import pytest

from rfdetr_train.dotted_path import build, locate
from rfdetr_train.errors import UserError


def test_located() -> None:
    assert locate("fractions.Fraction", "key") is Fraction


@pytest.mark.parametrize("path", ["Fraction", "fractions.Fractions", "no.such.module", ""])
def test_what_cannot_be_located_is_named_with_its_key(path: str) -> None:
    with pytest.raises(UserError, match=rf"^some\.key={path}: "):
        locate(path, "some.key")


def test_built_inside_lists_and_arguments() -> None:
    half = {"_target_": "fractions.Fraction", "numerator": 1, "denominator": 2}
    assert build(half, "key") == Fraction(1, 2)
    assert build([3, {"a": half, "b": [half]}], "key") == [3, {"a": Fraction(1, 2), "b": [Fraction(1, 2)]}]
    assert build({"_target_": "builtins.dict", "value": half}, "key") == {"value": Fraction(1, 2)}


@pytest.mark.parametrize("arguments", [{"numerater": 1}, {"numerator": "one"}])
def test_refused_arguments_are_named_with_their_place(arguments: dict) -> None:
    with pytest.raises(UserError, match=r"^some\.key\[1\]\.a: fractions\.Fraction refuses its arguments: "):
        build([0, {"a": {"_target_": "fractions.Fraction", **arguments}}], "some.key")
