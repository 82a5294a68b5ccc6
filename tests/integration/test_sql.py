"""Tests of SQL over the history of a cell: what a query returns, who sees what, and the ready queries on real rows."""

from __future__ import annotations

import csv
import datetime as dt
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow.parquet as pq
import pytest
from django.db import transaction
from django.utils import timezone
from pytest_django.plugin import DjangoDbBlocker

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import CapabilityKind, Principal, Role, Scope
from scheduling.core.vocabulary.task_events import Ending, Eviction
from scheduling.history.infrastore import asking, exported_rows, grammar, ready_queries
from scheduling.history.infrastore.columns import TABLES
from scheduling.history.infrastore.process.loading import Loader
from scheduling.history.infrastore.process.protocol import ChildRequest, Form, Limits
from scheduling.history.infrastore.visible_rows import Visibility, visibility
from scheduling.journal import journal
from scheduling.models import Cell, Event, Job, Task
from scheduling.tasks import transitions
from tests.integration import money_rows, rows, world
from tests.integration.usage_rows import store_usage

pytestmark = pytest.mark.django_db

# All tests only read, so they share one world.


def ask(who: Principal, cell: Cell, query: str, **given: Any) -> list[list[Any]]:
    """Run a query and return the rows of its result."""
    answer = asking.ask(principal=who, cell=cell, query=query, now=timezone.now(), **given)
    found: list[list[Any]] = msgspec.json.decode(answer.body)
    assert answer.head.rows == len(found)
    return found


def evict(job: Job, index: int, cause: str, *, preemptor: int | None = None) -> None:
    task = Task.objects.get(job=job, index=index)
    with journal.write(job.cell_id, rows.ME) as entry:
        eviction = Eviction(task.id, task.incarnation, cause, "a test", gone=True, preemptor=preemptor)
        transitions.tasks_evict(entry, [eviction])


def end(job: Job, index: int, how: str, **more: Any) -> None:
    task = Task.objects.get(job=job, index=index)
    with journal.write(job.cell_id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task.id, how, task.incarnation, gone=True, **more)])


@pytest.fixture(scope="module")
def story(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, Any]]:
    with django_db_blocker.unblock(), transaction.atomic():
        yield _story()
        transaction.set_rollback(True)


@pytest.fixture
def cell(story: dict[str, Any]) -> Cell:
    found: Cell = story["cell"]
    return found


@pytest.fixture
def sre(story: dict[str, Any]) -> Principal:
    return world.principal("root", sre=True)


def _story() -> dict[str, Any]:
    """Create job web of tenant ubar and job theirs of tenant other, each with three tasks and some history.

    Return the rows and principals by name.
    """
    cell = rows.a_cell()
    machine = rows.a_machine(cell)
    own, other = rows.a_tenant("ubar"), rows.a_tenant("other")
    for tenant in (own, other):
        rows.grant(tenant, cell, "production")
    ann, bob = (
        world.principal(name, tenant=tenant, role=Role.OPERATOR) for name, tenant in (("ann", own), ("bob", other))
    )
    web = world.submit(ann, cell, world.a_file("web", labels={"team": "front"}))
    theirs = world.submit(bob, cell, world.a_file("theirs"), tenant="other")
    for job in (web, theirs):
        world.bring_up(job, machine)
    store_usage(web, 0, timezone.now() - dt.timedelta(hours=1), windows=3)
    store_usage(theirs, 0, timezone.now() - dt.timedelta(hours=1), windows=5, cpu_milli=100)
    evict(web, 1, "preemption", preemptor=Task.objects.get(job=theirs, index=0).id)
    evict(web, 2, "machine-failure")
    world.place(web, machine, 1)
    evict(web, 1, "preemption")
    end(theirs, 2, "failed", exit={"cause": "exited", "status": 3})
    return {"cell": cell, "web": web, "theirs": theirs, "ann": ann, "bob": bob, "own": own, "other": other}


def test_events_of_tasks_have_the_names_of_the_trace(cell, story, sre) -> None:
    web = story["web"]
    query = f"SELECT type, count(*) FROM instance_events WHERE collection_id = {web.id} GROUP BY type ORDER BY type"
    assert ask(sre, cell, query) == [["evict", 3], ["report", 3], ["schedule", 4], ["submit", 3]]
    query = (
        "SELECT cause, preemptor_collection_id, user, collection_name, priority, machine_id IS NOT NULL, incarnation"
        " FROM instance_events WHERE type = 'evict' ORDER BY revision"
    )
    common = ["ubar", "web", 120, True]
    assert ask(sre, cell, query) == [
        ["preemption", story["theirs"].id, *common, 1],
        ["machine-failure", None, *common, 1],
        ["preemption", None, *common, 2],
    ]
    query = "SELECT instance_index, type, exit_reason, exit_status FROM instance_events WHERE type = 'fail'"
    assert ask(sre, cell, query) == [[2, "fail", "exited", 3]]
    query = "SELECT resource_request_cpus, resource_request_memory FROM instance_events WHERE type = 'submit'"
    assert ask(sre, cell, query) == [[0.1, 2**26]] * 6


def test_every_table_can_be_read(cell, story, sre) -> None:
    database = everything(cell, visibility(sre, cell))
    found = {name: database.sql(f"SELECT * FROM {name}") for name in TABLES}
    for name, table in found.items():
        assert table.columns == [column.name for column in TABLES[name].columns]
    empty = {name for name, table in found.items() if not table.fetchall()}
    assert empty == {"reservations", "metered_hours", "orders", "capacity_samples", "machine_attributes"}
    names = database.sql("SELECT collection_name, labels['team'] FROM jobs ORDER BY 1 DESC").fetchall()
    assert names == [("web", "front"), ("theirs", None)]
    assert database.sql("SELECT max(cpu_usage_distribution[11]) FROM instance_usage").fetchall() == [(0.1,)]


def test_a_tenant_sees_only_its_own_rows(cell, story) -> None:
    ann = story["ann"]
    every = " UNION ALL ".join(f"SELECT '{name}', user, count(*) FROM {name} GROUP BY user" for name in TABLES)
    found = {(name, user): number for name, user, number in ask(ann, cell, every)}
    assert {name for name, user in found if user is None} == {"events", "machine_events", "machines"}
    assert {user for _, user in found} == {"ubar", None}
    assert found["instance_usage", "ubar"] == 3
    assert ask(ann, cell, "SELECT count(*), count(machine_id) FROM machine_events") == [[1, 1]]
    kinds = {row[0] for row in ask(ann, cell, "SELECT kind FROM events WHERE user IS NULL")}
    assert kinds == {"machine.set"}


def test_a_token_of_one_tenant_and_a_stranger_see_no_more(cell, story) -> None:
    both = world.principal("ann", tenant=story["other"], role=Role.VIEWER)
    query = "SELECT DISTINCT user FROM jobs ORDER BY 1"
    assert ask(both, cell, query) == [["other"], ["ubar"]]
    bound = Principal(name="ann", roles=both.roles, tenant="ubar")
    assert ask(bound, cell, query) == [["ubar"]]
    assert ask(Principal(name="eve"), cell, query) == []
    helper = Principal(name="eve", capabilities=frozenset({(CapabilityKind.ANY_JOB, "cc")}))
    assert ask(helper, cell, query) == [["other"], ["ubar"]]
    assert visibility(helper, rows.a_cell("ee")).users == ()
    assert visibility(helper, cell).payers == ()
    assert ask(Principal(name="eve", sre=True, tenant="other"), cell, query) == [["other"]]
    assert ask(Principal(name="eve", sre=True, scopes=frozenset({Scope.WRITE})), cell, query) == []


def test_money_is_for_buyers_and_owners(cell, story) -> None:
    visible = visibility(story["ann"], cell)
    assert (visible.users, visible.payers) == (("ubar",), ())
    owner = world.principal("olga", tenant=story["own"], role=Role.OWNER)
    assert visibility(owner, cell).payers == ("ubar",)


def test_orders_and_their_prices_are_for_buyers_and_owners(cell, story, sre) -> None:
    for tenant, price in ((story["own"], 3_000_000), (story["other"], 5)):
        money_rows.an_order(tenant, price, cell=cell.name, begin=timezone.now())
    money_rows.an_order(story["own"], 7, cell="dd")
    query = "SELECT user, price_microcredits, amount_cpus, hours, state FROM orders WHERE time >= :since ORDER BY user"
    own, other = ["ubar", 3_000_000, 1.0, 720.0, "pending"], ["other", 5, 1.0, 720.0, "pending"]
    assert ask(sre, cell, query) == [other, own]
    assert ask(world.principal("olga", tenant=story["own"], role=Role.OWNER), cell, query) == [own]
    assert ask(story["ann"], cell, query) == []


def test_another_cell_is_another_history(cell, story, sre) -> None:
    assert ask(sre, rows.a_cell("dd"), "SELECT * FROM instance_events") == []


def test_limits_on_time_apply(cell, story, sre) -> None:
    later = timezone.now() + dt.timedelta(minutes=1)
    query = "SELECT count(*) FROM instance_events WHERE time >= :since"
    assert ask(sre, cell, query)[0][0] > 0
    assert ask(sre, cell, query, parameters={"since": later}) == [[0]]
    # A second use of the table without a limit reads all rows.
    query = "SELECT count(*) FROM instance_events a JOIN instance_events b ON a.revision = b.revision AND a.seq = b.seq"
    assert ask(sre, cell, f"{query} WHERE a.time < :until", parameters={"until": later})[0][0] > 0


@pytest.mark.parametrize("form", [Form.CSV, Form.PARQUET])
def test_results_are_files_too(cell, story, sre, form) -> None:
    query = "SELECT collection_name AS name, '=1+1' AS formula, created_at FROM jobs ORDER BY name"
    answer = asking.ask(principal=sre, cell=cell, query=query, now=timezone.now(), form=form)
    if form is Form.CSV:
        head, *lines = csv.reader(io.StringIO(answer.body.decode()))
        assert head == ["name", "formula", "created_at"]
        assert [line[:2] for line in lines] == [["theirs", "'=1+1"], ["web", "'=1+1"]]
    else:
        table = pq.read_table(io.BytesIO(answer.body))
        assert table.column("name").to_pylist() == ["theirs", "web"]
        assert table.schema.field("created_at").type == "timestamp[us]"


def test_a_result_is_cut_at_the_most_rows(cell, story, sre) -> None:
    query = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 10050) SELECT i FROM n"
    answer = asking.ask(principal=sre, cell=cell, query=query, now=timezone.now())
    assert (answer.head.rows, answer.head.cut) == (10_000, True)


@pytest.mark.parametrize(
    ("query", "line", "column", "words"),
    [
        ("SELECT nope FROM jobs", 1, 8, "nope"),
        ("SELECT 1,\n  wrong(2) FROM jobs", 2, 3, "wrong"),
        ("SELECT *\nFROM jbs", 2, 6, "there is no table 'jbs'"),
        ("SELECT * FROM jobs WHERE (", 1, 26, "not valid SQL"),
        ("SELECT state + 1 FROM jobs", 0, 0, "No function matches"),
    ],
)
def test_errors_name_the_place(cell, story, sre, query, line, column, words) -> None:
    with pytest.raises(Rejected) as caught:
        ask(sre, cell, query)
    assert (caught.value.figures.get("line", 0), caught.value.figures.get("column", 0)) == (line, column)
    assert words in caught.value.detail


def everything(cell: Cell, visible: Visibility) -> duckdb.DuckDBPyConnection:
    """Return a database with all tables of a cell, loaded in this process as the child process loads them."""
    database = duckdb.connect(":memory:")
    with tempfile.TemporaryDirectory() as folder:
        _, tables, facts = exported_rows.export(
            Path(folder), cell, tables=list(TABLES), names=None, since={}, visible=visible
        )
        limits = Limits(seconds=1, memory_mib=1, threads=1, most_rows=1, most_bytes=1)
        Loader(database, ChildRequest(sql="", tables=tables, limits=limits, form=Form.JSON, jobs=facts)).load()
    return database


def test_ready_queries_answer_on_real_rows(cell, story, sre) -> None:
    database = everything(cell, visibility(sre, cell))
    found = {}
    for query in ready_queries.queries():
        checked = grammar.check(query.sql, asking.standard_parameters(timezone.now()))
        table = database.sql(checked.sql)
        found[query.name] = [dict(zip(table.columns, row, strict=True)) for row in table.fetchall()]
        assert set(query.chart) <= set(table.columns), query.name
    assert len(found) >= 25

    evictions = {row["cause"]: row for row in found["evictions-by-cause"]}
    assert (evictions["preemption"]["evictions"], evictions["machine-failure"]["prod"]) == (2, "prod")
    # Eight windows of five minutes are 40 minutes of the 10,080 in a week.
    assert float(evictions["preemption"]["per_task_week"]) == pytest.approx(2 * 10_080 / 40)

    assert [(row["preempted_by"], row["evictions"]) for row in found["preempted-jobs"]] == [("theirs", 1), (None, 1)]
    (crash,) = found["machines-that-crash-tasks"]
    assert (crash["machine_name"], crash["crashes"], crash["jobs"]) == ("m1", 1, 1)
    starts = {(row["collection_name"], row["starts"]) for row in found["start-times"]}
    assert starts == {("web", 3), ("theirs", 3)}
    assert {row["total_s"] >= row["queue_s"] >= 0 for row in found["slowest-starts"]} == {True}
    assert {row["pending_after"] for row in found["slowest-starts"]} == {"submit"}
    # Web uses 0.05 of 0.1 cores and 32 of 64 MiB at most; the peaks are 0.1 and 0.2 cores.
    assert found["half-unused"] == []
    shares = {row["usage_to_limit"]: (row["cpu_windows"], row["memory_windows"]) for row in found["usage-to-limit"]}
    assert shares == {0.5: (3, 8), 1.0: (5, 0)}
    idle = {row["collection_name"]: row for row in found["idle-capacity"]}
    assert idle["web"]["requested_cpu_hours"] == pytest.approx(3 * 0.1 / 12)
    assert idle["web"]["idle_cpu_hours"] == pytest.approx(3 * 0.05 / 12)
    changes = {(row["actor"], row["type"], row["collection_name"]) for row in found["changes"]}
    assert changes == {("ann", "submit", "web"), ("bob", "submit", "theirs")}
    lives = {(row["length"], row["type"]): row["runs"] for row in found["task-lifetimes"]}
    assert lives == {("1: below a minute", "evict"): 3, ("1: below a minute", "fail"): 1}
    assert sum(row["events"] for row in found["events-per-kind"]) == Event.objects.filter(cell_id=cell.id).count()
    (busy,) = found["busiest-machines"]
    assert busy["machine_name"] == "m1"
    assert found["rejected-submissions"] == []
