"""Tests of which tasks end when memory or disk runs out: in the order of §6.2, and no more than needed."""

from __future__ import annotations

import random

from borglet.messages import Usage
from borglet.pressure.memory_reserve import GIB, AvailableMemory, grants, is_tight, reserve, shortage_of
from borglet.pressure.victims import Shortage, victims
from tests.real.runtimes.machine import MIB, key
from tests.unit.borglet_pressure.machine import SLACK, batch, server, tenant


def ended(excess_mib: int, *tenants: object, leaving: set[object] = frozenset()) -> list[int]:  # type: ignore[assignment]
    found = victims(Shortage("ram", excess_mib * MIB, "short"), tenants, leaving)  # type: ignore[arg-type]
    return [victim.key.index for victim in found]


def test_a_task_that_is_over_its_limit_goes_first_whatever_its_priority() -> None:
    prod_over = server(0, ram=150, slack=SLACK)
    assert ended(20, prod_over, batch(1, ram=90, priority=0)) == [0]
    assert ended(200, prod_over, batch(1, ram=90, priority=0)) == [0, 1]


def test_then_non_prod_from_the_lowest_priority_up_the_largest_first() -> None:
    tasks = [batch(0, ram=10, priority=50), batch(1, ram=90, priority=110), batch(2, ram=40, priority=50)]
    assert ended(30, *tasks) == [2]
    assert ended(45, *tasks) == [2, 0]
    assert ended(60, *tasks) == [1]  # the two of lower priority together are not enough, and task 1 alone is
    assert ended(100, *tasks) == [2, 1]


def test_prod_within_its_limits_never_ends() -> None:
    assert ended(10_000, server(0, ram=100), server(1, ram=99), batch(2, ram=30)) == [2]
    assert ended(10_000, server(0, ram=100)) == []


def test_a_task_that_is_ending_already_counts_and_one_that_holds_nothing_is_spared() -> None:
    tasks = [batch(0, ram=50, priority=0), batch(1, ram=50, priority=1), batch(2, ram=0, priority=0)]
    assert ended(40, *tasks, leaving={key(0)}) == []
    assert ended(60, *tasks, leaving={key(0)}) == [1]


def test_any_machine_is_relieved_by_the_fewest_of_the_right_ones() -> None:
    """Draw random tasks and a shortage. Enough is freed if possible, and no task ends without need.

    Prod tasks within their limits must not end.
    """
    rng = random.Random(7)
    for _ in range(300):
        tasks = [
            tenant(
                index,
                usage=Usage(ram_bytes=rng.randrange(200) * MIB),
                limit={"ram": 100 * MIB},
                priority=rng.choice((0, 110, 200)),
                prod=rng.random() < 0.5,
            )
            for index in range(rng.randrange(8))
        ]
        excess = rng.randrange(1, 500) * MIB
        found = {victim.key for victim in victims(Shortage("ram", excess, "short"), tasks, set())}
        may = [t for t in tasks if (not t.task.prod or t.usage.ram_bytes > 100 * MIB) and t.usage.ram_bytes >= MIB]
        assert found <= {t.key for t in may}
        freed = sum(t.usage.ram_bytes for t in tasks if t.key in found)
        assert freed >= min(excess, sum(t.usage.ram_bytes for t in may))
        if freed >= excess:
            assert all(freed - t.usage.ram_bytes < excess for t in tasks if t.key in found)


def test_figures_are_reported() -> None:
    room = AvailableMemory(8 * GIB, 50 * MIB)
    shortage = shortage_of("ram", room, used=100)
    assert shortage is not None
    (victim,) = victims(shortage, [batch(0, ram=150)], set())
    assert victim.detail == (
        "the machine ran out of memory: 50 MiB of 8192 MiB are left, and the Borglet keeps 163.8 MiB free;"
        " this task used 150 MiB, its limit is 100 MiB, and its priority is 110"
    )


def test_short_tight_and_plenty() -> None:
    kept = reserve(AvailableMemory(8 * GIB, 0))
    assert shortage_of("ram", AvailableMemory(8 * GIB, kept), 0) is None
    assert is_tight(AvailableMemory(8 * GIB, 2 * kept - 1), 0)
    assert not is_tight(AvailableMemory(8 * GIB, 2 * kept, stalled=0.1), 0)
    assert is_tight(AvailableMemory(8 * GIB, 2 * kept, stalled=0.11), 0)
    assert [reserve(AvailableMemory(total, 0)) // MIB for total in (GIB, 100 * GIB)] == [64, 1024]


def test_what_was_promised_to_the_cell_is_a_bound_too() -> None:
    room = AvailableMemory(8 * GIB, 6 * GIB, given=GIB)
    assert shortage_of("ram", room, used=GIB) is None
    beyond = shortage_of("ram", room, used=GIB + 300 * MIB)
    assert beyond is not None
    assert beyond.figures == "the machine ran out of memory: its tasks used 1324 MiB, and the machine offers 1024 MiB"
    assert beyond.excess_bytes > 300 * MIB
    assert is_tight(room, used=GIB)


def test_slack_gets_what_nobody_uses_and_nothing_when_memory_is_tight() -> None:
    room = AvailableMemory(8 * GIB, 4 * GIB)
    greedy, thrifty = batch(0, ram=300, slack=SLACK), batch(1, ram=20, slack=SLACK)
    found = grants(room, [greedy, thrifty, server(2, ram=90)], set())
    part = (4 * GIB - 2 * reserve(room)) // 2
    assert found.keys() == {key(0), key(1)}
    assert found[key(0)] - 300 * MIB in range(part, part + 17 * MIB)
    tight = AvailableMemory(8 * GIB, reserve(room))
    assert grants(tight, [greedy, thrifty], set()) == {key(0): 304 * MIB, key(1): 32 * MIB}
    assert grants(tight, [greedy, thrifty], {key(0)}).keys() == {key(1)}
