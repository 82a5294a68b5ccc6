"""Tests of following a name: a change is read once and sent to all watchers, and no change is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from naming.api import selectors, task_endpoints
from naming.api.changes import MOST_REVISIONS, members_changed_after
from naming.table.names import JobName, ServiceName, TaskName
from portal.live.hub import Hub, Viewer
from portal.live.watched_names import NamesHub, NamesMessages, WatchedName
from quota.vocabulary.permissions import system
from scheduling.cells.cells import cell_new_history
from scheduling.core.vocabulary import events, task_events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal, wakeups
from scheduling.models import Cell, Job, Machine, Task
from scheduling.tasks import transitions
from tests.integration.naming_rows import evict, place, report, use
from tests.integration.rows import ME, a_cell, a_job, a_machine, a_tenant

pytestmark = pytest.mark.django_db(transaction=True)
JOB, SERVICE = JobName("cc", "ubar", "jfoo"), ServiceName("cc", "ubar", "front")
WAIT_S = 30.0


class Loop:
    """A stand-in for the event loop of a viewer, which calls functions at once."""

    def call_soon_threadsafe(self, call: Callable[..., None], *args: Any) -> None:
        call(*args)


@pytest.fixture
def job() -> Job:
    cell = a_cell()
    machine, job = a_machine(cell), a_job(cell, a_tenant())
    place(cell, job, machine, 0, 1)
    report(cell, job, 0)
    return job


@pytest.fixture
def hub() -> NamesHub:
    return a_hub()


def a_hub() -> NamesHub:
    """Return a `NamesHub` without a thread of its own. The test calls its `_tick` instead."""
    hub = NamesHub()
    hub._thread = threading.current_thread()
    return hub


def follow(hub: Hub, job: Job, name: Any = JOB) -> tuple[WatchedName, Viewer]:
    viewer = Viewer(WatchedName(name, job.cell_id, job.tenant_id), Loop())  # type: ignore[arg-type]
    hub.watch(viewer, revision=0)
    names = viewer.topic
    assert isinstance(names, WatchedName)
    names.begin()
    return names, viewer


def news(viewer: Viewer) -> list[NamesMessages]:
    return [viewer.outbox.get_nowait()["names"] for _ in range(viewer.outbox.qsize())]


def labelled(job: Job, labels: dict[str, str], **published: Any) -> None:
    """Write the new labels of a job to its row and to the journal, as an update of its job file does."""
    with journal.write(job.cell_id, ME) as entry:
        Job.objects.filter(pk=job.pk).update(labels=labels, published=published)
        entry.append(
            events.JobChanged(
                job_id=job.id,
                priority=job.priority,
                latency_sensitive=True,
                spec_version=1,
                labels=labels,
                port_names=("http",),
            )
        )


def truth(name: Any) -> Any:
    """Return the present answer for a name without its revisions, which events of other jobs change too."""
    who = system("test")
    if isinstance(name, ServiceName):
        state: Any = selectors.endpoints(who, name, zone="borg.internal")
    else:
        state = selectors.endpoints(who, name, zone="borg.internal")
    return without_revisions(state)


def without_revisions(state: Any) -> Any:
    return [
        (one.name, one.phase, one.health, one.serving, one.weight, one.ttl_s, one.address, dict(one.ports))
        for one in state.endpoints
    ]


def shown(names: WatchedName) -> Any:
    state = names._state()
    return None if state is None else without_revisions(state)


def test_a_change_is_reported_alone_and_read_once_for_all_who_watch(hub: NamesHub, job: Job) -> None:
    names, first = follow(hub, job)
    hub._tick()
    others = [follow(hub, job)[1] for _ in range(30)]
    report(job.cell, job, 1)
    with CaptureQueriesContext(connection) as captured:
        hub._tick()
    assert len(captured) <= 4, [one["sql"] for one in captured]
    (told,) = news(first)
    assert [one.index for one in told.changed] == [1]
    assert told.facts is not None
    assert (told.facts["serving"], told.gone) == (2, [])
    assert all(news(other) == [told] for other in others)
    assert shown(names) == truth(JOB)


def test_a_task_that_leaves_is_gone_and_its_job_fails_open(hub: NamesHub, job: Job) -> None:
    _, viewer = follow(hub, job)
    evict(job.cell, job, 0)
    hub._tick()
    (told,) = news(viewer)
    assert told.gone == ["/bns/cc/ubar/jfoo/0"]
    assert told.facts is not None
    assert (told.facts["placed"], told.facts["fail_open"]) == (1, True)


def test_news_of_others_is_none_of_ours(hub: NamesHub, job: Job) -> None:
    names, viewer = follow(hub, job)
    other = a_job(job.cell, a_tenant("other"))
    place(job.cell, other, Machine.objects.get(), 0, ports=21_000)
    report(job.cell, other, 0)
    hub._tick()
    assert news(viewer) == []
    assert hub.revision(names) == journal.newest(job.cell_id)
    assert not names.changed_since(names.since)


def test_a_task_hears_of_itself_and_of_its_job_alone(hub: NamesHub, job: Job) -> None:
    names, viewer = follow(hub, job, TaskName("cc", "ubar", "jfoo", 1))
    report(job.cell, job, 0, health="unhealthy")
    hub._tick()
    assert news(viewer) == []
    report(job.cell, job, 1)
    hub._tick()
    (told,) = news(viewer)
    assert [(one.index, one.serving) for one in told.changed] == [(1, True)]
    labelled(job, {}, weights=[[1, 1, 9]])
    hub._tick()
    (told,) = news(viewer)
    assert [one.weight for one in told.changed] == [9]
    assert isinstance(names.body(0)[2], bytes)


def test_weights_labels_and_ttl_are_news(hub: NamesHub, job: Job) -> None:
    _, viewer = follow(hub, job)
    labelled(job, {"tier": "web"}, ttl_s=30, weights=[[0, 0, 5]])
    hub._tick()
    (told,) = news(viewer)
    assert told.facts is not None
    assert (told.facts["ttl_s"], told.facts["labels"]) == (30, {"tier": "web"})
    assert sorted((one.index, one.weight, one.ttl_s) for one in told.changed) == [(0, 5, 30), (1, 1, 30)]


def test_a_machine_that_moves_takes_its_tasks_along(hub: NamesHub, job: Job) -> None:
    _, viewer = follow(hub, job)
    machine = Machine.objects.get()
    with journal.write(job.cell_id, ME) as entry:
        Machine.objects.update(address="127.0.0.9")
        entry.append(events.MachineSet(machine_id=machine.id, hostname="m1", address="127.0.0.9", capacity=()))
    hub._tick()
    (told,) = news(viewer)
    assert {one.address for one in told.changed} == {"127.0.0.9"}


def test_jobs_come_to_a_service_and_leave_it(hub: NamesHub, job: Job) -> None:
    labelled(job, {"service": "front"})
    names, viewer = follow(hub, job, SERVICE)
    canary = a_job(job.cell, job.tenant, "canary")
    place(job.cell, canary, Machine.objects.get(), 0, ports=21_000)
    hub._tick()
    assert news(viewer) == []
    labelled(canary, {"service": "front"})
    hub._tick()
    (told,) = news(viewer)
    assert told.facts is not None
    assert (told.facts["jobs"], told.facts["placed"]) == (["/bns/cc/ubar/jfoo", "/bns/cc/ubar/canary"], 3)
    seen = names.revision
    labelled(job, {})
    hub._tick()
    (told,) = news(viewer)
    assert told.gone == ["/bns/cc/ubar/jfoo/0", "/bns/cc/ubar/jfoo/1"]
    assert shown(names) == truth(SERVICE)
    assert follow(a_hub(), job, SERVICE)[0].changed_since(seen), "by the journal alone: it has left since"
    labelled(canary, {})
    hub._tick()
    (told,) = news(viewer)
    assert told.facts is None


def test_a_job_that_ends_is_gone_and_another_of_its_name_is_another(hub: NamesHub, job: Job) -> None:
    names, viewer = follow(hub, job)
    with journal.write(job.cell_id, ME) as entry:
        transitions.tasks_end(entry, [task_events.Ending(task_id(job.id, index), "killed") for index in range(3)])
    hub._tick()
    assert news(viewer)[-1].facts is None
    assert names.body(0)[2] is None
    again = a_job(job.cell, job.tenant)
    place(job.cell, again, Machine.objects.get(), 2, ports=21_000)
    hub._tick()
    (told,) = news(viewer)
    assert [one.index for one in told.changed] == [2]


def test_a_removed_cell_ends_its_names(hub: NamesHub, job: Job) -> None:
    _, viewer = follow(hub, job)
    Task.objects.all().delete()
    for model in (Job, Machine, Cell):
        model.objects.all().delete()
    hub._tick()
    assert news(viewer)[-1].facts is None


def test_more_news_than_are_reported_one_by_one_are_read_as_a_whole(
    hub: NamesHub, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.live.page_changes.MOST_EVENTS", 1)
    names, viewer = follow(hub, job)
    before = names.revision
    report(job.cell, job, 0, health="unhealthy")
    report(job.cell, job, 1)
    hub._tick()
    assert shown(names) == truth(JOB)
    assert names.changed_since(before)
    assert len(news(viewer)) == 1


def test_a_restored_cell_is_reported_again_though_its_revision_is_higher(hub: NamesHub, job: Job) -> None:
    """After a restore to a higher revision, a watcher gets the present state, although no event contains it."""
    names, viewer = follow(hub, job)
    hub._tick()
    Task.objects.filter(job=job).update(health="unhealthy", up=False)
    cell_new_history(principal=system("test"), cell=job.cell)
    hub._tick()
    (told,) = news(viewer)
    assert (told.visible, told.history, names.history) == (True, 2, 2)
    assert {one.health for one in told.changed} == {"unhealthy"}
    hub._tick()
    assert news(viewer) == []


def test_a_restored_cell_is_reported_again_though_its_revision_is_lower(hub: NamesHub, job: Job) -> None:
    names, viewer = follow(hub, job)
    Cell.objects.update(revision=2, history_ordinal=2)
    hub._tick()
    (told,) = news(viewer)
    assert (told.visible, told.history, names.revision) == (True, 2, 2)
    Cell.objects.update(revision=1_000)  # the events of the old history still exist
    report(job.cell, job, 0, health="unhealthy")
    hub._tick()
    assert shown(names) == truth(JOB)


def test_loads_are_reported_without_waking_long_polls(hub: NamesHub, job: Job) -> None:
    names, viewer = follow(hub, job)
    hub._tick()
    before = names.changed_at
    use(job, 0, cpu_milli=40)
    hub._loads_at = 0.0
    hub._tick()
    (told,) = news(viewer)
    assert [(one.index, one.load) for one in told.changed] == [(0, 0.4)]
    assert (names.changed_at, told.changed_at) == (before, before)
    use(job, 0, cpu_milli=41)
    hub._loads_at = 0.0
    hub._tick()
    assert news(viewer) == [], "a hundredth is not worth telling"


def test_asking_after_a_revision_from_before_it_was_followed(hub: NamesHub, job: Job) -> None:
    start = journal.newest(job.cell_id)
    other = a_job(job.cell, a_tenant("other"))
    place(job.cell, other, Machine.objects.get(), 0, ports=21_000)
    names, _ = follow(hub, job)
    assert start < names.since
    assert not names.changed_since(start)
    assert names.changed_since(start - 1)


def test_a_service_followed_from_long_ago_counts_as_changed(job: Job) -> None:
    asked = {"after": 1, "until": 2 + MOST_REVISIONS}
    assert members_changed_after(SERVICE, job.cell_id, job.tenant_id, **asked)
    now = journal.newest(job.cell_id)
    assert not members_changed_after(SERVICE, job.cell_id, job.tenant_id, after=now, until=now)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", [JOB, SERVICE], ids=["job", "service"])
def test_a_watcher_that_missed_a_change_gets_the_current_state(job: Job, name: Any, seed: int) -> None:
    """Clients of two `NamesHub` objects follow a name while random changes happen, and keep no outdated answer.

    Each client holds an answer and its revision. If a hub has read all events and reports no change since that
    revision, the answer must equal the one from rows.
    """
    rng = Random(seed)
    labelled(job, {"service": "front"})
    canary = a_job(job.cell, job.tenant, "canary")
    hubs = [a_hub(), a_hub()]
    followed: list[WatchedName | None] = [None, None]
    held = [(selectors_revision(name), truth(name)) for _ in range(3)]
    quiet = 0
    for _ in range(60):
        step, at, client = rng.randrange(6), rng.randrange(2), rng.randrange(3)
        if step <= 2:
            disturb(rng, job, canary)
        elif step == 3:
            hubs[at]._tick()
        elif step == 4:
            held[client] = (selectors_revision(name), truth(name))
        else:
            names = followed[at] = followed[at] or follow(hubs[at], job, name)[0]
            hubs[at]._tick()
            after, known = held[client]
            if names.changed_since(after):
                held[client] = (max(names.revision, hubs[at].revision(names)), shown(names))
            else:
                quiet += 1
                assert known == truth(name)
            assert held[client][1] == truth(name)
    assert quiet


def selectors_revision(name: Any) -> int:
    """Return the newest revision of the cell. As in the API, it is read before the answer that it belongs to."""
    return journal.newest(Cell.objects.get().id)


def disturb(rng: Random, job: Job, canary: Job) -> None:
    which = rng.randrange(4)
    if which == 0:
        report(job.cell, job, rng.randrange(2), health=rng.choice(["healthy", "unhealthy"]))
    elif which == 1:
        labelled(canary, rng.choice([{}, {"service": "front"}]))
    elif which == 2:
        labelled(job, {"service": "front"}, weights=[[0, 0, rng.randrange(1, 4)]])
    else:
        other = a_job(job.cell, a_tenant("other"), f"j{rng.randrange(10**9)}")
        assert other.id


class Following:
    """A watcher of names, with a `NamesHub` that runs in a thread of its own. `told` is set at each message."""

    def __init__(self) -> None:
        self.hub = NamesHub()
        self.told = threading.Event()

    def call_soon_threadsafe(self, call: Callable[..., None], *args: Any) -> None:
        call(*args)
        self.told.set()


@pytest.fixture
def following() -> Iterator[Following]:
    made = Following()
    yield made
    made.hub.stop()


def test_news_come_though_redis_is_away(
    job: Job, following: Following, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.BORG_REDIS_URL = "redis://127.0.0.1:1/0"
    monkeypatch.setattr(wakeups, "_client", None)
    monkeypatch.setattr(wakeups, "_sender", None)
    viewer = Viewer(WatchedName(JOB, job.cell_id, job.tenant_id), following)  # type: ignore[arg-type]
    following.hub.watch(viewer, revision=0)
    assert isinstance(viewer.topic, WatchedName)
    viewer.topic.begin()
    report(job.cell, job, 1)
    assert following.told.wait(wakeups.POLL_S + WAIT_S)
    assert [one.index for one in news(viewer)[0].changed] == [1]


def test_ports_of_a_version_before_the_present_one_are_read_once_for_all_jobs(job: Job) -> None:
    """For two jobs whose updates are in progress, one query reads the port names of the earlier versions."""
    canary = a_job(job.cell, job.tenant, "canary")
    place(job.cell, canary, Machine.objects.get(), 0, ports=21_000)
    Job.objects.update(spec_version=2, port_names=["web"])
    jobs = {one.id: one for one in Job.objects.select_related("cell", "tenant")}
    rows = task_endpoints.rows_of(jobs)
    with CaptureQueriesContext(connection) as captured:
        found = task_endpoints.endpoints_of(jobs, rows, zone="borg.internal")
    assert len(captured) == 1
    assert {tuple(one.ports) for one in found} == {("http",)}
