"""Tests of the rules of graphs of workflows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scheduling.workflows import graph_rules
from scheduling.workflows.graph_rules import CycleFound, NodeState, Waiting

S = NodeState


def test_a_layer_is_the_longest_path_to_a_node() -> None:
    after = {"d": ["b", "c"], "c": ["b"], "b": ["a"], "a": [], "e": []}
    order = graph_rules.ordered(after)
    assert graph_rules.layers(after, order) == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 0}


def test_a_cycle_names_its_nodes_in_order() -> None:
    with pytest.raises(CycleFound) as found:
        graph_rules.ordered({"a": ["c"], "b": ["a"], "c": ["b"], "d": ["a"]})
    nodes = found.value.nodes
    assert nodes[0] == nodes[-1]
    assert set(nodes) == {"a", "b", "c"}
    after = {"a": "c", "b": "a", "c": "b"}
    assert all(after[node] == following for node, following in pairwise(nodes))


@pytest.mark.parametrize(
    ("condition", "met"),
    [("succeeded", {S.SUCCEEDED}), ("failed", {S.FAILED}), ("ended", {S.SUCCEEDED, S.FAILED, S.SKIPPED})],
)
def test_which_ends_meet_a_condition(condition, met) -> None:
    assert {state for state in graph_rules.ENDS if graph_rules.is_met(condition, state)} == met


def test_a_node_is_ready_once_all_conditions_are_met() -> None:
    node = graph_rules.after_ends(Waiting(S.WAITING, 3), [True])
    assert node == Waiting(S.WAITING, 2)
    assert graph_rules.after_ends(node, [True, True]) == Waiting(S.READY, 0)


def test_a_condition_that_cannot_be_met_skips_the_node() -> None:
    assert graph_rules.after_ends(Waiting(S.WAITING, 2), [True, False]).state is S.SKIPPED


@pytest.mark.parametrize("state", [state for state in S if state is not S.WAITING])
def test_only_a_waiting_node_changes(state) -> None:
    assert graph_rules.after_ends(Waiting(state, 1), [True]) == Waiting(state, 1)


@pytest.mark.parametrize(
    ("how", "retries", "cancelling", "state"),
    [
        ("finished", 0, False, S.SUCCEEDED),
        ("finished", 0, True, S.SUCCEEDED),
        ("failed", 1, False, S.READY),
        ("failed", 0, False, S.FAILED),
        ("failed", 1, True, S.CANCELLED),
        ("killed", 5, False, S.FAILED),
        ("killed", 5, True, S.CANCELLED),
        ("lost", 5, False, S.FAILED),
    ],
)
def test_the_state_after_the_end_of_a_job(how, retries, cancelling, state) -> None:
    assert graph_rules.after_job(how, retries, cancelling=cancelling) is state


def test_retries_wait_longer_each_time_and_not_for_ever() -> None:
    delays = [graph_rules.retry_delay_s(attempt) for attempt in (1, 2, 3, 20, 10_000)]
    assert delays == [1.0, 2.0, 4.0, 300.0, 300.0]


def test_a_node_ends_with_its_last_branch() -> None:
    assert graph_rules.after_branches(1, 1) is S.RUNNING
    assert graph_rules.after_branches(0, 1) is S.FAILED
    assert graph_rules.after_branches(0, 0) is S.SUCCEEDED


def test_a_retry_runs_what_did_not_succeed_and_what_depends_on_it() -> None:
    after = {
        "a": {},
        "b": {"a": "succeeded"},
        "c": {"b": "succeeded"},
        "d": {"a": "succeeded"},
        "clean": {"b": "failed"},
        "never": {"a": "failed"},
        "later": {"never": "ended", "d": "succeeded"},
    }
    states = {
        "a": "succeeded",
        "b": "failed",
        "c": "skipped",
        "d": "succeeded",
        "clean": "succeeded",
        "never": "skipped",
        "later": "cancelled",
    }
    assert graph_rules.after_retry(after, states) == {
        "b": Waiting(S.READY, 0),
        "c": Waiting(S.WAITING, 1),
        "later": Waiting(S.READY, 0),
    }


def test_a_cancelled_node_whose_condition_cannot_be_met_is_skipped_by_a_retry() -> None:
    changed = graph_rules.after_retry(
        {"a": {}, "b": {"a": "failed"}, "c": {"b": "succeeded"}}, {"a": "succeeded", "b": "cancelled", "c": "cancelled"}
    )
    assert changed == {"b": Waiting(S.SKIPPED, 0), "c": Waiting(S.SKIPPED, 0)}
