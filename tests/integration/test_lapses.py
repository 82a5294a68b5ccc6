"""Tests of expired quota: a grace period, then no growth and, if the cell's rules say so, lower priorities."""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager

import pytest
from django.utils import timezone

from quota import clock, records
from quota.billing import ledger
from quota.billing.budgets import budget_set, examine
from quota.market.quota_expiry import expiries_due, expiries_watch
from quota.models import Budget, Market, Notice, PriorityBand, Quota, QuotaExpiry, QuotaUse
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Role
from quota.vocabulary.resources import CPU
from scheduling.celery_tasks import lapses_run
from scheduling.core.vocabulary import events
from scheduling.demotion.quota_expiry import expiries_drop
from scheduling.demotion.spent_budgets import spent_budgets_drop
from scheduling.jobs import submit_and_kill, updates
from scheduling.journal import journal
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.models import Job, Task
from tests.integration import money_rows as market
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = dt.timedelta(hours=1)
ENDS = timezone.now().replace(minute=0, second=0, microsecond=0) + 24 * HOUR
GRACE_ENDS = ENDS + 10 * HOUR


@pytest.fixture
def cell():
    cell = rows.a_cell()
    Market.objects.create(cell=cell.name, after_grace="drop", grace_hours=10, drop_after_hours=5)
    yield cell
    assert validate(cell.id) == []


@pytest.fixture
def tenant(cell):
    tenant = rows.a_tenant("ubar")
    bought = rows.grant(tenant, cell, "production")
    Quota.objects.filter(pk=bought.pk).update(ends_at=ENDS, grace_until=GRACE_ENDS)
    return tenant


@pytest.fixture
def ann(tenant):
    return world.principal("ann", tenant=tenant, role=Role.OPERATOR)


def file(name: str, priority: int = 200, *, tasks: int = 1, cpu: str = "1") -> dict:
    return world.with_task(name, tasks=tasks, limit={"cpu": cpu}) | {"priority": priority}


@contextmanager
def later(moment: dt.datetime):
    with clock.at(moment):
        expiries_watch()
        yield


def reported() -> list[str]:
    return list(Notice.objects.order_by("id").values_list("kind", flat=True))


def priorities() -> dict[str, int]:
    return dict(Job.objects.exclude(state="dead").values_list("name", "priority"))


def test_during_the_grace_nothing_changes_but_a_notice(cell, tenant, ann) -> None:
    world.submit(ann, cell, file("web"))
    with later(ENDS - HOUR):
        assert reported() == []
    with later(ENDS):
        assert reported() == ["quota.grace"]
        assert world.submit(ann, cell, file("more")).state == "pending"
        assert expiries_drop(cell) == []
    with later(GRACE_ENDS - HOUR):
        assert reported() == ["quota.grace"]
    (notice,) = Notice.objects.all()
    assert notice.tenant == tenant
    assert f"{GRACE_ENDS:%Y-%m-%d %H:%M} UTC" in notice.text
    assert notice.url == "/shop/?tenant=ubar&cell=cc&band=production"


def test_after_the_grace_growth_is_refused_and_everything_else_works(cell, tenant, ann) -> None:
    job = world.submit(ann, cell, file("web", tasks=3))
    with later(GRACE_ENDS):
        assert reported() == ["quota.grace-over"]
        for given in (file("new"), file("web", tasks=4), file("web", tasks=3, cpu="1100m")):
            with pytest.raises(Rejected) as caught:
                submit_and_kill.job_apply(principal=ann, cell=cell, job_spec=world.read(cell, given))
            assert caught.value.code == "quota-exceeded"
        for number, given in enumerate(
            (
                file("web", tasks=2),
                file("web", tasks=2) | {"labels": {"a": "b"}},
                file("web", 250, tasks=2),
                world.with_task("web", tasks=2, limit={"cpu": "1"}, command=["other"]) | {"priority": 250},
            )
        ):
            done = submit_and_kill.job_apply(principal=ann, cell=cell, job_spec=world.read(cell, given))
            assert done.outcome == "updated", number
        job.refresh_from_db()
        assert submit_and_kill.job_kill(principal=ann, job=job) >= 1
        expiries_watch()
    assert not QuotaExpiry.objects.exists()
    assert QuotaUse.objects.get().used[CPU] == 0


def test_jobs_are_lowered_from_the_lowest_priority_and_the_newest_until_the_rest_fits(cell, tenant, ann) -> None:
    rows.grant(tenant, cell, "production", (2000, 2**40, 2**40, 0, 0, 0))
    for name, priority, cpu in (
        ("high", 300, "1"),
        ("old", 200, "1"),
        ("new", 200, "1"),
        ("tiny", 150, "0"),
        ("low", 150, "1"),
    ):
        world.submit(ann, cell, file(name, priority, cpu=cpu))
    with later(GRACE_ENDS):
        pass
    with later(GRACE_ENDS + 5 * HOUR - dt.timedelta(seconds=1)):
        assert expiries_drop(cell) == []
    with later(GRACE_ENDS + 5 * HOUR):
        assert [job.name for job in expiries_drop(cell)] == ["low", "new"]
        assert priorities() == {"high": 300, "old": 200, "new": 0, "tiny": 150, "low": 0}
        assert QuotaUse.objects.get(band__name="production").used[CPU] == 2000
        assert expiries_drop(cell) == []
        expiries_watch()
    assert not QuotaExpiry.objects.exists()


def test_the_journal_and_a_notice_say_why_and_how_to_raise_them(cell, tenant, ann) -> None:
    world.submit(ann, cell, file("web"))
    with later(GRACE_ENDS + 6 * HOUR):
        (job,) = expiries_drop(cell)
    (changed,) = [r for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.JobChanged)]
    assert (changed.actor, changed.event.priority) == ("system:lapses", 0)
    assert "production quota of ubar expired at" in changed.event.reason
    notice = Notice.objects.get(kind="quota.dropped")
    assert "borgctl undo cc/ubar/web" in notice.text
    assert (notice.level, notice.data["jobs"]) == ("urgent", ["web"])
    rows.grant(tenant, cell, "production")
    with clock.at(GRACE_ENDS + 7 * HOUR):
        lapses_run()
        assert priorities() == {"web": 0}
        job.refresh_from_db()
        updates.job_undo(principal=ann, job=job)
    assert priorities() == {"web": 200}


def test_tasks_that_run_go_on_where_they_are(cell, tenant, ann) -> None:
    job = world.submit(ann, cell, file("web", tasks=3))
    world.bring_up(job, rows.a_machine(cell))
    before = list(Task.objects.order_by("index").values_list("machine", "incarnation", "up", "restarts"))
    with later(GRACE_ENDS + 6 * HOUR):
        expiries_drop(cell)
    assert priorities() == {"web": 0}
    assert list(Task.objects.order_by("index").values_list("machine", "incarnation", "up", "restarts")) == before
    assert set(Task.objects.values_list("spec_version", flat=True)) == {2}


def test_a_master_lets_bought_jobs_preempt_lowered_ones_and_no_others(cell, tenant, ann) -> None:
    rows.a_machine(cell, capacity=(2000, 2**31, 2**31, 0, 0, 100))
    other = rows.a_tenant("other")
    rows.grant(other, cell, "production")
    world.submit(ann, cell, file("web", tasks=2))
    master = Master(cell.id)
    master.tick()
    before = list(Task.objects.values_list("machine", "incarnation"))
    assert all(machine is not None for machine, _ in before)
    important = world.submit(world.principal("bob", tenant=other), cell, file("important", 120), tenant="other")
    master.tick()
    assert Task.objects.get(job=important).state == "pending"
    with later(GRACE_ENDS + 6 * HOUR):
        assert [job.name for job in expiries_drop(cell)] == ["web"]
    assert list(Task.objects.exclude(job=important).values_list("machine", "incarnation")) == before
    master.tick()
    assert Task.objects.get(job=important).machine is not None
    assert sorted(Task.objects.exclude(job=important).values_list("state", flat=True)) == ["pending", "running"]


def test_quota_bought_in_time_ends_the_lapse(cell, tenant, ann) -> None:
    world.submit(ann, cell, file("web"))
    with later(GRACE_ENDS):
        assert QuotaExpiry.objects.get().over_at == GRACE_ENDS
    rows.grant(tenant, cell, "production")
    with later(GRACE_ENDS + 6 * HOUR):
        assert not QuotaExpiry.objects.exists()
        assert expiries_drop(cell) == []
    assert priorities() == {"web": 200}


def test_quota_bought_between_the_look_and_the_lock_keeps_jobs(cell, tenant, ann) -> None:
    world.submit(ann, cell, file("web"))
    with later(GRACE_ENDS + 6 * HOUR):
        assert len(expiries_due(cell.name)) == 1
        rows.grant(tenant, cell, "production")
        assert expiries_drop(cell) == []
    assert priorities() == {"web": 200}


@pytest.mark.parametrize("action, lowered", [("none", False), ("stop-submitting", False), ("drop", True)])
def test_where_the_cell_only_refuses_a_spent_budget_that_drops_lowers(cell, tenant, ann, action, lowered) -> None:
    Market.objects.update(after_grace="refuse")
    Budget.objects.create(tenant=tenant, action=action, exhausted_at=ENDS)
    Budget.objects.update(exhausted_at=None)
    world.submit(ann, cell, file("web"))
    Budget.objects.update(exhausted_at=ENDS)
    with later(GRACE_ENDS + 6 * HOUR):
        expiries_drop(cell)
    assert priorities() == {"web": 0 if lowered else 200}


def test_many_jobs_are_lowered_a_few_at_a_time(cell, tenant, ann) -> None:
    for number in range(45):
        world.submit(ann, cell, file(f"j{number}", cpu="100m"))
    with later(GRACE_ENDS + 6 * HOUR):
        assert len(expiries_drop(cell)) == 45
    assert set(priorities().values()) == {0}
    assert Notice.objects.filter(kind="quota.dropped").count() == 3


def test_looking_costs_two_queries_when_nothing_changes(cell, tenant, ann, django_assert_num_queries) -> None:
    for number in range(5):
        other = rows.a_tenant(f"t{number}")
        bought = rows.grant(other, cell, "production")
        world.submit(world.principal(f"p{number}", tenant=other), cell, file("web"), tenant=other.name)
        Quota.objects.filter(pk=bought.pk).update(ends_at=ENDS, grace_until=GRACE_ENDS)
    with later(GRACE_ENDS), django_assert_num_queries(2):
        assert expiries_watch() == 0
    assert QuotaExpiry.objects.count() == 5


# -- spent budgets with the action `drop`


@pytest.fixture
def metered(cell):
    """Return a cell that charges for usage. When quota ends, it only rejects growth."""
    Market.objects.update(after_grace="refuse")
    market.a_price_list(cell.name, usage={"cpu": 1_000_000})
    return cell


def spend(tenant, *, action: str = "drop") -> None:
    """Charge the tenant for more usage than it has credits. `action`: what its budget does when it is spent."""
    budget_set(principal=market.ME, tenant=tenant, action=action)
    with records.write(market.ME) as entry:
        ledger.usage(entry, tenant, 1300, text="usage", key=f"usage:{tenant.name}:{clock.now()}")
        examine(entry, tenant)


def test_a_spent_budget_that_drops_lowers_all_jobs_whose_usage_is_charged(metered, ann) -> None:
    tenant = market.funded("rich", amount=1000)
    for band in ("production", "batch"):
        rows.grant(tenant, metered, band)
    PriorityBand.objects.filter(name="batch").update(price_milli=0)
    operator = world.principal("eve", tenant=tenant, role=Role.OPERATOR)
    for name, priority in (("web", 200), ("cheap", 110), ("free", 0)):
        world.submit(operator, metered, file(name, priority), tenant="rich")
    world.submit(ann, metered, file("other"))
    now = clock.now()
    spend(tenant)
    (stopped,) = Notice.objects.filter(kind="budget.stopped")
    assert f"in cell {metered.name} after 5 hours" in stopped.text
    with later(now + 4 * HOUR):
        assert spent_budgets_drop(metered) == []
        with pytest.raises(Rejected, match="budget of tenant rich is spent"):
            world.submit(operator, metered, file("more"), tenant="rich")
    with later(now + 6 * HOUR):
        lapses_run()
        assert priorities() == {"web": 0, "cheap": 110, "free": 0, "other": 200}
        assert spent_budgets_drop(metered) == []
        job = Job.objects.get(name="web")
        with pytest.raises(Rejected, match="budget of tenant rich is spent"):
            updates.job_undo(principal=operator, job=job)
        ledger.budget_grant(principal=market.ME, tenant=tenant, amount=10_000)
        updates.job_undo(principal=operator, job=job)
        lapses_run()
    assert priorities()["web"] == 200
    (notice,) = Notice.objects.filter(kind="budget.dropped")
    assert (notice.tenant, notice.level, notice.data["jobs"]) == (tenant, "urgent", ["web"])
    assert "borgctl undo cc/rich/web" in notice.text
    (changed,) = [
        r
        for r in journal.tail(metered.id, after=0)
        if isinstance(r.event, events.JobChanged) and r.actor == "system:lapses"
    ]
    assert "the budget of rich has been spent since" in changed.event.reason


def test_what_costs_nothing_is_not_dropped_and_another_action_gives_new_hours(cell, tenant, ann) -> None:
    world.submit(ann, cell, file("web"))
    ledger.budget_grant(principal=market.ME, tenant=tenant, amount=1000)
    now = clock.now()
    spend(tenant, action="stop-submitting")
    Market.objects.update(after_grace="refuse")
    with later(now + 6 * HOUR):
        assert spent_budgets_drop(cell) == []
        market.a_price_list(cell.name, usage={"cpu": 1})
        assert spent_budgets_drop(cell) == []
        budget_set(principal=market.ME, tenant=tenant, action="drop")
        assert spent_budgets_drop(cell) == []
    assert [kind for kind in reported() if kind == "budget.stopped"] == ["budget.stopped"] * 2
    with later(now + 12 * HOUR):
        assert [job.name for job in spent_budgets_drop(cell)] == ["web"]


@pytest.mark.parametrize("why", ["lapse", "budget"])
def test_an_alloc_set_is_lowered_after_what_lives_in_it(metered, tenant, ann, why) -> None:
    world.submit(
        ann,
        metered,
        {"name": "envelope", "kind": "AllocSet", "priority": 200, "tasks": 1, "task": {"limit": {"cpu": 1}}},
    )
    for number in range(3):
        inner = file(f"inner{number}", 200, cpu="1m") | {"alloc_set": "envelope"}
        world.submit(ann, metered, inner)
    if why == "budget":
        ledger.budget_grant(principal=market.ME, tenant=tenant, amount=1000)
        spend(tenant)
    else:
        Market.objects.update(after_grace="drop")
    with later(GRACE_ENDS + 6 * HOUR):
        lapses_run()
    assert set(priorities().values()) == {0}
    (undo,) = [n.text for n in Notice.objects.filter(kind__endswith=".dropped") if "envelope" in n.text]
    assert "\nborgctl undo cc/ubar/envelope\nborgctl undo cc/ubar/inner" in undo
