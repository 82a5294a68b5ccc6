"""Tests of explanations of pending tasks: the main reason, the nearest machine, useful changes, expected start."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from quota.vocabulary.resources import RAM
from scheduling.core.explaining.explain import ExplainBudget, Explainer
from scheduling.core.explaining.forecast import Ends, expected_start
from scheduling.core.explaining.suggested_limits import conforming, platforms_of
from scheduling.core.explaining.unplaced_tasks import of_job
from scheduling.core.explaining.wording import format_fit, format_why, sentence
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.reasons import Ahead, Basis, ChangeKind, Lack, ReasonCode, Why
from scheduling.core.vocabulary.requirement import PROTOCOL, Constraint, Relation
from scheduling.spec.task_spec import SPEAKS
from tests.builders import GIB, World, must, needs, vector


def verdict(world: World, **how: object) -> Why:
    (why,) = world.plan(**how).unplaced  # type: ignore[arg-type]
    return why


# --- what leads, what is nearest


def test_what_the_request_asks_for_leads() -> None:
    world = World().machine("old", kernel="4").machine("older", kernel="4").machine("new", kernel="5", cpu=500)
    world.job("a", needs(constraints=(must("kernel", ">=", "5"),)))
    assert verdict(world).code == ReasonCode.RESOURCE
    world.machine_state("new", "down")
    assert verdict(world).code == ReasonCode.MACHINE_STATE
    world.remove("new")
    assert verdict(world).code == ReasonCode.CONSTRAINT


def test_the_nearest_machine_says_what_it_lacks() -> None:
    world = World().machine("m1", cpu=1000).machine("m2", cpu=3000).machine("m3", cpu=3900, state="down")
    nearest = verdict(world.job("a", cpu=4000)).nearest
    assert nearest is not None
    assert (nearest.machine_id, nearest.lacks) == (world.id_of("m2"), (Lack("cpu", 3000, 1000),))


def test_counts_and_the_nearest_machine_cover_machines_of_all_blocks() -> None:
    world = World()
    for number in range(2500):
        world.machine(f"m{number}", cpu=2000 + 100 * (number % 7))
    why = verdict(world.job("a", cpu=4000))
    assert [(one.code, one.machines, one.largest) for one in why.ruled_out] == [(ReasonCode.RESOURCE, 2500, 2600)]
    assert [(change.subject, change.to, change.machines) for change in why.changes] == [("cpu", 2600, 2500 // 7)]
    assert why.nearest is not None
    assert why.nearest.machine_id == world.id_of("m6"), "of equal machines, the one with the lowest id"


def test_the_maximum_per_machine_counts_machines_with_and_without_a_rack() -> None:
    world = World().machine("m1").machine("m2", rack="r1").machine("m3", rack="r1", cpu=50)
    world.job("a", needs(max_per_machine=1, cpu=100), tasks=3).place("a", 0, on="m1").place("a", 1, on="m2")
    why = verdict(world)
    assert [(one.code, one.machines) for one in why.ruled_out] == [
        (ReasonCode.RESOURCE, 1),
        (ReasonCode.MAX_PER_MACHINE, 2),
    ]
    assert [(change.subject, change.to, change.machines) for change in why.changes] == [
        ("cpu", 50, 1),
        ("max-per-machine", 2, 2),
    ]


def test_another_value_is_offered_where_machines_have_it() -> None:
    world = World().machine("m1", zone="a").machine("m2", zone="b").machine("m3", zone="b")
    why = verdict(world.job("a", needs(constraints=(must("zone", "=", "c"),))))
    assert [(change.kind, change.to, change.machines) for change in why.changes] == [
        (ChangeKind.DROP, "any value", 3),
        (ChangeKind.RELAX, "b", 2),
    ]
    world.end("a", 0)
    for name, kernel in (("m1", "5.2"), ("m2", "5.10"), ("m3", "4")):
        world.machine(name, kernel=kernel)
    (_, nearer) = verdict(world.job("b", needs(constraints=(must("kernel", ">", "6"),)))).changes
    assert nearer.instead == Constraint("kernel", Relation.AT_LEAST, "5.2")
    assert nearer.machines == 1, "as numbers 5.10 is less than 5.2"


def test_changes_are_combined_where_no_single_one_is_enough() -> None:
    world = World().machine("m1", cpu=2000, ram=4 * GIB).job("a", cpu=4000, ram=8 * GIB)
    (change,) = verdict(world).changes
    assert (change.kind, change.machines) == (ChangeKind.COMBINED, 1)
    assert [(part.subject, part.to) for part in change.parts] == [("cpu", 2000), ("ram", 4 * GIB)]
    assert "at most 2 cores of cpu and at most 4 GiB of ram (on 1 machine)" in sentence(verdict(world))


# --- who is ahead, what preemption and reclamation could do


def test_those_ahead_are_counted_by_tenant() -> None:
    world = World().machine("m1", cpu=500)
    for tenant, tasks in ((1, 3), (2, 5)):
        world.job(f"t{tenant}", tasks=tasks, priority=300, tenant=tenant)
    world.job("mine", cpu=2000, priority=200, tenant=3)
    why = world.plan().unplaced[-1]
    assert (why.ahead, why.ahead_tenants) == (8, 2)
    assert why.ahead_of == (Ahead("t02", 1, 5), Ahead("t01", 1, 3))


def test_each_job_of_a_class_hears_of_its_own_place() -> None:
    world = World().machine("m1", cpu=500)
    for number, tasks in enumerate((2, 3, 1)):
        world.job(f"j{number}", tasks=tasks, priority=300 - number, tenant=number)
    (why,) = world.plan().unplaced
    assert (why.ahead, why.ahead_of) == (0, ())
    told = [of_job(why, world.jobs[f"j{number}"].job_id) for number in range(3)]
    assert [(own.tasks[0][1], own.ahead, own.ahead_tenants) for own in told] == [(2, 0, 0), (3, 2, 1), (1, 5, 2)]
    assert told[2].ahead_of == (Ahead("t01", 1, 3), Ahead("t00", 1, 2))
    assert of_job(why, 99) is why


def test_the_start_of_a_job_counts_those_of_its_class_that_come_before() -> None:
    world = World().machine("m1", cpu=4000).job("x", cpu=4000).place("x", 0, on="m1")
    seen = Ends(world.state.axis)
    row = world.jobs["x"]
    ended = events.TaskEnded(job_id=row.job_id, index=0, machine_id=world.id_of("m1"), incarnation=1, how="finished")
    for second in range(10):
        seen.observe(world.state, ended, 1000.0 + second)
    world.job("first", cpu=4000, tasks=5, priority=300).job("second", cpu=4000, priority=200)
    why = verdict(world, explainer=Explainer(seen=seen), now=1010.0)
    first, second = (of_job(why, world.jobs[name].job_id).expected for name in ("first", "second"))
    assert first == why.expected
    assert first is not None
    assert second is not None
    assert (second.least, second.ahead) == (5, 5)
    assert (second.low_s or 0.0) > (first.low_s or 0.0)
    assert (second.high_s or 0.0) > 3 * (first.high_s or 0.0)


def test_preemption_is_said_to_be_of_no_help_where_it_is_not() -> None:
    world = World().machine("m1", cpu=4000).machine("m2", cpu=4000)
    world.job("prod", cpu=3000, priority=200).place("prod", 0, on="m1")
    world.job("batch", cpu=500, priority=110).place("batch", 0, on="m1")
    world.job("all", cpu=4000, priority=210).place("all", 0, on="m2")
    why = verdict(world.job("mine", cpu=2000, priority=205))
    assert (why.preemption.not_enough, why.preemption.held) == (1, 2)
    told = sentence(why)
    assert "On 2 machines, tasks that this job may not preempt use the capacity." in told


def test_reclaimed_room_is_pointed_out_to_prod() -> None:
    world = World().machine("m1", cpu=4000).job("big", cpu=4000).place("big", 0, on="m1")
    world.reserve("big", 0, cpu=1000, ram=GIB)
    assert verdict(world.job("mine", cpu=2000)).reclamation.machines == 1
    world.end("mine", 0)
    assert world.job("batch", cpu=2000, priority=110).plan().assignments


def test_machines_that_are_down_are_waited_for_and_nothing_else() -> None:
    world = World().machine("m1", state="down").machine("m2", state="down").job("a")
    told = sentence(verdict(world))
    assert "The job waits until machines are up again." in told
    assert "room" not in told
    assert "priority" not in told


def test_a_gang_waits_where_one_of_it_would_fit() -> None:
    world = World().machine("m1", cpu=1000).machine("m2", cpu=1000).job("x", cpu=600).place("x", 0, on="m1")
    why = verdict(world.job("two", cpu=600, tasks=2, gang=True))
    assert (why.code, why.never) == (ReasonCode.GANG, False)
    assert [(one.code, one.machines) for one in why.ruled_out] == [(ReasonCode.RESOURCE, 1), (ReasonCode.GANG, 1)]
    world.end("two", 0).end("two", 1)
    why = verdict(world.job("three", cpu=600, tasks=3, gang=True))
    assert why.never
    told = sentence(why)
    assert "Even the empty cell could not hold all of these tasks." in told
    assert "with a limit of 0.5 cores of cpu, it could hold 2" in told


def test_no_change_is_promised_that_would_not_hold_the_whole_gang() -> None:
    world = World().machine("m1", cpu=600).machine("m2", cpu=500).machine("m3", cpu=400)
    apart = needs(cpu=600, max_per_machine=1)
    why = verdict(world.job("three", apart, tasks=3, gang=True))
    assert (why.changes, why.never) == ((), True), "500 would do for two of them"
    for index in range(3):
        world.end("three", index)
    (change,) = verdict(world.job("two", apart, tasks=2, gang=True)).changes
    assert (change.to, change.machines) == (500, 1)


def test_a_gang_too_large_for_the_cell_is_explained_while_the_cell_is_full() -> None:
    world = World().machine("m1", cpu=1000).machine("m2", cpu=1000).job("x", cpu=1000, tasks=2)
    world.place("x", 0, on="m1").place("x", 1, on="m2")
    why = verdict(world.job("three", cpu=600, tasks=3, gang=True))
    assert (why.code, why.never) == (ReasonCode.RESOURCE, True)
    assert why.expected is not None
    assert why.expected.basis is Basis.NEEDS_CHANGE
    told = sentence(why)
    assert "Even the empty cell could not hold all of these tasks." in told
    assert "No machine" not in told


def test_a_gang_is_expected_when_all_of_it_have_room() -> None:
    world = World().machine("m1", cpu=4000).machine("m2", cpu=4000)
    world.job("x", cpu=4000, tasks=2).place("x", 0, on="m1").place("x", 1, on="m2")
    seen = Ends(world.state.axis)
    ended = events.TaskEnded(
        job_id=world.jobs["x"].job_id, index=0, machine_id=world.id_of("m1"), incarnation=1, how="finished"
    )
    for second in range(10):
        seen.observe(world.state, ended, 1000.0 + second)
    why = verdict(world.job("two", cpu=4000, tasks=2, gang=True), explainer=Explainer(seen=seen), now=1010.0)
    assert why.expected is not None
    assert (why.expected.least, why.expected.ahead) == (1, 1), "the first waits for the second"


@pytest.mark.parametrize("bound", ["max_per_rack", "max_per_power_domain"])
def test_a_gang_is_promised_no_more_than_its_bounds_allow(bound: str) -> None:
    world = World()
    for name, cpu in (("m1", 600), ("m2", 500), ("m3", 500)):
        world.machine(name, cpu=cpu, rack="r1", power="p1")
    why = verdict(world.job("two", needs(cpu=600, **{bound: 1}), tasks=2, gang=True))
    assert why.changes == ()
    world.machine("m3", cpu=500, rack="r2", power="p2")
    assert [change.to for change in verdict(world).changes] == [500]


def test_scraps_of_several_accelerators_are_not_room_for_a_whole_one() -> None:
    world = World().machine("m1", accelerators=4000)
    half = needs(accelerators=500)
    world.job("half", half, tasks=3)
    for index in range(3):
        world.place("half", index, on="m1", devices=(index,))
    why = verdict(world.job("two", accelerators=2000))
    assert why.code == ReasonCode.RESOURCE, "two halves and a whole one are free, of which one is of use"
    assert [(one.subject, one.wanted, one.largest) for one in why.ruled_out] == [("accelerators", 2000, 1000)]
    assert [(change.to, change.machines) for change in why.changes] == [(1000, 1)]
    told = sentence(why)
    assert "1 machine with less than 2 accelerators free (at most 1 accelerator)" in told
    assert "A task would fit with at most 1 accelerator (on 1 machine)." in told


def test_a_share_lies_on_one_accelerator() -> None:
    world = World().machine("m1", accelerators=2000).job("big", needs(accelerators=700), tasks=2)
    world.place("big", 0, on="m1", devices=(0,)).place("big", 1, on="m1", devices=(1,))
    (change,) = verdict(world.job("half", accelerators=500)).changes
    assert change.to == 300


def test_accelerators_of_lower_priorities_count_as_room() -> None:
    world = World().machine("m1", accelerators=2000).job("low", needs(accelerators=1000), tasks=2, priority=50)
    world.place("low", 0, on="m1", devices=(0,)).place("low", 1, on="m1", devices=(1,))
    (change,) = verdict(world.job("mine", accelerators=3000)).changes
    assert change.to == 2000


# --- the budget of a pass


def test_a_budget_examines_new_classes_first_and_then_the_stalest() -> None:
    world = World().machine("m1", cpu=500)
    for number in range(3):
        world.job(f"j{number}", cpu=1000 + number)
    explainer = Explainer(ExplainBudget(classes=2, every_s=1.0))
    first = world.plan(explainer=explainer, now=0.0).unplaced
    assert [bool(why.code) for why in first] == [True, True, False]
    assert explainer.behind == 1
    assert "the scheduler tries again in the next one" in sentence(first[2])
    second = world.plan(explainer=explainer, now=0.5).unplaced
    assert [bool(why.code) for why in second] == [True, True, True]
    old = second[0].revision
    world.machine("m2", cpu=600)
    third = world.plan(explainer=explainer, now=0.9).unplaced
    assert [why.revision for why in third] == [old] * 3, "none is a second old"
    fourth = world.plan(explainer=explainer, now=1.2).unplaced
    assert [why.revision > old for why in fourth] == [True, True, False]


def test_a_class_that_was_placed_is_forgotten() -> None:
    world = World().machine("m1", cpu=500).job("a", cpu=1000)
    explainer = Explainer(ExplainBudget())
    world.plan(explainer=explainer)
    world.machine("m1", cpu=1000).schedule()
    world.job("b", cpu=1000)
    (why,) = world.plan(explainer=explainer).unplaced
    assert why.revision == world.state.revision


# --- expected start


def test_without_history_there_is_no_expected_start() -> None:
    world = World().machine("m1", cpu=500).machine("m2", cpu=4000)
    world.job("x", cpu=4000).place("x", 0, on="m2")
    why = verdict(world.job("a", cpu=1000), explainer=Explainer(seen=Ends(world.state.axis)))
    assert why.expected is not None
    assert (why.expected.basis, why.expected.low_s) == (Basis.NO_HISTORY, None)
    assert "cannot be estimated" in sentence(why)


def test_a_crashed_pair_is_tried_again_when_its_time_is_over() -> None:
    world = World().machine("m1").job("a").place("a", 0, on="m1").evict("a", 0, gone=True, crashed=True)
    why = verdict(world, now=world.time + 100.0)
    assert why.expected is not None
    assert (why.expected.basis, why.expected.high_s) == (Basis.CRASH_BACK_OFF, 500.0)


def test_ends_count_where_the_class_could_run_and_where_room_was_not_its_own_already() -> None:
    world = World().machine("m1", cpu=4000).machine("small", cpu=1000)
    seen = Ends(world.state.axis)
    for job, cpu, priority, machine in (("p", 1000, 200, "m1"), ("b", 1000, 100, "m1"), ("s", 1000, 200, "small")):
        world.job(job, cpu=cpu, priority=priority).place(job, 0, on=machine)
    world.job("stays", cpu=2500).place("stays", 0, on="m1")
    start = world.time
    for job in ("p", "b", "s"):
        row = world.jobs[job]
        ended = events.TaskEnded(
            job_id=row.job_id, index=0, machine_id=row.tasks[0].machine_id or 0, incarnation=1, how="finished"
        )
        seen.observe(world.state, ended, start)
        world.end(job, 0)
    world.job("a", cpu=2000)
    why = verdict(world, explainer=Explainer(seen=seen), now=start + 60.0)
    assert why.expected is not None
    assert why.expected.ends == 1, "one was batch, which it would have preempted; one on a machine too small"
    assert why.expected.low_s is not None
    assert why.expected.high_s is not None
    assert why.expected.low_s < why.expected.high_s


def test_ends_of_what_it_could_have_preempted_promise_no_room() -> None:
    world = World().machine("m1", cpu=4000)
    seen = Ends(world.state.axis)
    for job, priority in (("above", 118), ("below", 101)):
        world.job(job, cpu=1000, priority=priority).place(job, 0, on="m1")
        ended = events.TaskEnded(
            job_id=world.jobs[job].job_id, index=0, machine_id=world.id_of("m1"), incarnation=1, how="finished"
        )
        seen.observe(world.state, ended, 1000.0)
    world.job("a", cpu=3500, priority=110)
    why = verdict(world, explainer=Explainer(seen=seen), now=1060.0)
    assert why.expected is not None
    assert why.expected.ends == 1


def test_the_least_bound_that_would_do_is_reported() -> None:
    world = World().machine("m1", rack="r1").machine("m2", rack="r2").machine("m3", rack="r2")
    world.job("a", needs(max_per_rack=1, cpu=100), tasks=4)
    world.place("a", 0, on="m1").place("a", 1, on="m2").place("a", 2, on="m3")
    (change,) = verdict(world).changes
    assert (change.subject, change.to, change.machines) == ("max-per-rack", 2, 1)


@pytest.mark.parametrize("ahead", [0, 3, 12])
def test_the_actual_start_lies_in_the_range_in_most_queues(ahead: int) -> None:
    """Simulate 200 queues with twenty servers and exponential run times.

    The predicted range must contain the actual start in at least three of four queues.
    """
    inside = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        servers = [float(t) for t in rng.exponential(100.0, size=20)]
        heapq.heapify(servers)
        window, ends = 300.0, 0
        while servers[0] < window:
            heapq.heapreplace(servers, servers[0] + float(rng.exponential(100.0)))
            ends += 1
        for _ in range(ahead):
            heapq.heapreplace(servers, servers[0] + float(rng.exponential(100.0)))
        start = servers[0] - window
        told = expected_start(ends=ends, room=float(ends), seconds=window, ahead=(ahead, ahead))
        assert told.low_s is not None
        assert told.high_s is not None
        inside += told.low_s <= start <= told.high_s
    assert inside >= 150


def test_a_range_widens_with_less_data_and_more_ahead() -> None:
    def span(ends: int, ahead: tuple[float, float]) -> tuple[float, float]:
        told = expected_start(ends=ends, room=float(ends), seconds=60.0 * ends, ahead=ahead)
        assert told.low_s is not None
        assert told.high_s is not None
        return told.low_s, told.high_s

    few, many = span(2, (0, 0)), span(100, (0, 0))
    assert few[0] < many[0] < many[1] < few[1]
    assert span(100, (0, 10))[1] > many[1]
    assert span(100, (0, 10))[0] == many[0]
    assert expected_start(ends=0, room=0.0, seconds=60.0, ahead=(0, 0)).basis is Basis.NO_HISTORY


# --- conforming shapes (§2.6)


def test_conforming_shapes_fit_once_more_and_leave_nothing_stranded() -> None:
    capacity = np.array([vector(cpu=16_000, ram=64 * GIB)] * 3 + [vector(cpu=8000, ram=32 * GIB)])
    kinds = platforms_of(capacity)
    number = np.bincount(kinds.of)
    told = conforming(vector(cpu=9000, ram=20 * GIB), kinds.capacity, number)
    assert (told.machines, told.asked and told.asked.per_machine) == (3, 1)
    assert told.one_more is not None
    assert (told.one_more.limit[0], told.one_more.limit[RAM], told.one_more.per_machine) == (8000, 20 * GIB, 2)
    assert told.one_more.in_all == 7
    assert told.fuller is not None
    assert told.fuller.limit[:2] == (16_000, 64 * GIB)


def test_a_shape_too_large_is_led_to_the_largest_that_fits() -> None:
    capacity = np.array([vector(cpu=8000, ram=32 * GIB), vector(cpu=4000, ram=64 * GIB)])
    kinds = platforms_of(capacity)
    told = conforming(vector(cpu=10_000, ram=16 * GIB), kinds.capacity, np.array([1, 1]))
    assert (told.machines, told.asked) == (0, None)
    assert told.one_more is not None
    assert (told.one_more.limit[:2], told.one_more.per_machine) == ((8000, 16 * GIB), 1)


def test_platforms_are_distinguished_exactly() -> None:
    rng = np.random.default_rng(3)
    capacity = rng.integers(0, 3, size=(200, 6)) * 2**40
    kinds = platforms_of(capacity)
    assert (kinds.capacity[kinds.of] == capacity).all()
    assert len({tuple(row) for row in kinds.capacity.tolist()}) == len(kinds.capacity)


# --- words


def test_told_in_the_readers_words_with_names_he_may_know() -> None:
    world = World().machine("m1", cpu=500).job("a", cpu=1000)
    told = format_why(verdict(world), hostnames={world.id_of("m1"): "m1"})
    assert any("The best candidate is m1" in note for note in told.notes)
    assert told.summary == "1 task can't be placed on any of 1 machine"
    assert len(told.cures) == 2


def test_a_borglet_that_is_too_old_is_explained_in_words() -> None:
    world = World().machine("m1", **{PROTOCOL: "1"}).machine("m2").job("web", needs(constraints=(SPEAKS,)))
    (why,) = world.plan().unplaced
    told = format_why(why)
    assert told.reasons == (
        "2 machines whose Borglet is too old for packages, root filesystems, networks or time limits of tasks",
    )
    assert told.cures.count("A task would fit with a newer Borglet on the machine (on 2 machines).") == 1
    assert world.machine("m1", **{PROTOCOL: "2"}).where(world.plan(), "web") == {0: "m1"}


# --- reasons that do not mislead


def test_a_resource_that_no_machine_has_comes_alone() -> None:
    world = World().machine("m1", cpu=500).machine("m2", cpu=500).machine("m3", state="down")
    why = verdict(world.job("a", needs(cpu=4000, accelerators=1000, constraints=(must("gpu", "=", "h100"),))))
    assert [(one.code, one.subject, one.machines, one.wanted) for one in why.ruled_out] == [
        (ReasonCode.NO_SUCH_RESOURCE, "accelerators", 3, 1000)
    ]
    assert (why.code, why.never, why.changes, why.shapes, why.nearest) == (
        ReasonCode.NO_SUCH_RESOURCE,
        True,
        (),
        None,
        None,
    )
    assert sentence(why) == (
        "1 task can't be placed: no machine of the cell has any accelerators. Remove accelerators from the request,"
        " or submit the job to a cell that has them."
    )


def test_a_resource_that_one_machine_has_is_reported_as_before() -> None:
    world = World().machine("m1").machine("m2", accelerators=1000, state="down")
    assert verdict(world.job("a", accelerators=2000)).code != ReasonCode.NO_SUCH_RESOURCE


def test_nobody_is_advised_to_give_a_constraint_up_while_tasks_crash() -> None:
    world = World().machine("m1", zone="a").machine("m2", zone="b")
    world.job("a", needs(constraints=(must("zone", "=", "a"),)))
    assert verdict(world.place("a", 0, on="m1").job("b", needs(constraints=(must("zone", "=", "c"),)))).changes
    world.end("b", 0)
    why = verdict(world.evict("a", 0, gone=True, crashed=True))
    assert (why.ruled_out[0].code, why.changes) == (ReasonCode.CRASHED_PAIR, ())
    assert "Look at the log of the task, and correct the cause of its crashes." in sentence(why)
    assert "removed" not in sentence(why)
    assert "best candidate" not in sentence(why)


def test_a_plan_says_that_no_machine_has_a_resource() -> None:
    world = World().machine("m1").machine("m2")
    kinds = platforms_of(world.state.machines.capacity[:2])
    wanted = vector(cpu=1000, accelerators=1000)
    fit = format_fit(conforming(wanted, kinds.capacity, np.array([2])), tasks=1)
    assert fit == [
        "No machine of the cell has any accelerators.",
        "Remove accelerators from the request, or submit the job to a cell that has them.",
    ]
