"""Tests of label selectors."""

from __future__ import annotations

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.access.label_selectors import LabelCondition, LabelTest, parse_selector


def test_conditions_are_read_with_and_without_spaces() -> None:
    assert parse_selector(" app = shop, track!=canary,owner ,! old,empty=,a/b.c==x y") == [
        LabelCondition("app", LabelTest.EQUAL, ("shop",)),
        LabelCondition("track", LabelTest.OTHER, ("canary",)),
        LabelCondition("owner", LabelTest.PRESENT),
        LabelCondition("old", LabelTest.ABSENT),
        LabelCondition("empty", LabelTest.EQUAL, ("",)),
        LabelCondition("a/b.c", LabelTest.EQUAL, ("x y",)),
    ]
    assert parse_selector("  ") == []


def test_a_condition_may_list_several_values() -> None:
    assert parse_selector("tier in (web, api),track notin (canary),zone not in(a,b) , note=in (c") == [
        LabelCondition("tier", LabelTest.EQUAL, ("web", "api")),
        LabelCondition("track", LabelTest.OTHER, ("canary",)),
        LabelCondition("zone", LabelTest.OTHER, ("a", "b")),
        LabelCondition("note", LabelTest.EQUAL, ("in (c",)),
    ]


@pytest.mark.parametrize("text", [",", "app=shop,", "=x", "-a=x", "a b", "!a=b", "a>3", "a=" + "x" * 256, "a in b"])
def test_any_other_text_is_rejected_with_the_forms_that_are_accepted(text: str) -> None:
    with pytest.raises(Rejected, match=r"write key=value, key!=value, key in \(a,b\), key notin \(a,b\), key or !key"):
        parse_selector(text)


def test_an_error_names_the_part_and_its_place() -> None:
    with pytest.raises(Rejected) as caught:
        parse_selector("app=shop, a>3", field="labels")
    assert caught.value.fields["labels"].startswith("'a>3' at character 11 of the selector: ")
    with pytest.raises(Rejected, match="'b in \\(c,d' at character 5 of the selector: its '\\)' is missing"):
        parse_selector("a=1,b in (c,d")
    with pytest.raises(Rejected, match="a value in its parentheses is empty"):
        parse_selector("a in (b,,c)")
    with pytest.raises(Rejected, match="51 values are too many"):
        parse_selector(f"a in ({','.join('b' * 51)})")


def test_the_number_of_conditions_is_limited() -> None:
    with pytest.raises(Rejected, match="at most 20"):
        parse_selector(",".join(["a"] * 21))
