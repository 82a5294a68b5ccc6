"""Tests of whether tasks fit inside an alloc set, a job that reserves parts of machines, with errors by field."""

from __future__ import annotations

from typing import Any

from scheduling.spec.alloc_fit import fits, misfits
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.parser import CellLimits, parse

LIMITS = CellLimits(extra=("tpu",))


def shelf(**changes: Any) -> JobSpecification:
    file = {
        "name": "shelf",
        "kind": "AllocSet",
        "priority": 200,
        "tasks": 3,
        "task": {"limit": {"cpu": 2, "ram": "1Gi", "disk": "1Gi"}},
    }
    return parse(file | changes, limits=LIMITS)


def inside(limit: dict[str, Any], **changes: Any) -> JobSpecification:
    file = {"name": "web", "tasks": 4, "alloc_set": "shelf", "task": {"command": ["serve"], "limit": limit}}
    return parse(file | changes, limits=LIMITS)


def test_a_task_as_large_as_its_alloc_fits_and_ports_are_the_machines() -> None:
    assert misfits(shelf(), inside({"cpu": 2, "ram": "1Gi", "disk": "1Gi"}, priority=200)) == {}
    assert fits((1, 1, 1, 0, 0, 9), (1, 1, 1, 0, 0, 0))
    assert not fits((1, 1, 1, 0, 0, 0, 1), (1, 1, 1, 0, 0, 0))


def test_each_resource_that_is_too_large_is_named_under_its_path() -> None:
    found = misfits(shelf(), inside({"cpu": 3, "tpu": 1, "accelerators": "500m"}))
    assert set(found) == {"task.limit.cpu", "task.limit.tpu", "task.limit.accelerators"}
    assert found["task.limit.cpu"] == (
        "asks for 3 cores, but an alloc of shelf has 2 cores; ask for less, or enlarge the alloc set first"
    )
    found = misfits(shelf(), inside({}, overrides={"2": {"limit": {"ram": "2Gi"}}}))
    assert set(found) == {"overrides.2.limit.ram"}


def test_one_alloc_must_have_all_of_it() -> None:
    uneven = shelf(overrides={"0": {"limit": {"cpu": 4}}, "1": {"limit": {"ram": "4Gi"}}})
    assert misfits(uneven, inside({"cpu": 4})) == {}
    assert misfits(uneven, inside({"cpu": 4, "ram": "4Gi"})) == {
        "task.limit": "no single alloc of shelf has all of it; ask for less of some resource"
    }


def test_nobody_inside_is_more_urgent_than_the_set() -> None:
    assert set(misfits(shelf(), inside({}, priority=201))) == {"priority"}
