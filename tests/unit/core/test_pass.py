"""Tests of one scheduling pass: filters, scores, preemption and order."""

from __future__ import annotations

import pytest

from quota.vocabulary.bands import Band
from scheduling.core.explaining.smallest_changes import ANY
from scheduling.core.explaining.wording import sentence
from scheduling.core.vocabulary.policy import Policy, Search, Weights
from scheduling.core.vocabulary.reasons import ChangeKind, ReasonCode, RuledOut, SuggestedChange, Why
from tests.builders import GIB, World, must, needs, wish

ALL = Search(randomise=False)


def reasons(world: World) -> list[tuple[ReasonCode, str, int]]:
    (why,) = world.plan().unplaced
    return [(one.code, one.subject, one.machines) for one in why.ruled_out]


# --- filters


@pytest.mark.parametrize(
    "relation, value, fits",
    [
        ("=", "5.10", True),
        ("=", "5.1", False),
        ("!=", "5.1", True),
        ("<", "5.2", True),
        (">", "5.2", False),
        ("<=", "5.10", True),
        (">=", "5.10", True),
        (">=", "10", False),
        ("present", "", True),
        ("absent", "", False),
        ("<", "x", True),
    ],
)
def test_hard_constraints_rule_machines_out(relation: str, value: str, fits: bool) -> None:
    world = World().machine("m1", kernel="5.10").job("a", needs(constraints=(must("kernel", relation, value),)))
    assert bool(world.plan().assignments) is fits
    if not fits:
        assert reasons(world)[0][0] is ReasonCode.CONSTRAINT


@pytest.mark.parametrize(
    "relation, fits", [("absent", True), ("!=", True), ("=", False), ("present", False), ("<", False)]
)
def test_a_machine_without_the_attribute(relation: str, fits: bool) -> None:
    world = World().machine("m1").job("a", needs(constraints=(must("flash", relation, "1"),)))
    assert bool(world.plan().assignments) is fits


def test_facts_of_a_machine_are_attributes_too() -> None:
    world = World().machine("m1", rack="r1").machine("m2", rack="r2")
    world.job("a", needs(constraints=(must("rack", "=", "r2"),))).job(
        "b", needs(constraints=(must("hostname", "=", "m1"),))
    )
    plan = world.plan()
    assert (world.where(plan, "a"), world.where(plan, "b")) == ({0: "m2"}, {0: "m1"})


@pytest.mark.parametrize("state", ["draining", "down"])
def test_machines_that_are_not_up_receive_nothing(state: str) -> None:
    world = World().machine("m1").job("a").machine_state("m1", state)
    assert reasons(world) == [(ReasonCode.MACHINE_STATE, "", 1)]
    assert world.machine_state("m1", "up").plan().assignments


def test_a_resource_that_lacks_is_named_with_the_smallest_change() -> None:
    world = World().machine("m1", cpu=4000).machine("m2", cpu=2500).job("a", cpu=5000)
    (why,) = world.plan().unplaced
    assert why.ruled_out == (RuledOut(ReasonCode.RESOURCE, "cpu", 2, wanted=5000, largest=4000),)
    assert why.changes == (SuggestedChange("cpu", 4000, 1),)
    assert why.never


@pytest.mark.parametrize(
    "bound, code",
    [("max_per_rack", ReasonCode.MAX_PER_RACK), ("max_per_power_domain", ReasonCode.MAX_PER_POWER_DOMAIN)],
)
def test_bounds_per_domain(bound: str, code: ReasonCode) -> None:
    world = World().machine("m1", rack="r1", power="p1").machine("m2", rack="r1", power="p1")
    world.job("a", needs(**{bound: 1}), tasks=2)
    plan = world.plan()
    assert len(plan.assignments) == 1
    (why,) = plan.unplaced
    assert [one.code for one in why.ruled_out] == [code]
    assert why.changes == (SuggestedChange(code.value, 2, 2, kind=ChangeKind.RAISE),)


def test_one_task_per_machine_counts_those_that_run() -> None:
    world = World().machine("m1").machine("m2").job("a", needs(max_per_machine=1), tasks=3).place("a", 1, on="m2")
    plan = world.plan()
    assert world.where(plan, "a") == {0: "m1"}
    assert plan.unplaced[0].ruled_out == (RuledOut(ReasonCode.MAX_PER_MACHINE, "", 2, wanted=1),)


def test_a_crashed_pair_is_avoided_until_its_time_is_over() -> None:
    world = World().machine("m1").job("a").place("a", 0, on="m1").evict("a", 0, gone=True, crashed=True)
    assert reasons(world) == [(ReasonCode.CRASHED_PAIR, "", 1)]
    assert world.plan(now=world.time + Policy().crashed_pair_s + 1).assignments
    assert World().machine("m1").job("a").plan().assignments


def test_a_cell_without_machines_says_so() -> None:
    world = World().job("a")
    assert reasons(world) == [(ReasonCode.NO_MACHINES, "", 0)]


# --- limits and reservations (§5.5)


def test_prod_does_not_use_reclaimed_resources_and_batch_does() -> None:
    world = World().machine("m1", cpu=4000).job("prod", cpu=4000, tenant=1).place("prod", 0, on="m1")
    world.reserve("prod", 0, cpu=1000, ram=GIB)
    world.job("more", cpu=1000, priority=200).job("batch", cpu=3000, priority=110)
    plan = world.plan()
    assert world.where(plan, "batch") == {0: "m1"}
    assert world.where(plan, "more") == {}


def test_footnote_4_lets_batch_in_prod_use_them() -> None:
    world = World().machine("m1", cpu=4000).job("prod", cpu=4000).place("prod", 0, on="m1")
    world.reserve("prod", 0, cpu=1000, ram=GIB).job("mr", cpu=1000, priority=200, latency_sensitive=False)
    assert not world.plan().assignments
    assert world.plan(Policy(batch_in_prod_by_reservation=True)).assignments
    assert not world.plan().assignments, "the rule is the policy's, not the state's"


def test_bands_are_the_policys() -> None:
    bands = (Band("all", 0, 450, prod=False, preempts_within=True),)
    world = World().machine("m1", cpu=1000).job("low", priority=150).place("low", 0, on="m1").job("high", priority=200)
    assert not world.plan().assignments
    assert world.plan(Policy(bands=bands)).assignments[0].victims


# --- order


def test_higher_priorities_come_first() -> None:
    world = World().machine("m1", cpu=1000).job("low", priority=110).job("high", priority=115)
    assert [a.job_id for a in world.plan().assignments] == [world.jobs["high"].job_id]


def test_a_huge_job_does_not_block_the_head_of_the_line() -> None:
    world = World().machine("m1", cpu=4000)
    world.job("huge", tasks=50, tenant=1).job("other", tenant=2).job("mine", tenant=1)
    plan = world.plan()
    assert world.where(plan, "other")
    assert world.where(plan, "mine")
    assert len(world.assignments(plan, "huge")) == 2
    (why,) = plan.unplaced
    assert why.tasks == ((world.jobs["huge"].job_id, 48),)


def test_ahead_counts_pending_tasks_that_are_tried_first() -> None:
    world = World().machine("m1", cpu=500).job("a", tasks=3, priority=300).job("b", cpu=2000, priority=200)
    assert [why.ahead for why in world.plan().unplaced] == [0, 3]


def test_a_pass_ends_at_its_bound_and_judges_nobody_it_did_not_try() -> None:
    world = World().machine("m1").job("a", tasks=5)
    plan = world.plan(Policy(max_assignments=2))
    assert len(plan.assignments) == 2
    assert plan.unplaced == ()


# --- scorers


def test_the_hybrid_leaves_no_stranded_resources() -> None:
    world = World().machine("lopsided", cpu=8000, ram=8 * GIB).machine("even", cpu=8000, ram=8 * GIB)
    world.job("x", cpu=6000, ram=GIB).place("x", 0, on="lopsided")
    world.job("a", cpu=1000, ram=6 * GIB)
    assert world.where(world.plan(Policy(search=ALL)), "a") == {0: "lopsided"}


@pytest.mark.parametrize("scorer, chosen", [("best-fit", "used"), ("e-pvm", "empty")])
def test_best_fit_packs_and_e_pvm_spreads(scorer: str, chosen: str) -> None:
    world = World().machine("empty").machine("used").job("x", cpu=4000, ram=16 * GIB).place("x", 0, on="used").job("a")
    assert world.where(world.plan(Policy(search=ALL, scorer=scorer)), "a") == {0: chosen}


def test_tasks_of_a_job_spread_over_machines_and_racks() -> None:
    world = World()
    for number, rack in enumerate(("r1", "r1", "r2", "r2")):
        world.machine(f"m{number}", rack=rack)
    world.job("a", tasks=2, cpu=100, ram=1)
    racks = {world.machines[name].rack for name in world.where(world.plan(Policy(search=ALL)), "a").values()}
    assert racks == {"r1", "r2"}


def test_soft_constraints_are_wishes() -> None:
    world = World().machine("m1").machine("m2", flash="yes")
    world.job("a", needs(constraints=(wish("flash", "present"),)))
    assert world.where(world.plan(Policy(search=ALL)), "a") == {0: "m2"}
    world.machine_state("m2", "down")
    assert world.where(world.plan(), "a") == {0: "m1"}


def test_a_restarted_task_goes_back_to_where_its_packages_are() -> None:
    for name in ("m1", "m2", "m3"):
        world = World().machine("m1").machine("m2").machine("m3").job("a").place("a", 0, on=name).evict("a", 0)
        plan = world.plan(Policy(search=Search(sample=1)))
        assert world.where(plan, "a") == {0: name}
        assert plan.assignments[0].score["packages"] == Weights().packages


def test_high_and_low_priority_are_mixed() -> None:
    world = World().machine("prod").machine("batch")
    world.job("x", priority=200, cpu=4000, ram=16 * GIB).place("x", 0, on="prod")
    world.job("y", priority=110, cpu=4000, ram=16 * GIB).place("y", 0, on="batch")
    world.job("a", priority=110)
    weights = Weights(mixing=0.5)
    assert world.where(world.plan(Policy(search=ALL, weights=weights)), "a") == {0: "prod"}


# --- preemption


def test_nobody_is_preempted_while_there_is_room_anywhere() -> None:
    world = World().machine("m1", cpu=1000).machine("m2", cpu=1000).job("low", priority=0).place("low", 0, on="m1")
    (assignment,) = world.job("high").plan(Policy(search=Search(sample=1))).assignments
    assert assignment.victims == ()
    assert assignment.machine_id == world.id_of("m2")


def test_victims_are_few_and_low_and_the_unnecessary_are_spared() -> None:
    world = World().machine("m1", cpu=4000)
    world.job("free", priority=0, cpu=500).place("free", 0, on="m1")
    world.job("small", priority=25, cpu=500).place("small", 0, on="m1")
    world.job("large", priority=110, cpu=3000).place("large", 0, on="m1")
    (assignment,) = world.job("high", cpu=3000).plan().assignments
    assert assignment.victims == ((world.jobs["large"].job_id, 0),)
    world.job("higher", cpu=800, priority=300)
    assert world.assignments(world.plan(), "higher")[0].victims != ()


def test_the_machine_with_the_lowest_victims_is_chosen() -> None:
    world = World().machine("m1", cpu=1000).machine("m2", cpu=1000)
    world.job("batch", priority=110).place("batch", 0, on="m1").job("free", priority=0).place("free", 0, on="m2")
    assert world.where(world.job("high").plan(), "high") == {0: "m2"}


@pytest.mark.parametrize(
    "high, low, may",
    [(300, 200, False), (370, 360, False), (360, 200, True), (110, 105, True), (25, 0, True), (110, 110, False)],
)
def test_never_inside_production_or_monitoring(high: int, low: int, may: bool) -> None:
    world = World().machine("m1", cpu=1000).job("low", priority=low).place("low", 0, on="m1")
    assert bool(world.job("high", priority=high).plan().assignments) is may


def test_room_that_a_preemption_leaves_over_is_used() -> None:
    world = World().machine("m1", cpu=4000).job("low", priority=0, cpu=4000).place("low", 0, on="m1")
    plan = world.job("a", cpu=1000, tenant=1).job("b", cpu=1000, tenant=2).plan()
    assert [len(a.victims) for a in plan.assignments] == [1, 0]


@pytest.mark.parametrize("search", [ALL, Search(sample=1)])
def test_nobody_else_is_preempted_while_such_room_is_left(search: Search) -> None:
    """Place tasks after a preemption that left free capacity. They must use it and preempt nothing else."""
    world = World().machine("m1", cpu=4000).machine("m2", cpu=1000).machine("m3", cpu=1000)
    # All pending tasks are small beside this machine, so they keep their turns.
    world.machine("large", cpu=1_000_000).job("full", cpu=1_000_000, priority=300).place("full", 0, on="large")
    world.job("low", tasks=3, cpu=2000, priority=0, disruption_budget=1)
    world.place("low", 0, on="m1").place("low", 1, on="m1")
    world.job("k", tasks=2, priority=25).place("k", 0, on="m2").place("k", 1, on="m3")
    plan = world.job("small", tasks=2, tenant=1).job("big", cpu=3000, tenant=2).plan(Policy(search=search))
    assert [len(a.victims) for a in plan.assignments] == [1, 2, 0]
    assert world.where(plan, "small")[1] == "m1"


# --- the three techniques


@pytest.mark.parametrize(
    "search", [ALL, Search(caching=False), Search(classes=False), Search(caching=False, classes=False, randomise=False)]
)
def test_each_technique_can_be_switched_off(search: Search) -> None:
    world = World().machine("m1", cpu=4000).machine("m2", cpu=4000).job("a", tasks=10)
    plan = world.plan(Policy(search=search))
    assert len(plan.assignments) == 8
    assert sum(count for why in plan.unplaced for _, count in why.tasks) == 2


def test_classes_are_shared_by_jobs_and_caches_hit() -> None:
    world = World()
    for number in range(20):
        world.machine(f"m{number}")
    for number in range(20):
        world.job(f"j{number}", tenant=number)
    stats = world.plan().stats
    assert (stats.classes, stats.placed) == (1, 20)
    assert stats.cache_hits > stats.cache_misses


# --- sentences


def test_sentences_say_what_was_wanted_found_and_what_to_do() -> None:
    world = World().machine("m1", cpu=2500).machine("m2", cpu=4000, state="down").job("web", cpu=4000)
    (why,) = world.plan().unplaced
    assert sentence(why, name="web") == (
        "1 task of job web can't be placed on any of 2 machines: 1 machine not up; 1 machine with less than "
        "4 cores of cpu free (at most 2.5 cores). A task would fit with at most 2.5 cores of cpu (on 1 machine). "
        "The most common kind of machine (1 machine) can hold 1 of these tasks; with a limit of 2 "
        "cores of cpu, it could hold 2. "
        "The best candidate is machine 1: 2.5 cores of cpu left, 1.5 cores missing. "
        "The start time cannot be estimated: no task has ended recently on machines that could hold the task."
    )


def test_a_wish_for_an_attribute_nobody_has() -> None:
    world = World().machine("m1").job("web", needs(constraints=(must("gpu", "=", "a100"),)))
    (why,) = world.plan().unplaced
    (demand,) = world.jobs["web"].tasks[0].requirement.constraints
    assert why.changes == (SuggestedChange("gpu", ANY, 1, kind=ChangeKind.DROP, constraint=demand),)
    assert "1 machine without gpu = a100" in sentence(why)
    assert "with the constraint gpu = a100 removed (on 1 machine)" in sentence(why)


@pytest.mark.parametrize("code", ReasonCode)
def test_every_reason_has_a_sentence(code: ReasonCode) -> None:
    subject = "cpu" if code in (ReasonCode.RESOURCE, ReasonCode.PORTS) else "x"
    why = Why(tasks=((1, 1),), machines=1, ruled_out=(RuledOut(code, subject, 1, 2, 1),), never=True)
    assert "can't be placed" in sentence(why)
