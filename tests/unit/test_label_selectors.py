"""Tests of label selectors."""

from __future__ import annotations

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.access.label_selectors import LabelCondition, LabelTest, parse_selector


def test_conditions_are_read_with_and_without_spaces() -> None:
    assert parse_selector(" app = shop, track!=canary,owner ,! old,empty=,a/b.c==x y") == [
        LabelCondition("app", LabelTest.EQUAL, "shop"),
        LabelCondition("track", LabelTest.OTHER, "canary"),
        LabelCondition("owner", LabelTest.PRESENT),
        LabelCondition("old", LabelTest.ABSENT),
        LabelCondition("empty", LabelTest.EQUAL, ""),
        LabelCondition("a/b.c", LabelTest.EQUAL, "x y"),
    ]
    assert parse_selector("  ") == []


@pytest.mark.parametrize("text", [",", "app=shop,", "=x", "-a=x", "a b", "!a=b", "a>3", "a=" + "x" * 256])
def test_any_other_text_is_rejected_with_the_forms_that_are_accepted(text: str) -> None:
    with pytest.raises(Rejected, match="write key=value, key!=value, key or !key"):
        parse_selector(text)


def test_the_number_of_conditions_is_limited() -> None:
    with pytest.raises(Rejected, match="at most 20"):
        parse_selector(",".join(["a"] * 21))
