"""Tests of which tasks leave a machine whose memory or disk runs short.

Tasks over their limit leave first, then non-prod tasks by rising priority. Prod tasks within limits never leave.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from quota.vocabulary.resources import CPU, DISK, RAM
from scheduling.core.reclamation.shortage import INCOMPRESSIBLE, MachineShortage, Occupants, relieve

CAPACITY = np.array([[10, 100, 100]] * 3)


def occupants(*tasks: tuple[int, int, dict[str, int]]) -> Occupants:
    """Return tasks on machines, each given as (machine, priority, usage and limit by name). Ids count from 1."""
    axes = (("cpu", CPU), ("ram", RAM), ("disk", DISK))
    usage = np.array([[facts.get(name, 0) for name, _ in axes] for _, _, facts in tasks]).reshape(-1, 3)
    limit = np.array([[facts.get(f"{name}_limit", 1000) for name, _ in axes] for _, _, facts in tasks])
    return Occupants(
        task_id=np.arange(1, len(tasks) + 1),
        machine=np.array([machine for machine, _, _ in tasks], dtype=np.int64),
        priority=np.array([priority for _, priority, _ in tasks], dtype=np.int64),
        prod=np.array([priority >= 120 for _, priority, _ in tasks]),
        usage=usage,
        limit=limit.reshape(-1, 3),
    )


def leaving(found: list[MachineShortage]) -> list[int]:
    return [victim.position for shortage in found for victim in shortage.victims]


def test_a_machine_with_enough_loses_nobody() -> None:
    assert relieve(occupants((0, 0, {"ram": 90})), CAPACITY, share=0.9) == []
    assert relieve(occupants(), CAPACITY, share=0.9) == []


def test_over_limit_tasks_leave_first_whatever_their_priority() -> None:
    there = occupants((0, 0, {"ram": 40}), (0, 370, {"ram": 60, "ram_limit": 50}))
    (shortage,) = relieve(there, CAPACITY, share=0.95)
    assert leaving([shortage]) == [1]
    assert shortage.victims[0].over
    assert (shortage.machine, shortage.resource, shortage.used, shortage.bound) == (0, RAM, 100, 95)


def test_then_non_prod_from_the_lowest_priority_and_no_more_than_needed() -> None:
    there = occupants((0, 110, {"ram": 30}), (0, 25, {"ram": 30}), (0, 0, {"ram": 3}), (0, 200, {"ram": 57}))
    assert leaving(relieve(there, CAPACITY, share=0.9)) == [1]  # enough without priority 0, which stays
    assert leaving(relieve(there, CAPACITY, share=1.0)) == [1]


def test_of_equal_priority_the_largest_leaves_so_that_few_do() -> None:
    there = occupants(*((0, 0, {"ram": size}) for size in (10, 30, 70)))
    assert leaving(relieve(there, CAPACITY, share=1.0)) == [2]


def test_prod_within_its_limits_never_leaves() -> None:
    there = occupants((0, 200, {"ram": 80}), (0, 360, {"ram": 40}), (0, 101, {"ram": 5}))
    (shortage,) = relieve(there, CAPACITY, share=1.0)
    assert leaving([shortage]) == [2]
    assert shortage.left_short == 20


def test_cpu_is_throttled_instead() -> None:
    assert relieve(occupants((0, 0, {"cpu": 500})), CAPACITY, share=1.0) == []


def test_disk_counts_too_and_who_left_for_ram_is_not_counted_twice() -> None:
    there = occupants(
        (2, 0, {"ram": 60, "disk": 60}), (2, 50, {"ram": 60, "disk": 60}), (1, 0, {"ram": 100, "disk": 100})
    )
    assert leaving(relieve(there, CAPACITY, share=1.0)) == [0]


def test_a_limit_of_zero_does_not_limit() -> None:
    there = occupants((0, 200, {"disk": 120, "disk_limit": 0}))
    (shortage,) = relieve(there, CAPACITY, share=1.0)
    assert shortage.victims == ()


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="share is 0"):
        relieve(occupants(), CAPACITY, share=0.0)


@pytest.mark.parametrize("seed", range(40))
def test_on_random_machines_the_rules_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    there = occupants(
        *(
            (
                int(rng.integers(0, 3)),
                int(rng.choice([0, 25, 101, 200, 360])),
                {
                    "ram": int(rng.integers(0, 60)),
                    "ram_limit": int(rng.integers(20, 90)),
                    "disk": int(rng.integers(0, 40)),
                    "disk_limit": int(rng.integers(0, 90)),
                },
            )
            for _ in range(12)
        )
    )
    found = relieve(there, CAPACITY, share=0.9)
    gone = leaving(found)
    assert len(set(gone)) == len(gone)
    for machine, resource in itertools.product(range(3), INCOMPRESSIBLE):
        on = [p for p in range(12) if there.machine[p] == machine]
        used = int(there.usage[on, resource].sum())
        rest = used - int(there.usage[[p for p in on if p in gone], resource].sum())
        told = [s for s in found if (s.machine, s.resource) == (machine, resource)]
        assert bool(told) == (used > 90)
        over = [p for p in on if there.usage[p, resource] > there.limit[p, resource] > 0]
        if told:
            (shortage,) = told
            assert shortage.left_short == max(0, rest - 90) or rest <= 90
            if rest > 90:  # all tasks that may leave have left
                may = [p for p in on if (p in over or not there.prod[p]) and there.usage[p, resource]]
                assert set(may) <= set(gone)
            for victim in shortage.victims:
                assert victim.over == (victim.position in over)
                assert victim.over or not there.prod[victim.position]
                # no task within limits leaves while one over its limits stays
                if not victim.over:
                    assert not [p for p in over if p not in gone and there.usage[p, resource] >= used - 90]
    for position in gone:  # no task leaves without need
        stay = [p for p in range(12) if there.machine[p] == there.machine[position] and p not in gone]
        with_it = there.usage[[*stay, position]].sum(axis=0)
        assert (with_it[[RAM, DISK]] > 90).any()
