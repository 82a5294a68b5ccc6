"""Tests of credits for broken promises: found by scheduling, credited once with the invoice, shown with evidence."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import msgspec
import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest_django.plugin import DjangoDbBlocker

from portal.cli import jobfile
from quota import clock
from quota.admission import published_capacity
from quota.billing import ledger
from quota.billing.credits.breach_reports import breaches_report
from quota.billing.credits.breach_rows import BreachRow
from quota.billing.credits.corrections import amount_now, credit_correct
from quota.billing.credits.selectors import expected
from quota.billing.invoices import invoice_close, invoice_draft, invoices_close_due
from quota.billing.ledger_check import ledger_check
from quota.metrics import MarketCollector
from quota.models import (
    Credit,
    Invoice,
    Notice,
    Order,
    Posting,
    PriorityBand,
    PromiseBreach,
    QuotaExpiry,
    Record,
    Tenant,
)
from quota.vocabulary.errors import Forbidden, Rejected
from quota.vocabulary.permissions import Role
from scheduling.cells.cells import cell_change
from scheduling.core.vocabulary.reasons import ReasonCode, RuledOut, Why
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.journal import journal
from scheduling.models import Cell, Job, PendingVerdict, PromisedEviction, PromiseReader, Task
from scheduling.promises.breach_watch import breaches_watch
from scheduling.tasks import transitions
from tests.integration import money_rows as market
from tests.integration import rows, world

pytestmark = pytest.mark.django_db
NOW = dt.datetime(2026, 3, 10, 12, 30, tzinfo=dt.UTC)
HOUR = NOW.replace(minute=0)
APRIL = dt.datetime(2026, 4, 1, 7, tzinfo=dt.UTC)
MARCH = dt.date(2026, 3, 1)
MINUTE = dt.timedelta(minutes=1)
# The order: 10 cores for March, of which each hour costs 744 micro-credits. The job asks for 5 of them, in 5 tasks.
CORES = (10_000, 0, 0, 0, 0, 0)
PRICE = 744 * 744
TASK = (1000 * 3600, 0, 0, 0, 0, 0)
LIMIT = (5 * 1000 * 3600, 0, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def cell(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Cell]:
    """Yield a cell with a promise, a tenant with an order and a job of five tasks, for all tests of this module."""
    with django_db_blocker.unblock(), transaction.atomic():
        cell = rows.a_cell()
        with clock.at(NOW.replace(day=1, hour=0, minute=0)):
            tenant = market.funded(amount=10**9)
            order = market.charged(tenant, PRICE, begin=market.BEGIN, days=31, amounts=CORES)
        Order.objects.filter(pk=order.pk).update(parts=[{"resource": "cpu", "amount": PRICE}])
        rows.a_machine(cell)
        published_capacity.publish(cell=cell.name, capacity=rows.LARGE, revision=1)
        rows.a_job(cell, tenant, "web", tasks=5, limit=(1000, 2**26, 2**26, 0, 0, 1))
        cell = cell_change(
            principal=rows.ME,
            cell=cell,
            changes={"promise_start_s": 300.0, "promise_evictions": 1.0, "promise_eviction_hours": 2.0},
        )
        Cell.objects.filter(pk=cell.pk).update(created_at=market.BEGIN)
        yield cell
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _balanced() -> Iterator[None]:
    yield
    assert ledger_check() == []


@pytest.fixture
def job(cell) -> Job:
    return Job.objects.select_related("tenant").get(cell=cell)


def watch(cell: Cell, now: dt.datetime) -> int:
    return breaches_watch(cell, now=now, report=breaches_report)


def pending_since(job: Job, since: dt.datetime, *whys: str) -> None:
    Task.objects.filter(job=job).update(since=since)
    found = [
        Why(tasks=((job.id, 5),), machines=1, code=code, ruled_out=(RuledOut(ReasonCode(code), "", 1),))
        for code in whys
    ]
    PendingVerdict.objects.update_or_create(
        job=job, defaults={"revision": 1, "at": since, "whys": msgspec.to_builtins(found)}
    )


def breach(
    job: Job, *, hour: dt.datetime = HOUR, kind: str = "pending", tasks: int = 1, cause: str = "resource"
) -> BreachRow:
    terms = {"start_s": 300.0, "share_milli": 1000.0} if kind == "pending" else {"evictions": 1.0, "hours": 1.0}
    return BreachRow(
        job.tenant_id,
        "production",
        job.uid.hex,
        job.name,
        kind,
        cause,
        hour,
        terms,
        tasks,
        3600.0 * tasks if kind == "pending" else 0.0,
        tasks if kind == "evictions" else 0,
        tuple(tasks * amount for amount in TASK),
        [{"task": 0, "at": hour.isoformat(), "event": "7.1", "number": 2}],
    )


def report(job: Job, *found: BreachRow) -> None:
    breaches_report(cell="cc", rows=found)


def metered(job: Job, hour: dt.datetime = HOUR) -> None:
    market.a_metered_hour(
        hour=hour,
        tenant=job.tenant,
        cell="cc",
        band=PriorityBand.objects.get(name="production"),
        job_uid=job.uid.hex,
        job=job.name,
        limit=list(LIMIT),
        reserved=list(LIMIT),
        used=[0] * 6,
    )


def test_pending_time_beyond_the_promise_is_reported_once(cell, job) -> None:
    pending_since(job, NOW - 62 * MINUTE, "resource")
    watch(cell, NOW - 3 * MINUTE)
    assert not PromiseBreach.objects.exists(), "nothing counts that was before the first look"
    watch(cell, NOW - 2 * MINUTE)
    for _ in range(2):
        watch(cell, NOW)
    found = PromiseBreach.objects.get()
    assert (found.tasks, found.task_seconds, found.kind, found.cause) == (5, 5 * 180.0, "pending", "resource")
    assert (found.hour, found.job_uid, found.cell) == (HOUR, job.uid.hex, "cc")
    assert [int(amount) for amount in found.affected][:1] == [5 * 1000 * 180]
    assert [entry["task"] for entry in found.evidence] == [0, 1, 2, 3, 4]
    (notice,) = Notice.objects.filter(kind="job.promise-broken")
    assert notice.subject == "Cell cc broke its promise to job web"
    assert "pending for longer than the cell promises, because it lacks capacity" in notice.text
    breaches_report(cell="cc", rows=[breach(job, hour=HOUR - dt.timedelta(hours=1))])
    samples = [one for family in MarketCollector().collect() for one in family.samples]
    open_now = {one.labels["kind"]: one.value for one in samples if one.name == "borg_promise_breaches"}
    assert open_now == {"pending": 2, "evictions": 0}
    assert found.evidence[0]["from"] == "2026-03-10T12:27:00.000+00:00"
    assert found.evidence[0]["until"] == "2026-03-10T12:30:00.000+00:00"


def test_the_promise_covers_the_example(cell, job) -> None:
    rows.grant(job.tenant, cell, "production")
    ann = world.principal("ann", tenant=job.tenant)
    example = world.submit(ann, cell, jobfile.read("examples/promise.yaml"), tenant=job.tenant.name)
    pending_since(example, NOW - 62 * MINUTE, "resource")
    for now in (NOW - 2 * MINUTE, NOW):
        watch(cell, now)
    assert PromiseBreach.objects.get().job == "promised"


def test_the_promised_time_and_long_pauses_do_not_count(cell, job) -> None:
    pending_since(job, NOW - 6 * MINUTE, "resource")
    watch(cell, NOW - 60 * MINUTE)
    watch(cell, NOW)
    assert PromiseBreach.objects.get().task_seconds == 5 * 60.0
    pending_since(job, NOW - 60 * MINUTE, "resource")
    watch(cell, NOW + 20 * MINUTE)
    assert PromiseBreach.objects.get().task_seconds == 5 * 60.0 + 5 * 300.0


def test_only_as_many_tasks_count_as_may_run_and_were_examined(cell, job) -> None:
    pending_since(job, NOW - 60 * MINUTE, "resource")
    Job.objects.update(max_running=3, tasks_running=2)
    for now in (NOW - MINUTE, NOW):
        watch(cell, now)
    assert PromiseBreach.objects.get().tasks == 1
    Job.objects.update(max_running=0)
    PendingVerdict.objects.update(whys=[{"tasks": [[job.id, 2]], "machines": 1, "code": "resource"}])
    watch(cell, NOW + MINUTE)
    assert PromiseBreach.objects.get().task_seconds == 60.0 + 2 * 60.0


@pytest.mark.parametrize("reason", ["constraint", "gang", "never examined", "over quota", "start_after", "not prod"])
def test_waits_that_the_tenant_causes_do_not_count(cell, job, reason) -> None:
    pending_since(job, NOW - 60 * MINUTE, *([reason] if reason in set(ReasonCode) else ["resource"]))
    if reason == "never examined":
        PendingVerdict.objects.all().delete()
    elif reason == "over quota":
        band = PriorityBand.objects.get(name="production")
        QuotaExpiry.objects.create(tenant=job.tenant, cell="cc", band=band, began_at=NOW)
    elif reason == "start_after":
        Job.objects.update(start_after=dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
    elif reason == "not prod":
        Job.objects.update(priority=100)
    watch(cell, NOW - MINUTE)
    watch(cell, NOW)
    assert PromiseReader.objects.get().looked_at == NOW
    assert not PromiseBreach.objects.exists()


def evict(cell: Cell, job: Job, cause: str, preemptor: int | None = None) -> None:
    world.place(job, cell.machines.get(), 0)
    task = Task.objects.get(job=job, index=0)
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task.id, task.incarnation, cause, gone=True, preemptor=preemptor)])


def test_evictions_beyond_the_promise_are_reported_once(cell, job) -> None:
    watch(cell, NOW)
    team, stranger = rows.a_tenant("team"), rows.a_tenant("other")
    Tenant.objects.filter(pk=team.pk).update(parent=job.tenant)
    other, of_team = (rows.a_job(cell, tenant, "urgent", tasks=1, priority=400) for tenant in (stranger, team))
    for cause in ("machine-shutdown", "update", "failure", "out-of-resources"):
        evict(cell, job, cause)
        watch(cell, NOW)
    for preemptor in (job, of_team, other):
        evict(cell, job, "preemption", Task.objects.filter(job=preemptor).latest("index").id)
        for _ in range(2):
            watch(cell, NOW)
    assert [row.cause for row in PromisedEviction.objects.order_by("revision")] == ["machine-shutdown", "preemption"], (
        "updates, crashes, tasks that exceed their limit, and preemption by the same organisation do not count"
    )
    found = PromiseBreach.objects.get()
    assert (found.kind, found.cause, found.evictions) == ("evictions", "preemption", 1)
    (notice,) = Notice.objects.filter(kind="job.promise-broken")
    assert "at most 1 eviction of a task in 30 days. The task was evicted more often (preemption)." in notice.text
    assert [int(amount) for amount in found.affected][:1] == [2 * 1000 * 3600]
    newest = PromisedEviction.objects.latest("revision")
    assert found.evidence == [
        {
            "task": 0,
            "at": newest.at.isoformat(timespec="milliseconds"),
            "event": f"{newest.revision}.{newest.seq}",
            "number": 2,
        }
    ]


def test_nothing_counts_that_happened_before_the_promise(cell, job) -> None:
    evict(cell, job, "machine-failure")
    watch(cell, NOW)
    assert not PromisedEviction.objects.exists()
    evict(cell, job, "machine-failure")
    watch(cell, NOW)
    assert PromisedEviction.objects.count() == 1
    off = {"promise_start_s": None, "promise_evictions": None}
    watch(cell_change(principal=rows.ME, cell=cell, changes=off), NOW)
    assert not PromiseReader.objects.exists()
    on = cell_change(principal=rows.ME, cell=cell, changes={"promise_evictions": 1.0})
    watch(on, NOW)
    evict(cell, job, "machine-failure")
    watch(on, NOW)
    assert (PromisedEviction.objects.count(), PromiseBreach.objects.count()) == (1, 0)


def test_a_credit_is_on_the_invoice_with_its_evidence_and_is_given_once(cell, job) -> None:
    metered(job)
    report(job, breach(job, tasks=2), breach(job, kind="evictions", cause="machine-failure"))
    with clock.at(NOW):
        found = expected(job.tenant, until=APRIL)
    assert (found.amount, found.complete, [one.kind for one in found.jobs]) == (222, True, ["pending", "evictions"])
    before = ledger.balance_of(job.tenant).available
    (invoice,) = invoices_close_due(APRIL)
    # A task has a tenth of the bought quota, so an hour of it costs 74.4 micro-credits.
    pending, evictions = Credit.objects.order_by("kind").reverse()
    assert (pending.kind, pending.amount, evictions.kind, evictions.amount) == ("pending", 148, "evictions", 74)
    assert ledger.balance_of(job.tenant).available == before + 222
    assert [(line["kind"], line["amount"], line["credit"]) for line in invoice.lines] == [
        ("charge", PRICE, None),
        ("credit", -74, evictions.pk),
        ("credit", -148, pending.pk),
    ]
    assert market.invoice_check(invoice) == []
    assert evictions.evidence[0]["items"] == [{"task": 0, "at": HOUR.isoformat(), "event": "7.1", "number": 2}]
    assert evictions.evidence[0]["amount"] == 74
    notice = Notice.objects.get(kind="credit.given")
    assert (notice.tenant, notice.url) == (job.tenant, "/billing/credits/?tenant=ubar&month=2026-03")
    assert invoices_close_due(APRIL + 60 * MINUTE) == []
    assert Posting.objects.filter(kind="credit").count() == 1
    with pytest.raises(IntegrityError), transaction.atomic():
        Credit.objects.update(amount=1)


def test_a_draft_contains_no_credit_and_a_closed_month_credits_itself(cell, job) -> None:
    metered(job)
    report(job, breach(job))
    with clock.at(NOW):
        assert [line["kind"] for line in invoice_draft(job.tenant).lines] == ["charge"]
    with clock.at(APRIL):
        closed = invoice_close(principal=market.ME, tenant=job.tenant, month=MARCH)
    assert [line["kind"] for line in closed.lines] == ["charge", "credit"]


def test_what_becomes_known_later_is_credited_in_the_next_month(cell, job) -> None:
    metered(job)
    late = HOUR + dt.timedelta(hours=1)
    report(job, breach(job), breach(job, hour=late))
    invoices_close_due(APRIL)
    assert Credit.objects.get().amount == 74
    metered(job, late)
    report(job, breach(job))
    assert PromiseBreach.objects.filter(settled_at=None).count() == 2
    invoices_close_due(APRIL + 60 * MINUTE)
    assert Credit.objects.count() == 1
    invoices_close_due(APRIL.replace(month=5))
    assert [(line.month.month, line.amount) for line in Credit.objects.order_by("id")] == [(3, 74), (4, 148)]
    invoice = Invoice.objects.get(month="2026-04-01")
    assert (invoice.charged, invoice.refunded, market.invoice_check(invoice)) == (0, 148, [])


def test_a_job_gets_at_most_its_charge(cell, job) -> None:
    metered(job)
    report(
        job, breach(job, tasks=5), breach(job, tasks=50, kind="evictions"), breach(job, tasks=5, cause="no-machines")
    )
    invoices_close_due(APRIL)
    assert sum(line.amount for line in Credit.objects.all()) == 372, "the job has half of the quota of the hour"


def test_the_hour_of_a_months_edge_is_whole_in_zones_with_half_hours(cell, job) -> None:
    """In Kolkata, March begins at 18:30 UTC, so that the hour of 18:00 belongs to February."""
    Tenant.objects.filter(pk=job.tenant_id).update(time_zone="Asia/Kolkata")
    last = dt.datetime(2026, 3, 31, 18, tzinfo=dt.UTC)
    for hour in (HOUR, last):
        metered(job, hour)
        report(job, breach(job, hour=hour))
    invoices_close_due(APRIL)
    assert [row.credited for row in PromiseBreach.objects.order_by("hour")] == [74, 74]


def test_a_correction_is_an_entry_of_its_own(cell, job) -> None:
    metered(job)
    report(job, breach(job))
    invoices_close_due(APRIL)
    credit = Credit.objects.get()
    sre, owner = world.principal("sre", sre=True), world.principal("ann", tenant=job.tenant)
    before = ledger.balance_of(job.tenant).available
    with pytest.raises(Forbidden):
        credit_correct(principal=owner, credit=credit, to=0, reason="mine")
    for to, reason, field in ((-1, "x", "to"), (10, " ", "reason"), (10**12, "x", "to"), (10, "x" * 301, "reason")):
        with pytest.raises(Rejected) as error:
            credit_correct(principal=sre, credit=credit, to=to, reason=reason)
        assert field in error.value.fields
    with clock.at(APRIL):
        line = credit_correct(principal=sre, credit=credit, to=30, reason="the machine was the tenant's own")
        assert credit_correct(principal=sre, credit=credit, to=30, reason="again") is None
    assert (line.amount, line.corrects, amount_now(credit)) == (-44, credit, 30)
    with pytest.raises(Rejected, match="is a correction"):
        credit_correct(principal=sre, credit=line, to=30, reason="x")
    assert ledger.balance_of(job.tenant).available == before - 44
    assert Record.objects.get(kind="credit.corrected").data["before"] == 74
    assert Notice.objects.filter(kind="credit.corrected").count() == 1
    with clock.at(APRIL):
        draft = invoice_draft(job.tenant)
    assert [(one["kind"], one["amount"], one["credit"]) for one in draft.lines] == [("credit", 44, line.pk)]


def test_queries_do_not_grow_with_jobs_and_hours(cell, job) -> None:
    def queries(number: int) -> int:
        with transaction.atomic():
            for n in range(number):
                metered(job, HOUR + n * dt.timedelta(hours=1))
            report(job, *[breach(job, hour=HOUR + n * dt.timedelta(hours=1)) for n in range(number)])
            with CaptureQueriesContext(connection) as captured:
                invoices_close_due(APRIL)
            transaction.set_rollback(True)
        return len(captured)

    assert queries(20) == queries(2)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("report"), st.integers(0, 2), st.sampled_from(["pending", "evictions"]), st.integers(1, 7)),
        st.tuples(st.just("meter"), st.integers(0, 2)),
        st.tuples(st.just("run"), st.integers(0, 40)),
    ),
    max_size=10,
)


@given(steps)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_reports_and_runs_gives_a_right_ledger(cell, job, given_steps) -> None:
    with transaction.atomic():
        for kind, *rest in given_steps:
            hour = HOUR + rest[0] * dt.timedelta(hours=1)
            if kind == "report":
                report(job, breach(job, hour=hour, kind=rest[1], tasks=rest[2]))
            elif kind == "meter" and not job.tenant.metered.filter(hour=hour).exists():
                metered(job, hour)
            elif kind == "run":
                now = APRIL + dt.timedelta(days=rest[0])
                invoices_close_due(now)
                invoices_close_due(now)
        credited = sum(line.amount for line in Credit.objects.all())
        assert credited <= 372 * job.tenant.metered.count()
        assert credited == sum(row.credited for row in PromiseBreach.objects.all())
        assert credited == sum(
            -line["amount"] for one in Invoice.objects.all() for line in one.lines if line["kind"] == "credit"
        )
        assert ledger_check() == []
        transaction.set_rollback(True)


def test_rest_and_pages_show_credits_to_those_who_may_see_the_money(cell, job) -> None:
    metered(job)
    report(job, breach(job), breach(job, kind="evictions", cause="machine-failure"))
    metered(job, HOUR + dt.timedelta(hours=1))
    invoices_close_due(APRIL)
    report(job, breach(job, hour=HOUR + dt.timedelta(hours=1)))
    evictions, pending = Credit.objects.order_by("id")
    owner = world.a_user("ann", tenant=job.tenant)
    viewer = world.a_user("vic", tenant=job.tenant, role=Role.VIEWER)
    stranger, sre = world.a_user("bob", tenant=rows.a_tenant("other")), world.a_user("root", sre=True)
    base = "/api/v1/quota/credits"
    for user, status in ((owner, 200), (sre, 200), (viewer, 403), (stranger, 404)):
        client = world.bearer(user)
        assert client.get(f"{base}/{pending.pk}/").status_code == status
        assert client.get(f"{base}/expected/ubar/").status_code == status
        page = Client()
        page.force_login(user)
        assert page.get(f"/billing/credits/{pending.pk}/").status_code == status
        assert page.get("/billing/credits/?tenant=ubar").status_code == status
        assert page.get("/billing/credits.csv?tenant=ubar").status_code == status
        correction = {"to": "0.00001", "reason": "wrong"}
        assert (page.post(f"/billing/credits/{pending.pk}/correct/", correction).status_code == 302) == (user is sre)
        assert (client.get(f"{base}/totals/").status_code == 200) == (user is sre)
        listed = client.get(f"{base}/").json()["results"]
        assert len(listed) == (0 if user in (viewer, stranger) else 2 if user is owner else 3)
    client, page = world.bearer(sre), Client()
    page.force_login(owner)
    whole = client.get(f"{base}/{pending.pk}/").json()
    assert (whole["amount"], whole["amount_now"], whole["corrections"][0]["reason"]) == (74, 10, "wrong")
    assert whole["evidence"][0]["items"][0]["event"] == "7.1"
    again = client.post(f"{base}/{pending.pk}/correct/", {"to": 10, "reason": "x"}, content_type="application/json")
    assert (again.status_code, again.json()["amount_now"]) == (200, 10)
    bad = client.post(f"{base}/{pending.pk}/correct/", {"to": -1, "reason": "x"}, content_type="application/json")
    assert (bad.status_code, list(bad.json()["fields"])) == (422, ["to"])
    totals = client.get(f"{base}/totals/").json()
    assert [(one["cell"], one["given"], one["corrected"]) for one in totals] == [("cc", 0, -64), ("cc", 148, 0)]
    coming = client.get(f"{base}/expected/ubar/").json()
    assert (coming["amount"], coming["complete"], coming["jobs"][0]["job"]) == (74, True, "web")
    assert "7.1" in client.get(f"{base}.csv?tenant=ubar").content.decode()
    assert client.get("/api/v1/cells/cc/").json()["promise"]["start_s"] == 300.0
    shown = page.get(f"/billing/credits/{evictions.pk}/").content.decode()
    assert "/cells/cc/events/7.1/" in shown
    assert "machine-failure" in shown
    number = Invoice.objects.get().number
    assert f"/billing/credits/{pending.pk}/" in page.get(f"/billing/invoices/{number}/").content.decode()
    lines = page.get(f"/billing/invoices/{number}.csv").content.decode().split()
    assert lines[-1].endswith(f",-0.000074,-74,{pending.pk}")
    for path in ("/cells/cc/", "/shop/?tenant=ubar&cell=cc&band=production"):
        assert "within 5 minutes" in page.get(path).content.decode()
    assert "Expected on the next invoice" in page.get("/billing/credits/?tenant=ubar").content.decode()
