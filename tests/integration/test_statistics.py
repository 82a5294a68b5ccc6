"""Tests of the reader of statistics: it counts each event once, and pages, REST and metrics agree."""

from __future__ import annotations

import datetime as dt
import threading

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from prometheus_client import CollectorRegistry

from quota.vocabulary.errors import Forbidden
from quota.vocabulary.permissions import Principal, Role
from scheduling.core.vocabulary.states import Observation
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.history.statistics import retention
from scheduling.history.statistics.metrics import StatisticsCollector
from scheduling.history.statistics.reader import statistics_read
from scheduling.history.statistics.reports import statistics, statistics_over_time
from scheduling.history.statistics.retention import statistics_drop_old, statistics_fold_old
from scheduling.history.statistics.tallies import Figure
from scheduling.journal import journal
from scheduling.models import Cell, Job, JobSpec, JournalTally, PendingVerdict, StatisticsReader, Task
from scheduling.tasks import reported_states, transitions
from tests.integration import portal_world, rows

pytestmark = pytest.mark.django_db(transaction=True)
DIGEST = "sha256:" + "5" * 64


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@pytest.fixture
def cell() -> Cell:
    found = rows.a_cell()
    rows.a_machine(found)
    return found


def a_running_job(cell: Cell, name: str = "web", *, tasks: int = 3, priority: int = 200) -> Job:
    from scheduling.core.vocabulary.plan import Assignment

    job = rows.a_job(cell, rows.a_tenant(), name, tasks=tasks, priority=priority)
    machine = cell.machines.get().id
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_place(
            entry, [Assignment(job.id, n, machine, ports=(20_000 + 100 * job.id + n,)) for n in range(tasks)]
        )
    up(cell, job)
    return job


def up(cell: Cell, job: Job) -> None:
    with journal.write(cell.id, rows.ME) as entry:
        found = Task.objects.filter(job=job, state="running", up=False)
        reported_states.tasks_observe(
            entry, [Observation(task.id, task.incarnation, "up", "unknown", True) for task in found]
        )


def evict(cell: Cell, job: Job, index: int, cause: str = "preemption") -> None:
    task = Task.objects.get(job=job, index=index)
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task.id, task.incarnation, cause, gone=True)])


def counted(cell: Cell, figure: Figure, label: str = "", *, prod: bool = True) -> int:
    total = JournalTally.objects.filter(cell=cell, figure=figure, label=label, prod=prod, hour__year=1970)
    return sum(total.values_list("number", flat=True))


def test_evictions_and_starts_are_counted(cell) -> None:
    job = a_running_job(cell)
    evict(cell, job, 0)
    evict(cell, a_running_job(cell, "batch", priority=100), 1, "out-of-resources")
    read = statistics_read(cell, now=now())
    assert read == len(journal.tail(cell.id, after=0))
    assert counted(cell, Figure.START, "total") == counted(cell, Figure.DELAY, "first") == 3
    assert counted(cell, Figure.EVICTIONS, "preemption") == 1
    assert counted(cell, Figure.EVICTIONS, "out-of-resources", prod=False) == 1


def test_a_reader_that_starts_again_counts_nothing_twice(cell) -> None:
    job = a_running_job(cell)
    for _ in range(3):
        statistics_read(cell, now=now())
    assert counted(cell, Figure.START, "total") == 3
    evict(cell, job, 0)
    assert statistics_read(cell, now=now()) == 1
    assert statistics_read(cell, now=now()) == 0
    assert counted(cell, Figure.EVICTIONS, "preemption") == 1


def test_parts_of_any_size_give_the_same_counts(cell) -> None:
    job = a_running_job(cell)
    for index in range(3):
        evict(cell, job, index)
    statistics_read(cell, now=now(), at_once=1)
    assert StatisticsReader.objects.get().revision == journal.newest(cell.id)
    assert counted(cell, Figure.EVICTIONS, "preemption") == counted(cell, Figure.START, "total") == 3


def test_a_reader_that_fails_in_the_middle_counts_later_and_once(cell, monkeypatch) -> None:
    """A reader fails at the last statement for a part of the journal. It counts this part later, and only once."""
    a_running_job(cell)

    def fails(self, *args, **kwargs):
        raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(StatisticsReader, "save", fails)
        with pytest.raises(RuntimeError):
            statistics_read(cell, now=now())
    assert not JournalTally.objects.exists()
    statistics_read(cell, now=now())
    assert counted(cell, Figure.START, "total") == 3


def test_two_readers_at_once_count_once(cell) -> None:
    a_running_job(cell)
    StatisticsReader.objects.create(cell=cell)
    found: list[int] = []

    def read() -> None:
        found.append(statistics_read(cell, now=now()))
        connection.close()

    with transaction.atomic():
        StatisticsReader.objects.select_for_update().get()
        other = threading.Thread(target=read)
        other.start()
        other.join(30)
    assert found == [0]
    statistics_read(cell, now=now())
    assert counted(cell, Figure.START, "total") == 3


def test_a_journal_without_its_beginning_is_counted_from_the_rows(cell) -> None:
    job = a_running_job(cell)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE scheduling_event DISABLE TRIGGER append_only")
        cursor.execute("DELETE FROM scheduling_event WHERE revision < 3")
        cursor.execute("ALTER TABLE scheduling_event ENABLE TRIGGER append_only")
    statistics_read(cell, now=now())
    assert counted(cell, Figure.START, "total") == 0
    evict(cell, job, 1)
    later = now() + dt.timedelta(hours=2)
    statistics_read(cell, now=later)
    assert counted(cell, Figure.EVICTIONS, "preemption") == 1
    running = JournalTally.objects.get(figure=Figure.RUNNING, hour__year=1970)
    assert running.total == pytest.approx(2 * 2 * 3600, rel=0.01)


def test_a_restored_cell_is_counted_from_its_rows(cell) -> None:
    job = a_running_job(cell)
    statistics_read(cell, now=now())
    StatisticsReader.objects.update(revision=10_000)
    statistics_read(cell, now=now())
    evict(cell, job, 2)
    assert statistics_read(cell, now=now()) == 1
    assert counted(cell, Figure.EVICTIONS, "preemption") == 1


def test_starts_are_counted_per_package(cell) -> None:
    job = a_running_job(cell, "tool")
    spec = JobSpec.objects.get(job=job)
    spec.spec["task"]["packages"] = [f"python@3.11@{DIGEST}"]
    spec.packages = {DIGEST: {"size_bytes": 1, "format": "tar"}}
    spec.save()
    a_running_job(cell, "plain")
    statistics_read(cell, now=now())
    (row,) = statistics(rows.ME, cell, since=now() - dt.timedelta(hours=2), until=now()).packages()
    assert (row.what, row.number) == ("ubar/python", 3)


def test_pending_hours_are_counted_by_reason(cell) -> None:
    job = rows.a_job(cell, rows.a_tenant(), "waits", tasks=4)
    began = now()
    statistics_read(cell, now=began)
    whys = [{"tasks": [[job.id, 3]], "machines": 1, "code": "resource"}]
    PendingVerdict.objects.create(job=job, revision=1, at=began, whys=whys)
    statistics_read(cell, now=began + dt.timedelta(seconds=60))
    statistics_read(cell, now=began + dt.timedelta(seconds=60))
    found = statistics(rows.ME, cell, since=began - dt.timedelta(hours=1), until=began + dt.timedelta(hours=1))
    assert {(one.reason, one.hours) for one in found.pending()} == {("resource", 0.05), ("not-examined", 0.017)}
    statistics_read(cell, now=began + dt.timedelta(days=1))  # after a pause, only two minutes count
    assert JournalTally.objects.get(label="resource", hour__year=1970).total == 3 * (60 + 120)


def test_old_hours_become_days_and_then_go_and_totals_stay(cell) -> None:
    evict(cell, a_running_job(cell), 0)
    began = now()
    statistics_read(cell, now=began)
    noon = began.replace(hour=12, minute=0, second=0, microsecond=0)
    by_hour = JournalTally.objects.filter(hour__year__gt=1970)
    by_hour.update(hour=noon)
    once = list(by_hour.all())
    for row in once:  # the same counts in two more hours of the day, one of them the first
        for hour in (noon.replace(hour=0), noon.replace(hour=23)):
            JournalTally.objects.create(
                **{name: getattr(row, name) for name in ("cell", "figure", "prod", "label", "number", "total")},
                hour=hour,
                buckets=row.buckets,
            )

    def figures() -> list[object]:
        day = noon.replace(hour=0)
        whole = statistics(rows.ME, cell, since=day, until=day + dt.timedelta(days=1))
        return [whole.evictions(), whole.starts(), whole.delays(), whole.task_weeks(prod=True)]

    before, totals = figures(), counted(cell, Figure.EVICTIONS, "preemption")
    assert statistics_fold_old(now=noon + retention.HOURLY) == 0, "the day is not old enough"
    assert statistics_fold_old(now=noon + retention.HOURLY + dt.timedelta(days=1)) == len(once)
    assert set(by_hour.values_list("hour", flat=True)) == {noon.replace(hour=0)}
    assert figures() == before
    assert statistics_fold_old(now=noon + retention.HOURLY + dt.timedelta(days=1)) == 0

    assert statistics_drop_old(now=noon) == 0
    assert statistics_drop_old(now=noon + retention.KEPT + dt.timedelta(days=1)) == len(once)
    assert set(JournalTally.objects.values_list("hour__year", flat=True)) == {1970}
    assert counted(cell, Figure.EVICTIONS, "preemption") == totals == 1


def test_a_state_that_was_read_costs_few_statements(cell) -> None:
    a_running_job(cell, tasks=3)
    statistics_read(cell, now=now())
    numbers = []
    for name, tasks in (("few", 2), ("many", 60)):
        a_running_job(cell, name, tasks=tasks)
        with CaptureQueriesContext(connection) as queries:
            statistics_read(cell, now=now())
        numbers.append(len(queries))
    assert numbers[0] == numbers[1] <= 16


def test_only_sres_may_read_statistics(cell) -> None:
    owner = Principal("user:owner", roles={"ubar": Role.OWNER})
    for read in (
        lambda: statistics(owner, cell, since=now(), until=now()),
        lambda: statistics_over_time(owner, cell, since=now(), until=now(), daily=True),
    ):
        with pytest.raises(Forbidden):
            read()


def test_metrics_are_monotonic_totals(cell) -> None:
    job = a_running_job(cell)
    evict(cell, job, 0, "machine-failure")
    statistics_read(cell, now=now())
    registry = CollectorRegistry()
    registry.register(StatisticsCollector())
    labels = {"cell": cell.name, "priority": "prod"}
    assert registry.get_sample_value("borg_task_evictions_total", labels | {"cause": "machine-failure"}) == 1
    assert registry.get_sample_value("borg_task_start_seconds_count", labels | {"part": "total"}) == 3
    assert registry.get_sample_value("borg_task_start_seconds_bucket", labels | {"part": "total", "le": "+Inf"}) == 3
    assert registry.get_sample_value("borg_scheduler_delay_seconds_count", labels | {"placement": "first"}) == 3
    assert registry.get_sample_value("borg_task_running_seconds_total", labels) > 0
    assert registry.get_sample_value("borg_statistics_behind_revisions", {"cell": cell.name}) == 0
    evict(cell, job, 1)
    assert registry.get_sample_value("borg_statistics_behind_revisions", {"cell": cell.name}) == 1
    Cell.objects.filter(pk=cell.pk).update(study_of={"cell": "x"})
    assert registry.get_sample_value("borg_statistics_behind_revisions", {"cell": cell.name}) is None
    assert registry.get_sample_value("borg_task_evictions_total", labels | {"cause": "machine-failure"}) is None


def test_rest_and_console_show_what_was_counted() -> None:
    world = portal_world.make()
    evict(world.cell, world.job, 0, "machine-shutdown")
    statistics_read(world.cell, now=now())
    sre = portal_world.signed_in("sre")
    found = sre.get(f"/api/v1/cells/{world.cell.name}/statistics/?hours=24").json()
    (one,) = [row for row in found["evictions"] if row["cause"] == "machine-shutdown" and row["prod"]]
    assert one["evictions"] == 1
    assert one["per_task_week"] is None or one["per_task_week"] > 0
    assert [row["what"] for row in found["starts"][:4]] == ["queue", "install", "start", "total"]
    assert sre.get(f"/api/v1/cells/{world.cell.name}/statistics/?hours=0").status_code == 422
    page = sre.get(f"/admin/statistics/?cell={world.cell.name}")
    assert page.status_code == 200
    for text in ("Evictions per task-week", "machine-shutdown", "Pending hours by reason", "/admin/statistics/"):
        assert text in page.text
    assert portal_world.signed_in("viewer").get("/admin/statistics/", follow=True).status_code == 403
