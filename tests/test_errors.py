"""Long lists in messages."""

from rfdetr_train.errors import listed


def test_twenty_are_spelt_out_and_the_others_counted():
    assert listed([]) == ""
    assert listed(range(20)).endswith("18, 19")
    assert listed(range(22)).endswith("18, 19, and 2 more")
    assert listed("abc", separator="\n  ") == "a\n  b\n  c"
