"""Tests of the plan of the multi-host test, and of its report."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

from tests.ha.faults import FAULTS, WAYS
from tests.ha.planning import CONTROL, MACHINES, lane_of, order, planned
from tests.ha.report import markdown, summary

NAMES = list(FAULTS)


def test_a_run_of_ninety_minutes_has_500_faults_and_each_often_enough() -> None:
    plan = planned(NAMES, minutes=90.0, seed=7)
    assert len(plan) >= 500
    assert min(Counter(FAULTS[one.name][1] for one in plan)[way] for way in WAYS) >= 10
    assert min(Counter(one.name for one in plan)[name] for name in NAMES) >= 2


def test_the_seed_alone_gives_the_order() -> None:
    assert planned(NAMES, minutes=9.0, seed=7) == planned(NAMES, minutes=9.0, seed=7)
    assert planned(NAMES, minutes=9.0, seed=7) != planned(NAMES, minutes=9.0, seed=8)


def test_each_round_has_each_fault_of_its_lane_once() -> None:
    control = [name for name in NAMES if lane_of(name) == CONTROL]
    names = list(islice(order(NAMES, CONTROL, 7, rounds=True), 2 * len(control)))
    assert sorted(names[: len(control)]) == sorted(names[len(control) :]) == sorted(control)
    assert names[: len(control)] != names[len(control) :]


def test_two_faults_of_one_lane_never_overlap() -> None:
    for lane in (CONTROL, MACHINES):
        own = [one for one in planned(NAMES, minutes=20.0, seed=7) if one.lane == lane]
        assert all(earlier.at_s + earlier.takes_s <= later.at_s for earlier, later in pairwise(own))


def test_without_a_time_each_chosen_fault_comes_once_in_its_order() -> None:
    names = ["web-kill", "machine-cut", "redis-leader-kill"]
    assert Counter(one.name for one in planned(names, minutes=0.0, seed=7)) == Counter(names)
    assert list(order(names, CONTROL, 7, rounds=False)) == ["web-kill", "redis-leader-kill"]


ROWS = [
    {"seed": 7, "machines": 6},
    {"fault": "web-kill", "gap_s": {"web": 1.0}, "complete_s": 2.0, "survived": True},
    {"fault": "link-kill", "gap_s": {"web": 3.0}, "complete_s": 6.0, "survived": True},
    {"fault": "machine-cut", "gap_s": {}, "complete_s": 300.0, "survived": False},
]


def test_the_summary_counts_by_kind_and_by_target() -> None:
    found = summary(ROWS)
    assert (found["tried"], found["survived"]) == (3, 2)
    assert found["kinds"]["kill"] == {"tried": 2, "survived": 2, "complete_s": [4.0, 6.0], "web_gap_s": [2.0, 3.0]}
    assert found["kinds"]["cut"] == {"tried": 1, "survived": 0}
    assert found["targets"]["web"]["tried"] == 1


def test_the_report_is_a_table_with_the_violations() -> None:
    last = {
        "minutes": 1.5,
        **summary(ROWS),
        "requests": {"buy": {"acknowledged": 5, "unknown": 1}},
        "violations": ["lost: order 7"],
    }
    text = markdown([*ROWS, last])
    assert text.startswith("3 faults in 1.5 minutes, 2 survived; seed 7, 6 machines. Violations: 1.\n")
    assert "| kill | 2 | 2 | 4.0 / 6.0 |  |  | 2.0 / 3.0 |\n" in text
    assert "* buy: 5 acknowledged, 1 unknown\n" in text
    assert text.endswith("* lost: order 7\n")
