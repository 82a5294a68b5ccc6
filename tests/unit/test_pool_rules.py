"""Tests of attributes that SREs set, and of the pool to which a machine belongs."""

from __future__ import annotations

import pytest

from scheduling.pools.rules import PoolSelector, matches, merged, pool_for, reported, wrong_attributes


def test_an_attribute_of_an_sre_replaces_a_reported_one_until_it_is_removed() -> None:
    attributes, hidden = merged({"disk": "ssd", "kernel": "6"}, {"disk": "nvme", "tier": "gold"}, "gpu")
    assert attributes == {"disk": "nvme", "kernel": "6", "tier": "gold", "pool": "gpu"}
    assert hidden == {"disk": "ssd"}
    assert reported(attributes, {"disk": "nvme", "tier": "gold"}, hidden) == {"disk": "ssd", "kernel": "6"}


def test_a_machine_cannot_report_its_pool() -> None:
    assert merged({"pool": "gpu"}, {}, "") == ({}, {})


@pytest.mark.parametrize(
    ("values", "removed", "field"),
    [
        ({"pool": "gpu"}, (), "set.pool"),
        ({"secrets": "memory"}, (), "set.secrets"),
        ({"isolation.network": "own"}, (), "set.isolation.network"),
        ({"rack": "r1"}, (), "set.rack"),
        ({"": "x"}, (), "set."),
        ({"a b": "x"}, (), "set.a b"),
        ({"tier": ""}, (), "set.tier"),
        ({"tier": "x" * 256}, (), "set.tier"),
        ({"tier": "x"}, ("tier",), "unset.tier"),
        ({}, ("runtime",), "unset.runtime"),
        ({}, (), "set"),
    ],
)
def test_wrong_attributes_name_the_field(values: dict[str, str], removed: tuple[str, ...], field: str) -> None:
    assert field in wrong_attributes(values, removed)


def test_right_attributes_have_no_problem() -> None:
    assert wrong_attributes({"tier": "gold", "team/a.b_c-1": "1"}, ("old",)) == {}


def test_an_assignment_wins_and_then_the_first_selector_that_matches() -> None:
    selectors = [PoolSelector.parse("b", "disk=ssd"), PoolSelector.parse("a", "rack in (r1,r2),!broken")]
    assert pool_for("", selectors, {"rack": "r1", "disk": "ssd"}) == "a"
    assert pool_for("", selectors, {"rack": "r1", "disk": "ssd", "broken": "yes"}) == "b"
    assert pool_for("c", selectors, {"rack": "r1"}) == "c"
    assert pool_for("", selectors, {}) == ""


@pytest.mark.parametrize(
    ("selector", "holds"),
    [
        ("x=1", True),
        ("x!=1", False),
        ("y!=1", True),
        ("x", True),
        ("!x", False),
        ("!y", True),
        ("x notin (1,2)", False),
    ],
)
def test_selectors_match_as_in_lists(selector: str, holds: bool) -> None:
    assert matches(PoolSelector.parse("p", selector).conditions, {"x": "1"}) is holds
