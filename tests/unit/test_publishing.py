"""Tests of the part of a plan that describes changes of a job's DNS names and weights."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.spec import name_changes
from scheduling.spec.job_spec import compared
from scheduling.spec.parser import parse


def web(*, tasks: int = 10, weight: int = 1, ports: tuple[str, ...] = ("http",), **changes: Any) -> Any:
    task = {"command": ["serve"], "ports": list(ports), "weight": weight}
    return parse({"name": "web", "tasks": tasks, "task": task, **changes})


@pytest.mark.parametrize(
    "old, new, told",
    [
        (None, web(), []),
        (web(), web(tasks=20, priority="production"), []),
        (
            None,
            web(names={"ttl_s": 60}),
            [
                "Clients may cache the addresses of its tasks for 60 s.",
                "DNS stops naming a task 61 s before its SIGTERM.",
            ],
        ),
        (
            web(),
            web(names={"ttl_s": 60}),
            [
                "Clients may cache the addresses of its tasks for 60 s, 5 s until now.",
                "DNS stops naming a task 61 s before its SIGTERM, 6 s until now.",
            ],
        ),
        (web(), web(names={"ttl_s": 5}), []),
        (web(names={"leave_s": 2.5}), web(), ["DNS stops naming a task 6 s before its SIGTERM, 2.5 s until now."]),
        (
            web(ports=()),
            web(ports=(), names={"ttl_s": 1}),
            ["Clients may cache the addresses of its tasks for 1 s, 5 s until now."],
        ),
        (web(), web(weight=2), ["Tasks 0-9 have weight 2 in the choice of a task for clients, 1 until now."]),
        (
            web(),
            web(tasks=12, overrides={"0": {"weight": 0}, "9-11": {"weight": 4}}),
            [
                "Task 0 has weight 0 in the choice of a task for clients, 1 until now.",
                "Task 9 has weight 4 in the choice of a task for clients, 1 until now.",
                "Tasks 10-11 have weight 4 in the choice of a task for clients.",
            ],
        ),
        (None, web(labels={"service": "shop"}), ["Its tasks appear under the service name shop."]),
        (
            web(labels={"service": "shop"}),
            web(labels={"service": "till"}),
            [
                "Its tasks no longer appear under the service name shop.",
                "Its tasks appear under the service name till.",
            ],
        ),
    ],
)
def test_a_change_is_reported_in_words(old: Any, new: Any, told: list[str]) -> None:
    assert list(name_changes.format_name_changes(old, new, ttl_s=5)) == told


def test_many_ranges_are_not_all_told() -> None:
    new = web(tasks=100, overrides={str(index): {"weight": 3} for index in range(0, 100, 2)})
    told = name_changes.format_name_changes(web(tasks=100), new, ttl_s=5)
    assert len(told) == 6
    assert told[-1] == "The weights of 45 more ranges of tasks change too."


WEIGHTS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def of(weights: list[int]) -> Any:
    return web(tasks=len(weights), overrides={str(i): {"weight": w} for i, w in enumerate(weights)})


@given(old=WEIGHTS, new=WEIGHTS)
def test_ranges_of_weights_tell_each_task(old: list[int], new: list[int]) -> None:
    found: dict[int, tuple[int | None, int]] = {}
    for first, last, before, after in compared(of(old), of(new)):
        for index in range(first, last + 1):
            assert index not in found
            found[index] = (before and before.weight, after.weight)
    assert found == {i: (old[i] if i < len(old) else None, weight) for i, weight in enumerate(new)}
