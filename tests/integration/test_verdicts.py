"""Tests of verdicts, the stored reasons why tasks are pending: each is about the tasks of one job.

A verdict is written when it changes, and not at each pass.
"""

from __future__ import annotations

import msgspec
import pytest

from scheduling.core.explaining.explain import ExplainBudget, Explainer
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.reasons import ExpectedStart, QueuePlace, Why
from scheduling.models import PendingVerdict
from scheduling.tasks import pending_verdicts
from scheduling.tasks.pending_verdicts import VerdictCache
from tests.integration import rows
from tests.integration.simulated_cell import SimulatedCell

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell() -> SimulatedCell:
    cell = SimulatedCell(rows.a_cell())
    rows.a_machine(cell.cell, capacity=(10, 2**20, 2**20, 0, 0, 1))
    return cell


def written(job_id: int) -> list[Why]:
    return pending_verdicts.read(PendingVerdict.objects.get(job_id=job_id).whys)


def test_a_verdict_names_no_job_of_another_tenant(cell) -> None:
    jobs = {
        rows.a_job(cell.cell, rows.a_tenant(tenant), tasks=number).id: number
        for tenant, number in (("ubar", 2), ("other", 3))
    }
    pending_verdicts.store(cell.cell.id, cell.decide())
    told = {row.job_id: pending_verdicts.read(row.whys) for row in PendingVerdict.objects.all()}
    assert {job: [why.tasks for why in whys] for job, whys in told.items()} == {
        job: [((job, number),)] for job, number in jobs.items()
    }


def test_a_pass_that_says_the_same_writes_nothing(cell, django_assert_max_num_queries) -> None:
    job = rows.a_job(cell.cell, rows.a_tenant())
    book = VerdictCache()
    plan = cell.decide()
    assert pending_verdicts.store(cell.cell.id, plan, book=book, now=0.0) == 1
    (why,) = plan.unplaced
    later = Plan(revision=plan.revision + 7, unplaced=(msgspec.structs.replace(why, revision=99),))
    with django_assert_max_num_queries(2):  # the begin and the end of a transaction
        assert pending_verdicts.store(cell.cell.id, later, book=book, now=1.0) == 0
    assert PendingVerdict.objects.get().revision == plan.revision
    assert written(job.id)[0].revision == why.revision


def test_what_moves_all_the_time_is_written_now_and_then(cell) -> None:
    job = rows.a_job(cell.cell, rows.a_tenant())
    book = VerdictCache()
    plan = cell.decide()
    pending_verdicts.store(cell.cell.id, plan, book=book, now=0.0)
    (why,) = plan.unplaced
    start = msgspec.structs.replace(why.expected or ExpectedStart(basis="ends"), ends=5)
    moved = Plan(
        revision=plan.revision + 1, unplaced=(msgspec.structs.replace(why, places=(QueuePlace(9, 0),), expected=start),)
    )
    assert pending_verdicts.store(cell.cell.id, moved, book=book, now=1.0) == 0
    assert pending_verdicts.store(cell.cell.id, moved, book=book, now=pending_verdicts.FRESH_S) == 1
    assert (written(job.id)[0].ahead, PendingVerdict.objects.get().revision) == (9, plan.revision + 1)
    worse = Plan(revision=plan.revision + 2, unplaced=(msgspec.structs.replace(why, code="ports"),))
    assert pending_verdicts.store(cell.cell.id, worse, book=book, now=pending_verdicts.FRESH_S + 0.1) == 1


def test_thousands_of_rows_are_written_in_turns(cell) -> None:
    for number in range(5):
        rows.a_job(cell.cell, rows.a_tenant(), f"j{number}")
    book, plan = VerdictCache(), cell.decide()
    turns = [pending_verdicts.store(cell.cell.id, plan, book=book, now=float(n), most=2) for n in range(4)]
    assert turns == [2, 2, 1, 0]
    assert PendingVerdict.objects.count() == 5


def test_verdicts_of_placed_tasks_end_and_unexamined_tasks_keep_theirs(cell) -> None:
    tenant = rows.a_tenant()
    first, second = (rows.a_job(cell.cell, tenant, name) for name in ("first", "second"))
    book, plan = VerdictCache(), cell.decide()
    pending_verdicts.store(cell.cell.id, plan, book=book, now=0.0)
    blank = [Why(tasks=((first.id, 3),), machines=1)]
    pending_verdicts.store(cell.cell.id, Plan(revision=50, unplaced=tuple(blank)), book=VerdictCache(), now=0.0)
    assert written(first.id)[0].code == "resource"
    pending_verdicts.store(cell.cell.id, Plan(revision=51, unplaced=tuple(blank)), book=book, now=1.0)
    assert [row.job_id for row in PendingVerdict.objects.all()] == [first.id]
    assert second.id not in book.rows


def test_another_schedulers_verdicts_are_left_alone(cell) -> None:
    tenant = rows.a_tenant()
    service = rows.a_job(cell.cell, tenant, "service")
    batch = rows.a_job(cell.cell, tenant, "batch", latency_sensitive=False)
    plan = cell.decide()
    for own in (service.id, batch.id):
        unplaced = tuple(
            msgspec.structs.replace(why, tasks=((own, 3),)) for why in plan.unplaced if own in dict(why.tasks)
        )
        pending_verdicts.store(cell.cell.id, Plan(revision=9, unplaced=unplaced), book=VerdictCache(), now=0.0)
    assert PendingVerdict.objects.count() == 2


def test_a_masters_passes_explain_all_in_turns(cell) -> None:
    for number in range(4):
        rows.a_job(cell.cell, rows.a_tenant(), f"j{number}", limit=(100 + number, 2**26, 2**26, 0, 0, 1))
    explainer, book = Explainer(ExplainBudget(classes=1)), VerdictCache()
    for turn in range(4):
        pending_verdicts.store(cell.cell.id, cell.decide(explainer=explainer), book=book, now=float(turn))
        assert PendingVerdict.objects.count() == turn + 1
    assert explainer.behind == 0
