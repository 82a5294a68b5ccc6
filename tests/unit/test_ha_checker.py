"""Tests of the checker of the multi-host test: an honest history passes, and each planted violation is caught."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.ha.checker import (
    LATE_PASSES,
    NAME_BOUND_S,
    RECONNECTION_S,
    Evidence,
    Holding,
    JobRow,
    JournalRow,
    Lookup,
    PassRow,
    Placement,
    Run,
    TaskRow,
    check,
)
from tests.ha.evidence import placements
from tests.ha.history import Action, History, Outcome, Request, read

AT = 1_000.0


def request(action: Action, name: str, began: float, **fields: object) -> Request:
    given = {"client": 1, "outcome": Outcome.ACKNOWLEDGED, "ended": began + 1.0, **fields}
    return Request(action=action, name=name, began=began, **given)  # type: ignore[arg-type]


# Job `web` is submitted with one task, and updated to two. Job `gone` is killed. An order is bought.
HONEST = Evidence(
    at=AT,
    revision=4,
    requests=[
        request(Action.SUBMIT, "web", 10.0, uid="u1", version=1, tasks=1),
        request(Action.UPDATE, "web", 20.0, uid="u1", version=2, tasks=2),
        request(Action.SUBMIT, "gone", 30.0, uid="u2", version=1, tasks=1),
        request(Action.KILL, "gone", 40.0, uid="u2"),
        request(Action.BUY, "key-1", 50.0, order=7),
        request(Action.BUY, "key-2", 60.0, outcome=Outcome.REJECTED),
    ],
    journal=[
        JournalRow(1, 0, "cell.lease", host="c1"),
        JournalRow(2, 0, "job.submitted", job="web"),
        JournalRow(2, 1, "task.placed", task=(1, 0), incarnation=1),
        JournalRow(3, 0, "task.placed", task=(1, 0), incarnation=2),
        JournalRow(3, 1, "task.placed", task=(1, 1), incarnation=1),
        JournalRow(3, 2, "cell.lease", host="c2"),
        JournalRow(4, 0, "job.submitted", job="gone"),
    ],
    passes=[PassRow("c1", 1), PassRow("c1", 2), PassRow("c2", 3), *[PassRow("c1", 3)] * LATE_PASSES],
    jobs={
        "web": JobRow("u1", "running", 2, [TaskRow(0, "running", 2), TaskRow(1, "running", 1)]),
        "gone": JobRow("u2", "dead", 1, [TaskRow(0, "dead", 1)]),
    },
    orders={7: "key-1", 8: ""},
    holdings=[Holding("sold at production", (10, 0), (10, 5))],
    runs=[Run("web", 0, 1, 11.0, 22.0), Run("web", 0, 2, 21.0, AT), Run("web", 1, 1, 21.0, AT - 1)],
    placements=[
        Placement("web", 0, "10.0.0.1", 11.0, 20.0),
        Placement("web", 0, "10.0.0.2", 20.0, math.inf),
        Placement("gone", 0, "10.0.0.1", 31.0, 40.0),
    ],
    lookups=[
        Lookup(15.0, "c1", "web", 0, "10.0.0.1"),
        Lookup(20.0 + NAME_BOUND_S, "c2", "web", 0, "10.0.0.1"),
        Lookup(AT, "c3", "web", 0, "10.0.0.2"),
    ],
    reported=[],
)


def test_an_honest_history_passes() -> None:
    assert check(HONEST) == []


def without(action: Action, name: str) -> list[Request]:
    return [one for one in HONEST.requests if (one.action, one.name) != (action, name)]


PLANTED = {
    "an acknowledged job is missing": ("lost", {"jobs": {"gone": HONEST.jobs["gone"]}}),
    "another job has its name": ("lost", {"jobs": {**HONEST.jobs, "gone": JobRow("u9", "dead", 1)}}),
    "an acknowledged update is missing": (
        "lost",
        {"jobs": {**HONEST.jobs, "web": replace(HONEST.jobs["web"], version=1)}},
    ),
    "an acknowledged order is missing": ("lost", {"orders": {8: ""}}),
    "a submission had its effect twice": (
        "twice",
        {"journal": [*HONEST.journal, JournalRow(4, 1, "job.submitted", job="web")]},
    ),
    "an order was placed twice": ("twice", {"orders": {7: "key-1", 9: "key-1"}}),
    "an incarnation was placed twice": (
        "twice",
        {"journal": [*HONEST.journal, JournalRow(4, 1, "task.placed", task=(1, 0), incarnation=2)]},
    ),
    "a revision is missing": ("revision", {"journal": [row for row in HONEST.journal if row.revision != 3]}),
    "the last revision is missing": ("revision", {"revision": 5}),
    "the journal goes beyond the cell": ("revision", {"revision": 3}),
    "an event within a revision is missing": ("revision", {"journal": [*HONEST.journal[:3], *HONEST.journal[4:]]}),
    "a master goes on without the lease": ("lease", {"passes": [PassRow("c1", 3)] * (LATE_PASSES + 1)}),
    "a second master of one scheduler goes on": (
        "lease",
        {
            "journal": [*HONEST.journal, JournalRow(4, 1, "cell.lease", host="c1", scheduler="batch")],
            "passes": [PassRow("c1", 4), PassRow("c2", 4, "batch"), *[PassRow("c1", 4)] * LATE_PASSES],
        },
    ),
    "two tasks on one machine have one port": (
        "port",
        {
            "journal": [
                *HONEST.journal,
                JournalRow(4, 1, "task.placed", task=(2, 0), incarnation=1, machine=3, ports=[80]),
                JournalRow(4, 2, "task.placed", task=(2, 1), incarnation=1, machine=3, ports=[80]),
            ]
        },
    ),
    "a name points to an ended task": ("name", {"lookups": [Lookup(41.0 + NAME_BOUND_S, "c1", "gone", 0, "10.0.0.1")]}),
    "a name points to the machine before": (
        "name",
        {"lookups": [Lookup(21.0 + NAME_BOUND_S, "c1", "web", 0, "10.0.0.1")]},
    ),
    "an old incarnation runs on": (
        "two-runs",
        {"runs": [Run("web", 0, 1, 11.0, 21.5 + RECONNECTION_S), *HONEST.runs[1:]]},
    ),
    "an old incarnation runs on after its machine was cut off": (
        "two-runs",
        {"runs": [Run("web", 0, 1, 11.0, 201.0 + RECONNECTION_S), *HONEST.runs[1:]], "cuts": [(15.0, 200.0)]},
    ),
    "more quota is sold than there is": ("quota", {"holdings": [Holding("sold at production", (10, 6), (10, 5))]}),
    "validate or ledger_check found an error": ("invariant", {"reported": ["account 3 has the wrong balance"]}),
    "a killed job lives": ("spec", {"jobs": {**HONEST.jobs, "gone": JobRow("u2", "running", 1, [TaskRow(0, "x", 1)])}}),
    "a task was never placed": (
        "spec",
        {
            "jobs": {
                **HONEST.jobs,
                "web": JobRow("u1", "running", 2, [TaskRow(0, "running", 2), TaskRow(1, "pending", 0)]),
            }
        },
    ),
    "a task runs only on paper": ("spec", {"runs": HONEST.runs[:2]}),
    "a task of an ended job runs": ("spec", {"runs": [*HONEST.runs, Run("gone", 0, 1, 31.0, AT)]}),
    "a job has too few tasks": (
        "spec",
        {
            "jobs": {**HONEST.jobs, "web": JobRow("u1", "running", 2, [TaskRow(0, "running", 2)])},
            "runs": HONEST.runs[:2],
        },
    ),
}


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_violation_is_caught(plant: str) -> None:
    kind, fields = PLANTED[plant]
    found = check(replace(HONEST, **fields))  # type: ignore[arg-type]
    assert {violation.kind for violation in found} >= {kind}
    assert {violation.kind for violation in found} <= {kind, "spec"}, "no other check complains"


def test_two_incarnations_may_overlap_while_a_machine_is_cut_off() -> None:
    runs = [Run("web", 0, 1, 11.0, 199.0 + RECONNECTION_S), *HONEST.runs[1:]]
    assert check(replace(HONEST, runs=runs, cuts=[(15.0, 200.0)])) == []
    assert check(replace(HONEST, runs=runs, cuts=[(300.0, 400.0)])) != [], "a later cut does not explain it"


def test_a_port_may_have_a_second_holder_after_the_first_has_left() -> None:
    for leaves in (JournalRow(4, 2, "task.evicted", task=(2, 0)), JournalRow(4, 2, "job.ended", task=(2, -1))):
        rows = [
            JournalRow(4, 1, "task.placed", task=(2, 0), incarnation=1, machine=3, ports=[80]),
            leaves,
            JournalRow(4, 3, "task.placed", task=(5, 0), incarnation=1, machine=3, ports=[80]),
        ]
        assert check(replace(HONEST, journal=[*HONEST.journal, *rows])) == []


def test_names_are_compared_with_the_error_of_the_clock() -> None:
    late = [Lookup(41.0 + NAME_BOUND_S, "c1", "gone", 0, "10.0.0.1")]
    assert check(replace(HONEST, lookups=late)) != []
    assert check(replace(HONEST, lookups=late, clock_error_s=2.0)) == []


def test_a_request_without_an_answer_may_have_its_effect_or_not() -> None:
    kill = request(Action.KILL, "gone", 40.0, outcome=Outcome.UNKNOWN)
    assert check(replace(HONEST, requests=[*without(Action.KILL, "gone"), kill])) == []
    live = JobRow("u2", "running", 1, [TaskRow(0, "running", 1)])
    runs = [*HONEST.runs, Run("gone", 0, 1, 31.0, AT)]
    unharmed = replace(HONEST, requests=[*without(Action.KILL, "gone"), kill], runs=runs)
    assert check(replace(unharmed, jobs={**HONEST.jobs, "gone": live})) == []


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    for one in HONEST.requests:
        history.append(one)
    assert list(read(history.path)) == HONEST.requests
    assert msgspec.json.decode(history.path.read_bytes().splitlines()[0])["action"] == "submit"


def test_the_end_of_an_earlier_incarnation_does_not_end_the_next_placement() -> None:
    events = [("m1", "task.placed", 10.0), ("m1", "task.evicted", 12.0), ("m2", "task.placed", 13.0)]
    events += [("m1", "task.gone", 14.0), ("m2", "task.evicted", 200.0)]
    rows = [(7, "web", 0, address, kind, at) for address, kind, at in events]
    assert list(placements(rows)) == [Placement("web", 0, "m1", 10.0, 12.0), Placement("web", 0, "m2", 13.0, 200.0)]
