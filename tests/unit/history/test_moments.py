"""Tests of views of past states: what they count, what they list, and which jobs each caller can see."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

import msgspec
import numpy as np
import pytest

from quota.vocabulary.bands import DEFAULT_BANDS
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Group
from scheduling.history.checkpoints.file import Header
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.history.checkpoints.thinning import superfluous
from scheduling.history.moments import reasons
from scheduling.history.moments.copying import copied
from scheduling.history.moments.messages import ListFilter, MomentRequest, Picture
from scheduling.history.moments.past_cell import picture_of
from scheduling.history.moments.reasons import reasons_of
from tests.builders import GIB, needs, vector

NOW, HOUR, DAY = 1_000_000.0, 3600.0, 86_400.0


def submitted(job: int, tenant: str, *, tasks: int = 1, cpu: int = 1000, priority: int = 200) -> events.JobSubmitted:
    return events.JobSubmitted(
        job_id=job,
        uid=f"{job:032x}",
        tenant_id=1,
        tenant=tenant,
        name=f"job{job}",
        job_kind="job",
        priority=priority,
        latency_sensitive=True,
        spec_version=1,
        groups=(Group(needs(cpu=cpu), ((0, tasks - 1),)),),
    )


@pytest.fixture
def state() -> RecordedState:
    """Return a state with two machines, one of them down, and tasks of two tenants.

    Each tenant has a running task and a pending one. One more task is too large for any machine.
    """
    state = RecordedState()
    machine = {"address": "127.0.0.1", "capacity": vector(cpu=4000, ram=8 * GIB, disk=GIB)}
    news = [
        events.MachineSet(machine_id=1, hostname="m1", rack="r1", **machine),
        events.MachineSet(machine_id=2, hostname="m2", rack="r2", **machine),
        events.MachineState(machine_id=2, state="down"),
        submitted(1, "own", tasks=2),
        submitted(2, "other", tasks=2, priority=100),
        submitted(3, "own", cpu=9000, priority=100),
        events.TaskPlaced(job_id=1, index=0, machine_id=1, incarnation=1),
        events.TaskPlaced(job_id=2, index=1, machine_id=1, incarnation=1),
    ]
    for revision, event in enumerate(news, start=1):
        state.apply(event, revision=revision, time=NOW + revision)
    return state


def picture(state: RecordedState, *tenants: str, **asked: ListFilter) -> Picture:
    found = reasons_of(state, Policy(), now=NOW + 60)
    request = MomentRequest(cell_id=1, tenants=tenants or None, **asked)
    return picture_of(state, request, bands=DEFAULT_BANDS, reasons=found)


def test_everything_is_counted_for_every_caller(state) -> None:
    for shown in (picture(state), picture(state, "own"), picture(state, "nobody")):
        assert shown.machine_counts == {"up": 1, "draining": 0, "down": 1}
        cpu = shown.resources[0]
        assert (cpu.name, cpu.capacity, cpu.limits, cpu.reserved, cpu.free) == ("cpu", 4000, 2000, 2000, 2000)
        assert [(one.band, one.jobs, one.pending, one.running) for one in shown.bands] == [
            ("production", 1, 1, 1),
            ("batch", 2, 2, 1),
        ]
        assert [(one.priority, one.jobs, one.tasks, one.since) for one in shown.queues] == [
            (200, 1, 1, NOW + 4),
            (100, 2, 2, NOW + 5),
        ]
        assert [one.hostname for one in shown.machines] == ["m1", "m2"]
        assert (shown.machines[0].tasks, shown.machines[0].limits[0]) == (2, 2000)


def test_a_cell_without_jobs_or_machines_has_an_empty_picture() -> None:
    shown = picture(RecordedState())
    assert (shown.machines, shown.tasks, shown.bands, shown.queues, shown.pending) == ((), (), (), (), ())
    assert shown.machine_counts == {"up": 0, "draining": 0, "down": 0}
    assert [(one.name, one.capacity, one.free) for one in shown.resources] == [
        ("cpu", 0, 0),
        ("ram", 0, 0),
        ("disk", 0, 0),
    ]
    assert shown.machines_page.pages == 1


def test_only_visible_jobs_are_listed(state) -> None:
    shown = picture(state, "own")
    assert [(one.tenant, one.name) for one in shown.pending] == [("own", "job1"), ("own", "job3")]
    assert shown.hidden_pending == 1
    assert {one.tenant for one in shown.tasks} == {"own"}
    assert shown.tasks_page.rows == 3
    assert picture(state).tasks_page.rows == 5
    nothing = picture(state, "nobody")
    assert (nothing.pending, nothing.tasks, nothing.hidden_pending) == ((), (), 3)


def test_reasons_are_computed_from_the_state(state) -> None:
    first, large = picture(state, "own").pending
    assert (first.placeable, first.whys) == (1, ())
    assert large.placeable == 0
    assert [why.code for why in large.whys] == ["resource"]
    assert large.whys[0].never


def test_too_many_pending_tasks_have_no_reasons(state, monkeypatch) -> None:
    monkeypatch.setattr(reasons, "MOST_PENDING", 2)
    shown = picture(state, "own")
    assert shown.unexplained
    assert [(one.placeable, one.whys) for one in shown.pending] == [(0, ()), (0, ())]


def test_lists_are_filtered_and_paged(state) -> None:
    down = picture(state, machines=ListFilter(state="down"))
    assert [one.hostname for one in down.machines] == ["m2"]
    assert [one.hostname for one in picture(state, machines=ListFilter(search="r1")).machines] == ["m1"]
    running = picture(state, tasks=ListFilter(state="running", search="other/"))
    assert [(one.job, one.index, one.machine, one.since) for one in running.tasks] == [("job2", 1, "m1", NOW + 8)]
    state.apply(submitted(9, "own", tasks=60), revision=9, time=NOW + 9)
    last = picture(state, tasks=ListFilter(page=9))
    assert (last.tasks_page.page, last.tasks_page.pages, last.tasks_page.rows) == (2, 2, 65)
    assert len(last.tasks) == 15


def test_a_copy_of_a_state_is_independent(state) -> None:
    before = copied(state)
    state.apply(events.TaskEnded(job_id=1, index=0, machine_id=1, incarnation=1, how="finished"), revision=9, time=NOW)
    assert before.revision == 8
    assert before.validate() == []
    assert picture(before).bands[0].running == 1
    assert picture(state).bands[0].running == 0
    before.apply(events.TaskEnded(job_id=1, index=0, machine_id=1, incarnation=1, how="finished"), revision=9, time=NOW)
    assert before.diff(state) == []


def test_a_copy_of_a_state_shares_nothing_that_can_change(state) -> None:
    placed = events.TaskPlaced(job_id=2, index=0, machine_id=1, incarnation=1, ports=(20_000,))
    ports_held = events.TaskPlaced(job_id=1, index=1, machine_id=1, incarnation=1, ports=(20_001,))
    crashed = events.TaskEvicted(job_id=2, index=0, machine_id=1, incarnation=1, cause="other", avoid=True, gone=False)
    for revision, event in enumerate((placed, ports_held, crashed), start=9):
        state.apply(event, revision=revision, time=NOW)
    state.details[1].versions[0] = 2
    assert state.departed
    assert state.crashed
    other = copied(state)
    assert other.diff(state) == []
    theirs = parts(other)
    shared = [one for identity, one in parts(state).items() if identity in theirs]
    assert shared == [details.labels for details in state.details.values()], "the labels of a job are only replaced"


def parts(one: Any, found: dict[int, Any] | None = None) -> dict[int, Any]:
    """Return all objects that `one` consists of and that can change, by `id`."""
    found = {} if found is None else found
    if id(one) in found or isinstance(one, msgspec.Struct | str | int | float | type | None):
        return found
    if isinstance(one, tuple):
        inner: Iterable[Any] = one
    elif isinstance(one, MethodType):
        inner = [one.__self__]
    else:
        found[id(one)] = one
        if isinstance(one, dict):
            inner = [*one.keys(), *one.values()]
        elif isinstance(one, list | set):
            inner = one
        else:
            names = getattr(one, "__slots__", None) or vars(one) if not isinstance(one, np.ndarray) else ()
            inner = [getattr(one, name) for name in names]
    for part in inner:
        parts(part, found)
    return found


def taken(hour: float, events_: int, history: str = "h") -> Header:
    return Header(cell="cc", revision=events_, taken_at=hour * HOUR, history=history, events=events_)


def test_old_checkpoints_stay_where_many_events_are_between_them() -> None:
    headers = [taken(1, 0), taken(2, 30), taken(3, 60), taken(4, 90), taken(25, 100), taken(26, 101)]
    unneeded = superfluous(headers, now=10 * DAY, keep_s=60 * DAY, most_events=50)
    assert [header.events for header in unneeded] == [90, 101], "40 events are between 60 and 100"
    by_day = superfluous(headers, now=10 * DAY, keep_s=60 * DAY, most_events=0)
    assert [header.events for header in by_day] == [30, 60, 90, 101]
    assert superfluous(headers, now=26.5 * HOUR, keep_s=60 * DAY, most_events=0) == [taken(2, 30)]
    assert len(superfluous(headers, now=90 * DAY, keep_s=60 * DAY, most_events=50)) == len(headers)
    apart = [taken(1, 0), taken(2, 30), taken(3, 90, "other")]
    assert [one.events for one in superfluous(apart, now=10 * DAY, keep_s=60 * DAY, most_events=50)] == [30]
    continued = superfluous(apart, now=10 * DAY, keep_s=60 * DAY, most_events=50, same={"h", "other"})
    assert [one.events for one in continued] == [90], "30 bridges the gap between both histories"
