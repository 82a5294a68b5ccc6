"""Tests of disruption budgets in job files: their spellings, their checks, and the number of tasks that they allow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.core.vocabulary.states import EvictionCause
from scheduling.core.vocabulary.task_events import Ending, Eviction, InnerTask, evictions_inside
from scheduling.jobs.rollouts import restart_rule
from scheduling.jobs.rollouts.restart_rule import SpecChange
from scheduling.spec.disruptions.limits import tasks_down
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.parser import CellLimits, load, parse


def a_job(budget: Any, *, tasks: int = 20, **changes: Any) -> JobSpecification:
    file = {"name": "web", "tasks": tasks, "task": {"command": ["serve"]}, "disruption_budget": budget}
    return parse(json.dumps(file | changes).encode())


@pytest.mark.parametrize(
    ("share", "tasks", "expected"),
    [
        ("10%", 20, 2),
        ("10%", 15, 2),
        ("10%", 1, 1),
        ("1%", 5, 1),
        ("50%", 3, 2),
        ("100%", 7, 7),
        (3, 20, 3),
        (0, 20, 0),
    ],
)
def test_a_share_is_rounded_up_and_allows_at_least_one_task(share: int | str, tasks: int, expected: int) -> None:
    assert tasks_down(share, tasks) == expected
    assert a_job(share, tasks=tasks).budget_down == expected


def test_a_share_counts_the_tasks_that_run_at_once() -> None:
    assert a_job("10%", tasks=1000, max_running=50).budget_down == 5


def test_equal_budgets_have_equal_specs_however_they_are_spelled() -> None:
    assert a_job({"max_down": 2}).digest() == a_job(2).digest()
    assert a_job({"max_down": "10%"}).digest() == a_job("10%").digest()
    assert (
        a_job({}).digest()
        == a_job(0).digest()
        == parse(b'{"name":"web","tasks":20,"task":{"command":["serve"]}}').digest()
    )
    assert a_job({"max_disruptions": 5, "window_s": 3600}).digest() == a_job({"max_disruptions": 5}).digest()


@pytest.mark.parametrize(
    "budget", [2, "10%", {"max_disruptions": 20}, {"max_down": "5%", "max_disruptions": 3, "window_s": 600}]
)
def test_a_stored_budget_is_read_again(budget: Any) -> None:
    spec = a_job(budget)
    assert parse(spec.to_json()) == spec
    assert restart_rule.change(a_job(1), spec, 0) is SpecChange.IN_PLACE


def test_a_rate_without_a_number_leaves_drains_the_number_of_updates() -> None:
    spec = a_job({"max_disruptions": 5})
    assert (spec.budget_down, spec.may_be_down(), spec.disruption_limits.window_s) == (0, 2, 3600.0)


@pytest.mark.parametrize(
    ("budget", "path", "cure"),
    [
        ("ten", "disruption_budget", "a share from '1%' to '100%'"),
        ("0%", "disruption_budget", "a share from '1%' to '100%'"),
        ("101%", "disruption_budget", "a share from '1%' to '100%'"),
        (-1, "disruption_budget", "give a number from 0"),
        (1.5, "disruption_budget", "a number such as 2, a share such as '10%', or fields such as max_down"),
        ("2", "disruption_budget", "a number without quotes"),
        ({"max_disruptions": 1, "window_s": 604800}, "disruption_budget.max_disruptions", "give at least 10"),
        ({"max_down": "1.5%"}, "disruption_budget.max_down", "a share from '1%' to '100%'"),
        ({"max_down": -1}, "disruption_budget.max_down", "give a number from 0"),
        ({"max_disruptions": -1}, "disruption_budget.max_disruptions", "give a number from 0"),
        ({"max_disruptions": 1, "window_s": 59}, "disruption_budget.window_s", "from 60 to 604800"),
        ({"max_disruptions": 1, "window_s": 1e9}, "disruption_budget.window_s", "from 60 to 604800"),
        ({"max_down": 1, "window_s": 600}, "disruption_budget.window_s", "set disruption_budget.max_disruptions"),
        ({"max_dow": 1}, "disruption_budget.max_dow", "did you mean 'max_down'"),
        ({"max_disruptions": "20"}, "disruption_budget.max_disruptions", "a whole number, without quotes"),
    ],
)
def test_a_wrong_budget_is_rejected_with_field_and_cure(budget: Any, path: str, cure: str) -> None:
    with pytest.raises(Rejected) as rejected:
        a_job(budget)
    assert cure in rejected.value.fields[path]


def test_a_rate_has_to_be_enough_for_all_tasks_that_scaling_may_add() -> None:
    slow = {"max_disruptions": 1, "window_s": 604800}
    job = a_job(slow, tasks=2)
    with pytest.raises(Rejected, match="14 days"):
        parse(job.to_json() | {"tasks": 20}, limits=CellLimits(bands=None))
    with pytest.raises(Rejected, match="14 days"):
        a_job(slow, tasks=2, autoscale={"horizontal": {"max": 20, "cpu": 50}})
    assert load(job.to_json() | {"tasks": 20}).tasks == 20, "a stored spec stays valid"


@pytest.mark.parametrize("cause", list(EvictionCause))
def test_evictions_by_the_cell_count_and_those_by_the_job_do_not(cause: EvictionCause) -> None:
    own = {EvictionCause.UPDATE, EvictionCause.FAILURE, EvictionCause.OTHER}
    eviction = Eviction(1, 1, cause.value)
    assert eviction.disrupts == (cause not in own)
    (inner,) = evictions_inside([InnerTask(2, 1, 1, "shelf/0")], {1: eviction})
    assert inner.disrupts == eviction.disrupts, "a task that leaves with its alloc counts like the alloc"


def test_a_task_whose_alloc_is_killed_is_not_disrupted() -> None:
    (inner,) = evictions_inside([InnerTask(2, 1, 1, "shelf/0")], {1: Ending(1, "killed")})
    assert not inner.disrupts
