"""Tests of commits with a re-check (§3.4): placements that no longer hold are returned, and the others are applied."""

from __future__ import annotations

import dataclasses
import threading

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from msgspec.structs import replace

from scheduling.brakes.stored_brakes import brake_release
from scheduling.core.vocabulary import events, task_events
from scheduling.core.vocabulary.plan import Assignment, Plan
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal
from scheduling.master.commit import commit
from scheduling.models import Brake, Departure, Event, Job, JobSpec, Task
from scheduling.policy import brake_rules
from scheduling.tasks import transitions
from tests.integration import rows

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def machines(cell):
    return [rows.a_machine(cell, name) for name in ("m1", "m2")]


@pytest.fixture
def job(cell):
    return rows.a_job(cell, rows.a_tenant(), tasks=4)


def plan(cell, *assignments: Assignment) -> Plan:
    return Plan(revision=journal.newest(cell.id), assignments=assignments)


def put(job: Job, index: int, machine, *, victims=()) -> Assignment:
    return Assignment(job.id, index, machine.id, ports=(20000 + index,), victims=victims)


def running(job: Job) -> dict[int, str]:
    return dict(Task.objects.filter(job=job, state="running").values_list("index", "machine__hostname"))


def test_a_plan_that_still_holds_is_applied_in_chunks(cell, machines, job) -> None:
    decided = plan(cell, *[put(job, i, machines[i % 2]) for i in range(4)])
    outcome = commit(cell.id, decided, principal=rows.ME, chunk=3)
    assert len(outcome.applied) == 4
    assert outcome.refused == []
    assert len(outcome.revisions) == 2
    assert running(job) == {0: "m1", 1: "m2", 2: "m1", 3: "m2"}


def test_two_schedulers_do_not_exceed_a_bound_together(cell, machines, job) -> None:
    """Commit two plans that were made from the same state. Each of them alone is within the bound."""
    Job.objects.filter(pk=job.pk).update(max_running=2)
    first = replace_plan(plan(cell, *[put(job, i, machines[0]) for i in (0, 1)]), job)
    second = replace_plan(plan(cell, *[put(job, i, machines[1]) for i in (2, 3)]), job)
    assert len(commit(cell.id, first, principal=rows.ME).applied) == 2
    outcome = commit(cell.id, second, principal=rows.ME)
    assert (outcome.applied, len(outcome.refused)) == ([], 2)
    assert running(job) == {0: "m1", 1: "m1"}
    Job.objects.filter(pk=job.pk).update(max_running=3)
    assert [a.index for a in commit(cell.id, second, principal=rows.ME, chunk=1).applied] == [2]


def replace_plan(decided: Plan, bounded: Job) -> Plan:
    return dataclasses.replace(decided, bounded=frozenset({bounded.id}))


def test_a_commit_without_bounded_jobs_makes_no_query_about_bounds(cell, machines, job) -> None:
    with CaptureQueriesContext(connection) as seen:
        commit(cell.id, plan(cell, put(job, 0, machines[0])), principal=rows.ME)
    assert not [one for one in seen if '"scheduling_job"."max_running" > ' in one["sql"]]


@pytest.fixture
def gang(cell, job):
    Job.objects.filter(pk=job.pk).update(gang=True)
    return job


def test_a_gang_is_written_under_one_revision(cell, machines, gang) -> None:
    other = rows.a_job(cell, rows.a_tenant(), "jbar", tasks=3)
    first = [replace(put(other, i, machines[1]), ports=(22000 + i,)) for i in range(3)]
    decided = plan(cell, first[0], *[put(gang, i, machines[i % 2]) for i in range(4)], *first[1:])
    outcome = commit(cell.id, decided, principal=rows.ME, chunk=2)
    assert len(outcome.applied) == 7
    per_revision = [
        [record.event.job_id for record in records if isinstance(record.event, events.TaskPlaced)]
        for records in outcome.records.values()
    ]
    assert per_revision == [[other.id, *[gang.id] * 4], [other.id] * 2]


def test_a_gang_of_which_a_part_holds_no_more_is_handed_back_whole(cell, machines, gang) -> None:
    elsewhere = rows.a_machine(cell, "m3")
    other = rows.a_job(cell, rows.a_tenant(), "jbar", tasks=2)
    victim = rows.a_job(cell, rows.a_tenant(), "low", tasks=1, priority=50)
    commit(cell.id, plan(cell, replace(put(victim, 0, machines[0]), ports=(23000,))), principal=rows.ME)
    decided = plan(
        cell,
        put(gang, 0, machines[0], victims=((victim.id, 0),)),
        *[put(gang, i, machines[0]) for i in (1, 2)],
        put(gang, 3, machines[1]),
        replace(put(other, 0, elsewhere), ports=(22000,)),
    )
    meanwhile = plan(cell, replace(put(other, 1, machines[1]), ports=(22001,)))
    commit(cell.id, meanwhile, principal=rows.ME)
    outcome = commit(cell.id, decided, principal=rows.ME)
    assert [(a.job_id, a.index) for a in outcome.applied] == [(other.id, 0)]
    assert len(outcome.refused) == 4
    assert running(gang) == {}
    assert running(victim) == {0: "m1"}


def test_where_too_much_would_be_stopped_preemptors_are_handed_back_and_others_placed(
    cell, machines, monkeypatch
) -> None:
    monkeypatch.setattr(brake_rules, "ALWAYS_STOPPED", 3)
    low = rows.a_job(cell, rows.a_tenant(), "low", tasks=8, priority=100)
    commit(cell.id, plan(cell, *[put(low, i, machines[0]) for i in range(8)]), principal=rows.ME)
    high = rows.a_job(cell, rows.a_tenant(), "high", tasks=8)

    def preempting(first: int, last: int) -> list[Assignment]:
        return [put(high, i, machines[0], victims=((low.id, i),)) for i in range(first, last)]

    assert commit(cell.id, plan(cell, *preempting(0, 3)), principal=rows.ME).refused == []
    bare = replace(put(high, 7, machines[1]), ports=(22000,))
    outcome = commit(cell.id, plan(cell, *preempting(3, 5), bare), principal=rows.ME)
    assert [a.index for a in outcome.applied] == [7]
    assert [a.index for a in outcome.refused] == [3, 4]
    assert sorted(running(low)) == [3, 4, 5, 6, 7]
    held = Brake.objects.get(kind="stops")
    assert (held.state, held.wanted) == ("held", 2)
    assert commit(cell.id, plan(cell, *preempting(3, 4)), principal=rows.ME).applied == []
    brake_release(principal=rows.ME, cell=cell, kind="stops", reason="it is meant so")
    assert len(commit(cell.id, plan(cell, *preempting(3, 7)), principal=rows.ME).applied) == 4


@pytest.mark.parametrize(("bound", "notice_s"), [({}, None), ({"preemption_delay_s": 1.5}, 1.5)])
def test_victims_get_at_most_the_delay_bound_of_their_preemptor(cell, machines, bound, notice_s) -> None:
    low = rows.a_job(cell, rows.a_tenant(), "low", priority=100)
    commit(cell.id, plan(cell, put(low, 0, machines[0])), principal=rows.ME)
    high = rows.a_job(cell, rows.a_tenant(), "high")
    row = JobSpec.objects.get(job=high)
    row.spec |= bound
    row.save()
    commit(cell.id, plan(cell, put(high, 0, machines[0], victims=((low.id, 0),))), principal=rows.ME)
    assert Departure.objects.get(task__job=low).notice_s == notice_s


def test_the_outcome_holds_what_the_journal_says(cell, machines, job) -> None:
    low = rows.a_job(cell, rows.a_tenant(), "low", priority=100)
    commit(cell.id, plan(cell, put(low, 0, machines[0])), principal=rows.ME)
    before = journal.newest(cell.id)
    decided = plan(cell, put(job, 0, machines[0], victims=((low.id, 0),)), put(job, 1, machines[1]))
    outcome = commit(cell.id, decided, principal=rows.ME, chunk=1)
    assert outcome.revisions == [before + 1, before + 2]
    written = [record for records in outcome.records.values() for record in records]
    assert written == journal.tail(cell.id, after=before)


def test_the_first_of_a_large_plan_are_written_by_themselves(cell, machines) -> None:
    job = rows.a_job(cell, rows.a_tenant(), "large", tasks=600)
    outcome = commit(cell.id, plan(cell, *[put(job, i, machines[0]) for i in range(600)]), principal=rows.ME)
    assert [len(records) for records in outcome.records.values()] == [100, 500]
    assert [a.index for a in outcome.applied] == list(range(600))


def test_a_commit_in_which_nothing_holds_writes_nothing(cell, machines, job) -> None:
    decided = plan(cell, put(job, 0, machines[0]))
    commit(cell.id, decided, principal=rows.ME)
    again = commit(cell.id, decided, principal=rows.ME)
    assert (again.applied, again.records) == ([], {})


def test_a_placement_keeps_its_receipt(cell, machines, job) -> None:
    chosen = replace(put(job, 0, machines[0]), score={"packing": 0.5}, devices=(0, 2), runners_up=((9, 0.25),))
    commit(cell.id, plan(cell, chosen, put(job, 1, machines[0])), principal=rows.ME)
    full, bare = [record.event for record in journal.tail(cell.id, after=journal.newest(cell.id) - 1)]
    assert isinstance(full, events.TaskPlaced)
    assert (full.score, full.devices, full.runners_up) == ({"packing": 0.5}, (0, 2), ((9, 0.25),))
    # Empty fields are left out, because there is one such row for each placement.
    assert set(Event.objects.latest("revision", "seq").data) == {
        "kind",
        "job_id",
        "index",
        "machine_id",
        "incarnation",
        "ports",
    }
    assert bare == events.TaskPlaced(job_id=job.id, index=1, machine_id=machines[0].id, incarnation=1, ports=(20001,))


def test_the_number_of_statements_does_not_depend_on_the_number_of_placements(cell, machines) -> None:
    low = rows.a_job(cell, rows.a_tenant(), "low", tasks=40, priority=100)
    commit(cell.id, plan(cell, *[put(low, i, machines[0]) for i in range(40)]), principal=rows.ME)
    job = rows.a_job(cell, rows.a_tenant(), "high", tasks=40)
    numbers = []
    for first, last in ((0, 2), (2, 40)):
        decided = plan(cell, *[put(job, i, machines[0], victims=((low.id, i),)) for i in range(first, last)])
        with CaptureQueriesContext(connection) as captured:
            assert commit(cell.id, decided, principal=rows.ME).refused == []
        numbers.append(len(captured))
    assert numbers[0] == numbers[1]


def test_a_machine_touched_meanwhile_gives_its_assignments_back(cell, machines, job) -> None:
    decided = plan(cell, put(job, 0, machines[0]), put(job, 1, machines[1]))
    with journal.write(cell.id, rows.ME) as entry:
        entry.append(events.MachineState(machine_id=machines[0].id, state="down"))
    outcome = commit(cell.id, decided, principal=rows.ME)
    assert [a.index for a in outcome.refused] == [0]
    assert running(job) == {1: "m2"}


def test_what_only_frees_resources_refuses_nothing(cell, machines, job) -> None:
    commit(cell.id, plan(cell, put(job, 0, machines[0])), principal=rows.ME)
    decided = plan(cell, put(job, 1, machines[0]))
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [task_events.Ending(task_id(job.id, 0), "finished", gone=True)])
    assert commit(cell.id, decided, principal=rows.ME).refused == []


def test_a_task_killed_meanwhile_takes_no_victims(cell, machines, job) -> None:
    low = rows.a_job(cell, rows.a_tenant(), "low", priority=100)
    commit(cell.id, plan(cell, put(low, 0, machines[0])), principal=rows.ME)
    decided = plan(cell, put(job, 1, machines[0], victims=((low.id, 0),)))
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [task_events.Ending(task_id(job.id, 1), "killed")])
    outcome = commit(cell.id, decided, principal=rows.ME)
    assert [a.index for a in outcome.refused] == [1]
    assert running(low) == {0: "m1"}


@pytest.mark.parametrize("chunk", [1, 10])
def test_nobody_takes_room_that_a_spared_victim_still_holds(cell, machines, job, chunk) -> None:
    low = rows.a_job(cell, rows.a_tenant(), "low", priority=100)
    commit(cell.id, plan(cell, put(low, 0, machines[0])), principal=rows.ME)
    decided = plan(
        cell,
        put(job, 1, machines[0], victims=((low.id, 0),)),
        put(job, 2, machines[0]),  # into the space that the victim would have left
        put(job, 0, machines[1]),
    )
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [task_events.Ending(task_id(job.id, 1), "killed")])
    outcome = commit(cell.id, decided, principal=rows.ME, chunk=chunk)
    assert [a.index for a in outcome.refused] == [1, 2]
    assert [a.index for a in outcome.applied] == [0]
    assert running(low) == {0: "m1"}


def test_a_disruption_budget_that_others_used_up_meanwhile_is_respected(cell, machines, job) -> None:
    low = rows.a_job(cell, rows.a_tenant(), "low", priority=100, tasks=2)
    Job.objects.filter(pk=low.id).update(disruption_budget=1)
    commit(cell.id, plan(cell, put(low, 0, machines[0])), principal=rows.ME)
    commit(cell.id, plan(cell, put(low, 1, machines[1])), principal=rows.ME)
    decided = plan(cell, put(job, 1, machines[0], victims=((low.id, 0),)))
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [task_events.Eviction(task_id(low.id, 1), 1, "other", gone=True)])
    assert [a.index for a in commit(cell.id, decided, principal=rows.ME).refused] == [1]
    assert running(low) == {0: "m1"}


def test_preemption_is_one_change_and_names_both_sides(cell, machines, job) -> None:
    low = rows.a_job(cell, rows.a_tenant(), "low", priority=100)
    commit(cell.id, plan(cell, put(low, 0, machines[0])), principal=rows.ME)
    commit(cell.id, plan(cell, put(job, 1, machines[0], victims=((low.id, 0),))), principal=rows.ME)
    evicted, placed = journal.tail(cell.id, after=journal.newest(cell.id) - 1)
    assert isinstance(evicted.event, events.TaskEvicted)
    assert evicted.event.preemptor == (job.id, 1)
    assert isinstance(placed.event, events.TaskPlaced)
    assert placed.event.victims == ((low.id, 0),)
    departure = Departure.objects.get()
    assert (departure.cause, departure.preemptor) == ("preemption", task_id(job.id, 1))


def test_a_victim_that_moved_meanwhile_is_spared(cell, machines, job) -> None:
    low = rows.a_job(cell, rows.a_tenant(), "low", priority=100)
    commit(cell.id, plan(cell, put(low, 0, machines[0])), principal=rows.ME)
    decided = plan(cell, put(job, 1, machines[0], victims=((low.id, 0),)))
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [task_events.Eviction(task_id(low.id, 0), 1, "other", gone=True)])
    commit(cell.id, plan(cell, put(low, 0, machines[1])), principal=rows.ME)
    assert commit(cell.id, decided, principal=rows.ME).refused == []
    assert running(low) == {0: "m2"}


def test_masters_at_once_place_each_task_once_and_never_overrule_each_other(cell, job) -> None:
    """Six masters commit plans from the same revision for the same tasks and machines. Each task is placed once."""
    fleet = [rows.a_machine(cell, f"n{i}") for i in range(4)]
    decided = [plan(cell, *[put(job, i, fleet[(i + turn) % 4]) for i in range(4)]) for turn in range(6)]
    outcomes = []

    def run(one: Plan) -> None:
        try:
            outcomes.append(commit(cell.id, one, principal=rows.ME, chunk=2))
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[one]) for one in decided]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    applied = [(a.index, a.machine_id) for outcome in outcomes for a in outcome.applied]
    assert sorted(index for index, _ in applied) == [0, 1, 2, 3]
    assert len({machine for _, machine in applied}) == 4, "one machine was used on the strength of an old plan"
    assert set(Task.objects.filter(job=job).values_list("incarnation", flat=True)) == {1}
