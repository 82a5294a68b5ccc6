"""Tests of the cures of pending jobs, with one prepared cell. The search of the masters runs in this process;
`test_cures_command.py` asks a real one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django.plugin import DjangoDbBlocker

from quota.admission import published_capacity
from quota.models import ApprovalRule, PriorityBand, Quota
from quota.vocabulary.bands import DEFAULT_FACTORS
from quota.vocabulary.permissions import Principal, Role
from scheduling.core.cell.state import CellState
from scheduling.core.pass_ import schedule_pass
from scheduling.core.trials.search import answer
from scheduling.core.trials.trial import Trial
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Requirement
from scheduling.core.vocabulary.trials import TrialAnswer, TrialGroup, TrialJob, TrialQuestion, Variant
from scheduling.cures import answering, asking
from scheduling.cures.answering import Answerer
from scheduling.cures.asking import _send, answer_key, wanted_key
from scheduling.cures.cure_list import Cure, Cures
from scheduling.cures.cures import cures_of
from scheduling.jobs import updates
from scheduling.jobs.submission.revisions import revision_of
from scheduling.journal import journal, wakeups
from scheduling.models import Cell, Job
from scheduling.tasks import pending_verdicts
from scheduling.usage.cell_view import ViewPublisher
from tests.integration import portal_world, rows, world
from tests.integration.row_counts import row_counts

GIB = 2**30
# Half of what a cell can sell.
SOLD = (32_000, 2**37, 2**41, 0, 0, 0)
FREE = (4000, 16 * GIB, 2**40, 0, 0, 100)


def a_pending_job(name: str = "web", *, cpu: str = "6", tasks: int = 1, **changes: object) -> dict[str, object]:
    file = world.with_task(name, tasks=tasks, limit={"cpu": cpu, "ram": "1Gi", "disk": "1Gi"}, ports=[])
    return file | changes


def state_of(cell: Cell) -> CellState:
    """Return the state of a cell from its journal, as a transaction that is not committed sees it."""
    state = CellState()
    while records := journal.tail(cell.id, after=state.revision):
        state.apply_all((one.event, one.revision, one.time.timestamp()) for one in records)
    return state


def look(cell: Cell) -> None:
    """Run a pass that only finds the reasons why tasks are pending."""
    plan = schedule_pass(state_of(cell), Policy(), now=time.time(), rng=np.random.default_rng(1))
    assert not plan.assignments
    pending_verdicts.store(cell.id, plan)


def make() -> tuple[Cell, Principal]:
    """Create cell cc, which has a machine of four cores, and cell big, whose machine has 64. The tenant has quota for
    production in both.
    """
    cell, big = rows.a_cell(), rows.a_cell("big")
    for name, factors in DEFAULT_FACTORS.items():
        PriorityBand.objects.filter(name=name).update(price_milli=factors.price_milli)
    tenant = rows.a_tenant("ubar")
    rows.a_machine(cell, "m1", capacity=FREE)
    rows.a_machine(big, "b1")
    for one in (cell, big):
        rows.grant(tenant, one, "production", SOLD)
        with transaction.atomic():
            published_capacity.publish(cell=one.name, capacity=rows.LARGE, revision=1)
        ViewPublisher(one.id).publish(state_of(one))
    return cell, world.principal("ann", tenant=tenant)


@pytest.fixture(scope="module")
def prepared(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[tuple[Cell, Principal]]:
    """Yield the cells for all tests that commit nothing. Each test rolls back its own changes."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield make()
        transaction.set_rollback(True)


@pytest.fixture
def cell(prepared, db) -> Cell:
    return prepared[0]


@pytest.fixture
def ann(prepared, db) -> Principal:
    return prepared[1]


def masters(questions: Mapping[Cell, TrialQuestion]) -> dict[int, TrialAnswer]:
    """Answer as the masters of all cells."""
    return {
        cell.id: answer(Trial(state_of(cell), Policy()), question, now=time.time())
        for cell, question in questions.items()
    }


def found(who: Principal, job: Job) -> Cures:
    look(job.cell)
    return cures_of(who, job, ask_masters=masters)


def by_key(cures: Cures) -> dict[str, Cure]:
    return {one.key: one for one in cures.cures}


def test_each_kind_of_cure_is_tried_and_has_a_price(cell, ann) -> None:
    job = world.submit(ann, cell, a_pending_job())
    cures = by_key(found(ann, job))
    lower = next(one for one in cures.values() if one.kind == "request")
    assert lower.patch == {"task": {"limit": {"cpu": "4"}}}
    assert (lower.change, lower.places, lower.verified) == ("Lower cpu per task from 6 to 4.", 1, True)
    assert lower.revision == journal.newest(cell.id)
    # Two cores of production for 30 days, at 0.02 credits an hour.
    assert lower.price_difference == -2 * 20_000 * 24 * 30
    command = """borgctl patch cc/ubar/web '{"task":{"limit":{"cpu":"4"}}}'"""
    assert lower.commands == (f"{command} --if-revision {revision_of(job)}",)
    there = cures["cell:big"]
    assert (there.kind, there.price_difference, there.order) == ("cell", 0, None)
    assert there.commands == ("borgctl copy cc/ubar/web --to big", "borgctl kill cc/ubar/web")
    assert "wait" not in cures, "no machine has six cores"
    assert "priority-0" not in cures, "with every priority, six cores do not fit on four"


def test_cheapest_cures_come_first_and_nothing_changes(cell, ann) -> None:
    job = world.submit(ann, cell, a_pending_job())
    look(cell)
    before = row_counts(), journal.newest(cell.id)
    order = [one.kind.value for one in cures_of(ann, job, ask_masters=masters).cures]
    assert (row_counts(), journal.newest(cell.id)) == before
    assert order == ["request", "cell"]


def test_a_higher_band_needs_an_order_with_its_price(cell, ann) -> None:
    """Monitoring preempts production. The tenant has no quota there."""
    world.bring_up(world.submit(ann, cell, a_pending_job("first", cpu="3")), cell.machines.get())
    job = world.submit(ann, cell, a_pending_job(cpu="3"))
    higher = by_key(found(ann, job))["priority-360"]  # the first price creates the default rules
    assert (higher.kind, higher.preempts) == ("band", 1)
    assert higher.price_difference == 3 * 20_000 * 24 * 30 // 2 + higher_rest()
    assert higher.order is not None
    assert higher.order["price"] > 0
    assert higher.commands[0].startswith("borgctl quota buy --tenant ubar --cell cc --band monitoring")
    assert higher.approver == "", "rules approve small orders"
    assert higher.starts_at is not None
    ApprovalRule.objects.update(approver="owner")
    higher = by_key(found(ann, job))["priority-360"]
    assert (higher.approver, higher.starts_at) == ("owner", None)


def higher_rest() -> int:
    """Return half of what a GiB of RAM and a GiB of disk cost for 30 days."""
    return (2_500 + 50) * 24 * 30 // 2


def test_a_lower_band_in_reclaimed_resources_is_cheaper(cell, ann) -> None:
    """A production task does not fit beside the limit of the first one, and batch does beside its reservation."""
    rows.grant(rows.a_tenant("ubar"), cell, "batch")
    first = world.submit(ann, cell, a_pending_job("first", cpu="3"))
    world.bring_up(first, cell.machines.get())
    with journal.write(cell.id, ann) as entry:
        entry.append(events.ReservationsSet(((first.id, 0),), ((500, GIB, GIB, 0, 0, 0),)))
    job = world.submit(ann, cell, a_pending_job(cpu="3"))
    lower = by_key(found(ann, job))["priority-119"]
    assert (lower.change, lower.preempts) == ("Change the priority from 120 to 119 (band batch).", 0)
    assert lower.price_difference is not None
    assert lower.price_difference < 0
    free = by_key(found(ann, job))["priority-0"]
    assert free.price_difference is not None
    assert free.price_difference < lower.price_difference


def test_a_demoted_job_gets_its_priority_back_with_more_quota(cell, ann) -> None:
    """Its quota has expired, and a batch job uses the machine."""
    rows.grant(rows.a_tenant("ubar"), cell, "batch")
    world.bring_up(world.submit(ann, cell, a_pending_job("first", cpu="3", priority=100)), cell.machines.get())
    job = world.submit(ann, cell, a_pending_job(cpu="3", priority=200))
    demoted = world.read(cell, a_pending_job(cpu="3", priority=0))
    updates.job_update(principal=ann, job=job, job_spec=demoted, reason="quota expired")
    Quota.objects.filter(cell="cc", band__name="production").delete()
    cures = by_key(found(ann, Job.objects.get(pk=job.pk)))
    back = cures["priority-200"]
    assert (back.kind, back.preempts) == ("quota", 1)
    assert back.order is not None
    assert back.order["sizes"] == {"cpu": "3", "ram": "1Gi", "disk": "1Gi"}
    assert back.commands[1].startswith("""borgctl patch cc/ubar/web '{"priority":200}' --if-revision""")


def test_constraints_that_no_machine_satisfies_are_dropped(cell, ann) -> None:
    file = a_pending_job(cpu="1")
    constraint = {"attribute": "flash", "relation": "=", "value": "yes"}
    file["task"]["constraints"] = [constraint]  # type: ignore[index]
    (drop,) = [one for one in found(ann, world.submit(ann, cell, file)).cures if one.kind == "request"]
    assert drop.patch == {"task": {"constraints": []}}
    assert drop.change == "Drop the constraint flash = yes."


def test_callers_see_only_their_cells_and_prices(cell, ann) -> None:
    job = world.submit(ann, cell, a_pending_job())
    bound = Principal(**{**{name: getattr(ann, name) for name in ann.__slots__}, "cell": "cc"})
    assert {one.cell for one in found(bound, job).cures} == {"cc"}
    viewer = world.principal("vera", tenant=rows.a_tenant("ubar"), role=Role.VIEWER)
    assert "cell:big" in by_key(found(viewer, job))


def test_a_silent_master_is_named(cell, ann) -> None:
    job = world.submit(ann, cell, a_pending_job())
    look(cell)
    silent = cures_of(ann, job, ask_masters=lambda questions: {})
    assert silent.cures == [], "waiting does not help"
    assert "Waiting does not help" in silent.notes[0]
    assert "did not answer within 1 s" in silent.notes[1]


def test_a_master_answers_each_question_that_somebody_waits_for(cell) -> None:
    client, answerer = wakeups.client(), Answerer(cell.id)
    wanted = TrialJob((TrialGroup(Requirement((1000, GIB, GIB, 0, 0, 0)), 2),), 200)
    state = state_of(cell)

    def send() -> str:
        (key,) = _send(client, {cell: TrialQuestion("", wanted)}, 20.0)
        return key

    left = [send() for _ in range(4)]  # nobody waits for these any more
    for key in left:
        client.delete(wanted_key(key.removeprefix(answer_key(""))))
    keys = [send(), send()]
    assert [answerer.turn(state, Policy()) for _ in range(3)] == [True, True, False]
    found = [msgspec.msgpack.decode(client.lpop(key), type=TrialAnswer) for key in keys]
    assert [one.base.placed for one in found] == [2, 2]
    assert not any(client.exists(key) for key in left)


@pytest.mark.parametrize(("time_s", "answered"), [(20.0, 1), (-1.0, 2)])
def test_only_complete_answers_are_used_again(cell, monkeypatch, time_s: float, answered: int) -> None:
    """A master without time for the variants of a question leaves them out. Each case asks another question."""
    monkeypatch.setattr(answering, "WITHIN_S", time_s)
    monkeypatch.setattr(asking.cell_view, "is_published", lambda _: True)
    wanted = TrialJob((TrialGroup(Requirement((1000 * answered, GIB, GIB, 0, 0, 0)), 2),), 200)
    huge = TrialJob((TrialGroup(Requirement((2**40, GIB, GIB, 0, 0, 0)), 2),), 200)
    question = TrialQuestion("", huge, (Variant("smaller", wanted),))
    answerer, state, turns = Answerer(cell.id), state_of(cell), []
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(asking.ask, {cell: question}, within_s=20.0)
            while not found.done():
                turns += [1] if answerer.turn(state, Policy()) else []
                time.sleep(0.01)
        assert bool(found.result()[cell.id].untried) == (answered == 2)
    assert len(turns) == answered


def test_queries_do_not_grow_with_candidates(cell, ann) -> None:
    def queries(job: Job) -> int:
        look(cell)
        with CaptureQueriesContext(connection) as seen:
            cures_of(ann, job, ask_masters=lambda questions: answers)
        return len(seen)

    few = world.submit(ann, cell, a_pending_job())
    many = a_pending_job("many")
    many["task"]["constraints"] = [  # type: ignore[index]
        {"attribute": f"a{number}", "relation": "=", "value": "yes"} for number in range(10)
    ]
    answers: dict[int, TrialAnswer] = {}
    assert queries(few) == queries(world.submit(ann, cell, many)) <= 12


def test_the_page_and_its_button_lead_to_the_plan_of_the_update(cell, ann, monkeypatch) -> None:
    world.submit(ann, cell, a_pending_job())
    look(cell)
    monkeypatch.setattr(cures_of, "__kwdefaults__", {"index": None, "ask_masters": masters})
    client = portal_world.signed_in("ann")
    assert "/jobs/cc/ubar/web/cures/" in client.get("/jobs/cc/ubar/web/").text
    page = client.get("/jobs/cc/ubar/web/cures/").text
    assert "Lower cpu per task from 6 to 4." in page
    patch = json.dumps({"task": {"limit": {"cpu": "4"}}})
    uid = str(Job.objects.get(name="web").uid)
    plan = client.post("/jobs/cc/ubar/web/update/", {"uid": uid, "version": "1", "patch": patch, "do": "plan"}).text
    assert "cpu: &#x27;4&#x27;" in plan or "cpu: 4" in plan
    assert 'value="submit"' in plan
    refused = client.get("/jobs/cc/ubar/web/update/", {"uid": uid, "patch": "["})
    assert refused.status_code == 422
    copied = client.get("/submit/", {"cell": "big", "tenant": "ubar", "copy": "cc/ubar/web"}).text
    assert "cell: big" in copied
    assert client.get("/submit/", {"cell": "big", "copy": "cc/other/web"}).status_code == 404
