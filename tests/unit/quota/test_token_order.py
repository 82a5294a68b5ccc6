"""Tests of the order in which a list shows tokens that were made from other tokens."""

from __future__ import annotations

from quota.vocabulary.token_order import in_families


def shown(*rows: tuple[str, str | None]) -> list[str]:
    return [row[0] for row in in_families(rows, key=lambda row: row[0], parent=lambda row: row[1])]


def test_each_child_stands_below_its_parent() -> None:
    assert shown(("d", "b"), ("c", None), ("b", "a"), ("a", None), ("e", "a")) == ["c", "a", "b", "d", "e"]


def test_a_child_whose_parent_is_on_another_page_keeps_its_place() -> None:
    assert shown(("c", "gone"), ("b", None), ("a", "b")) == ["c", "b", "a"]
