"""Rows of the class heads by class name."""

import pytest
import torch

from rfdetr_train.checkpoint.class_heads import by_class, match_classes


@pytest.mark.parametrize(("saved", "wanted", "rows", "said"), [
    (["cat", "dog", None], ["cat", "dog"], [0, 1, 2], None),
    (["dog", "cat", None], ["cat", "dog"], [1, 0, 2], "taken over by name: cat, dog; new: none"),
    (["cat", None], ["cat", "dog"], [0, None, 1], "has other classes (cat); taken over by name: cat; new: dog"),
    (["Cat ", "DOG", None], ["cat", "dog"], [None, 1, 2], "taken over by name: dog; new: cat"),  # regard only to case
    (["A", "a", None], ["a", "A"], [1, 0, 2], "taken over by name: a, A"),
    ([None, "cat", None, "dog"], ["dog"], [3, 2], "taken over by name: dog"),  # any logit without a target will do
    (["cat", None], ["dog", "eel"], [None, None, None], "taken over by name: none; new: dog, eel"),
    (None, ["cat"], [None, None], "does not say its classes"),
])  # fmt: skip
def test_rows_follow_the_names(caplog: pytest.LogCaptureFixture, saved, wanted, rows, said) -> None:
    assert match_classes(saved, wanted, "file.pt") == rows
    assert len(caplog.records) == (said is not None)  # one line
    assert said is None or said in caplog.text


def test_a_head_is_made_of_rows() -> None:
    value, target = torch.arange(6.0).reshape(3, 2), torch.full((4, 2), -1.0)
    head, what = by_class(value, target, [2, None, 0, None])
    assert head is not None
    assert head.tolist() == [[4, 5], [-1, -1], [0, 1], [-1, -1]]
    assert "2 of 4 rows taken over by class name" in what
    assert by_class(value, target[:3], [0, 1, 2]) == (value, "")  # the very tensor
    assert by_class(value, target, [None] * 4)[0] is None
    assert by_class(value[:, :1], target, [0, 1, 2, None])[0] is None
