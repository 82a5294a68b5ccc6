"""Tests of machine pools in a pass: which machines the tasks of a tenant may use, and which ones they prefer."""

from __future__ import annotations

from scheduling.core.cell.pools import PoolRule, rules_for
from scheduling.core.explaining.explain import Explainer
from scheduling.core.explaining.unplaced_tasks import of_job
from scheduling.core.explaining.wording import sentence
from scheduling.core.placing.equivalence_classes import sort_into_groups
from scheduling.core.placing.queue import pending_in_order, pending_of
from scheduling.core.repacking.fitting_job import plan_for_job
from scheduling.core.repacking.repack_plan import RepackRules
from scheduling.core.trials.trial import Trial
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reasons import ReasonCode, Why
from scheduling.core.vocabulary.requirement import Constraint, Relation
from scheduling.core.vocabulary.trials import TrialGroup, TrialJob
from tests.builders import World, needs

BATCH = 110
OWN, OTHERS = "t01", "t02"


def two() -> World:
    """Return a world with the machine `m1` in the pool `gpu`, and `m2` in no pool."""
    return World().machine("m1", pool="gpu").machine("m2")


def pool(one: World, name: str = "gpu", *, tenants: tuple[str, ...] = (OWN,), **facts: object) -> World:
    facts.setdefault("dedicated", True)
    return one.send(events.PoolSet(pool=name, tenants=tenants, **facts))  # type: ignore[arg-type]


def on(one: World, plan: Plan, job: str) -> list[str]:
    return sorted(one.where(plan, job).values())


def classes(one: World) -> int:
    """Return how many groups of equal tasks the pending tasks form."""
    slots = pending_in_order(one.state.tasks, pending_of(one.state.tasks, now=one.time))
    return len(sort_into_groups(one.state, Policy(), slots, now=one.time).requirements)


def why(one: World, job: str) -> Why:
    (found,) = one.plan(explainer=Explainer()).unplaced
    return of_job(found, one.jobs[job].job_id)


def test_a_dedicated_pool_takes_only_tasks_of_its_tenants() -> None:
    one = pool(two()).job("others", tenant=2, cpu=8000, tasks=2)
    assert on(one, one.plan(), "others") == ["m2"]


def test_equal_tasks_of_different_tenants_are_in_different_groups() -> None:
    one = pool(two()).job("theirs", tenant=1, cpu=1000).job("others", tenant=2, cpu=1000)
    assert classes(one) == 2
    pool(one, deleted=True)
    assert classes(one) == 1


def test_a_tenant_that_must_use_a_pool_runs_nowhere_else() -> None:
    one = pool(two(), use="must").job("web", tenant=1, cpu=8000, tasks=2)
    assert on(one, one.plan(), "web") == ["m1"]
    free = pool(two(), use="may").job("web", tenant=1, cpu=8000, tasks=2)
    assert on(free, free.plan(), "web") == ["m1", "m2"]


def test_a_tenant_that_prefers_a_pool_uses_other_machines_when_it_is_full() -> None:
    one = pool(two(), use="prefer", dedicated=False)
    one.job("filler", tenant=2, cpu=4000).place("filler", 0, on="m2")
    one.job("web", tenant=1, cpu=1000, tasks=8)
    assert on(one, one.plan(), "web") == ["m1"] * 8, "although m2 is packed more tightly"
    one.schedule()
    one.job("more", tenant=1, cpu=1000)
    assert on(one, one.plan(), "more") == ["m2"]


def test_machines_of_a_preferred_pool_are_offered_wherever_they_are_in_a_large_cell() -> None:
    one = World()
    for number in range(300):
        one.machine(f"m{number}", **({"pool": "gpu"} if number in (50, 150, 250) else {}))
    pool(one, use="prefer", dedicated=False).job("web", tenant=1, cpu=4000, tasks=7).job("others", tenant=2, cpu=100)
    for seed in range(3):
        found = on(one, one.plan(seed=seed), "web")
        assert [found.count(name) for name in ("m50", "m150", "m250")] == [2, 2, 2], "the seventh finds no place there"
    one = World().machine("m1", pool="gpu").machine("m2").has("m2", "sha256:" + "a" * 64)
    pool(one, use="prefer", dedicated=False)
    one.job("web", tenant=1, cpu=1000, packages=(("sha256:" + "a" * 64, 100),))
    assert on(one, one.plan(), "web") == ["m1"], "also if another machine has the package"


def test_a_pool_that_is_not_dedicated_takes_all_tasks() -> None:
    one = pool(two(), dedicated=False).job("others", tenant=2, cpu=8000, tasks=2)
    assert on(one, one.plan(), "others") == ["m1", "m2"]


def test_no_task_preempts_others_in_a_pool_for_other_tenants() -> None:
    one = pool(World().machine("m1", pool="gpu"))
    one.job("low", tenant=1, cpu=8000, priority=0).place("low", 0, on="m1")
    one.job("high", tenant=2, cpu=4000, priority=200)
    assert one.plan().assignments == ()
    one.job("own", tenant=1, cpu=4000, priority=200)
    assert on(one, one.plan(), "own") == ["m1"]


def test_gangs_and_bookings_follow_pools() -> None:
    one = pool(two()).job("gang", tenant=2, cpu=8000, tasks=2, priority=BATCH, gang=True, max_run_s=300.0)
    plan = one.plan()
    assert (plan.assignments, plan.bookings) == ((), ()), "it may use only m2"
    one.send(events.PoolSet(pool="gpu", deleted=True))
    assert on(one, one.plan(), "gang") == ["m1", "m2"]


def test_trials_and_plans_of_repackings_follow_pools() -> None:
    one = pool(two())
    group = (TrialGroup(needs(cpu=8000), 2),)
    trial = Trial(one.state, Policy())
    placed = {name: trial.placed(TrialJob(group, BATCH, tenant=name), now=one.time).placed for name in (OWN, OTHERS)}
    assert placed == {OWN: 2, OTHERS: 1}
    one = pool(World().machine("m1", pool="gpu").machine("m2", pool="gpu"))
    one.job("a", tenant=1, cpu=5000, priority=BATCH, tasks=2).place("a", 0, on="m1").place("a", 1, on="m2")
    one.job("big", tenant=2, cpu=6000, priority=BATCH)
    rules = RepackRules(job_moves={one.jobs["a"].job_id: 9}, most_moves=9, most_priority=300)
    assert not plan_for_job(one.state, Policy(), rules, job_id=one.jobs["big"].job_id, now=one.time).reached


def test_the_reason_names_the_pool_and_no_change_of_the_job_is_suggested() -> None:
    one = pool(World().machine("m1", pool="gpu")).job("web", tenant=2, cpu=1000)
    found = why(one, "web")
    assert found.code == ReasonCode.DEDICATED_POOL
    (reason,) = found.ruled_out
    assert (reason.code, reason.subject, reason.machines) == (ReasonCode.DEDICATED_POOL, "gpu", 1)
    assert found.changes == ()
    text = sentence(found)
    assert "1 machine in the pool gpu, which is dedicated to other tenants" in text
    assert "Or ask an SRE of the cell for more machines that jobs of the tenant may use." in text


def test_the_reason_of_a_tenant_that_must_use_a_full_pool_names_both() -> None:
    one = pool(two(), use="must")
    one.job("first", tenant=1, cpu=8000).place("first", 0, on="m1").job("web", tenant=1, cpu=1000)
    reasons = {reason.code: (reason.subject, reason.machines) for reason in why(one, "web").ruled_out}
    assert reasons[ReasonCode.OUTSIDE_POOL] == ("gpu", 1)
    assert reasons[ReasonCode.RESOURCE] == ("cpu", 1)
    text = sentence(why(one, "web"))
    assert "1 machine outside of the pool gpu, in which all jobs of the tenant have to run" in text


def test_a_constraint_of_a_job_on_the_pool_stays_a_constraint() -> None:
    one = two().job("web", cpu=8000, tasks=2, constraints=(Constraint("pool", Relation.EQUAL, "gpu"),))
    assert on(one, one.plan(), "web") == ["m1"]
    one.commit(one.plan().assignments)
    assert any(reason.code is ReasonCode.CONSTRAINT for reason in why(one, "web").ruled_out)


def test_rules_are_those_of_all_pools_by_name() -> None:
    pools = [
        events.PoolSet(pool="a", tenants=("x",), dedicated=True, use="must"),
        events.PoolSet(pool="b", tenants=("x", "y"), use="prefer"),
        events.PoolSet(pool="c", tenants=("y",), dedicated=True),
    ]
    assert [(rule.value, rule.excludes, rule.hard) for rule in rules_for(pools, "x")] == [
        ("a", False, True),
        ("b", False, False),
        ("c", True, True),
    ]
    assert [rule.value for rule in rules_for(pools, "z")] == ["a", "c"]
    assert PoolRule("pool", Relation.EQUAL, "a") != Constraint("pool", Relation.EQUAL, "a")
