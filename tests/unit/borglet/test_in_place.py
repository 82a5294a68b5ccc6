"""Tests of changes to a running task: which ones the Borglet passes to its runtime, and which ones it rejects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from borglet.messages import Slack
from borglet.state.desired import FIXED_FIELDS, differs_in_place
from tests.real.runtimes.machine import a_task, key

IN_PLACE: dict[str, Any] = {
    "limit": {"cpu": 1000, "disk_bandwidth": 10**6},
    "priority": 50,
    "prod": False,
    "slack": Slack(cpu=False),
    "whole_cores": True,
    "max_processes": 10,
    "notice_s": 1.0,
    "leave_s": 6.0,
}


@pytest.mark.parametrize("field", IN_PLACE)
def test_isolation_changes_under_a_running_task(field: str) -> None:
    task = a_task("x")
    changed = msgspec.structs.replace(task, **{field: IN_PLACE[field]})
    assert field not in FIXED_FIELDS
    assert differs_in_place(task, changed)


def test_what_a_task_waited_for_is_not_a_change() -> None:
    task = a_task("x")
    assert not differs_in_place(task, msgspec.structs.replace(task, waits_for=[key(5)]))
