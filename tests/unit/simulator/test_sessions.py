"""Tests of simulation sessions: steps, conditions, branches, questions, and the process that serves borgctl."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quota.vocabulary.resources import CPU
from scheduling.simulator.questions.alternatives import what_if
from scheduling.simulator.questions.capacity import JobShape, evict, fit
from scheduling.simulator.questions.machines import drain, give_back, machines_of
from scheduling.simulator.sessions.changes import change
from scheduling.simulator.sessions.conditions import parse
from scheduling.simulator.sessions.service import SOCKET, SessionService, serve
from scheduling.simulator.sessions.session import Branch, Session
from scheduling.simulator.simulation import Simulation
from scheduling.simulator.workload import Workload
from tests.builders import GIB, vector
from tests.unit.simulator.small_cells import MACHINES, busy, job, machine, simulation


def position(one: Simulation) -> tuple[str, float, int]:
    return one.cell.journal.digest(), one.now, one.steps


@pytest.mark.parametrize(("unit", "number"), [("events", 3), ("passes", 3), ("seconds", 60)])
def test_a_step_back_and_forth_returns_to_the_same_state(unit: str, number: int) -> None:
    branch = Branch(busy(), every=50)
    branch.forwards(seconds=400.0)
    branch.forwards(**{unit: number})
    there = position(branch.simulation)
    branch.backwards(**{unit: number - 1})
    earlier = position(branch.simulation)
    assert earlier[2] < there[2]
    branch.forwards(**{unit: number - 1})
    assert position(branch.simulation)[0] == there[0]
    branch.backwards(**{unit: number - 1})
    assert position(branch.simulation)[0] == earlier[0]


def test_a_step_back_never_leaves_the_beginning_of_a_branch() -> None:
    session = Session(busy())
    main = session.branch("main")
    main.forwards(seconds=300.0)
    forked = session.fork("other", changes={"reclamation": "off"})
    begun = position(forked.simulation)
    forked.forwards(seconds=60.0)
    forked.backwards(seconds=5_000.0)
    assert position(forked.simulation) == begun
    assert forked.simulation.settings.cell.reclamation == "off"


def test_branches_differ_only_by_their_setting() -> None:
    session = Session(busy())
    session.branch("main").forwards(seconds=600.0)
    session.fork("same")
    session.fork("off", changes={"reclamation": "off"})
    for branch in session.branches.values():
        branch.forwards(seconds=600.0)
    assert all(first == second for _, first, second in session.diff("main", "same"))
    changed = {name: (first, second) for name, first, second in session.diff("main", "off")}
    assert changed["reservations changed"][0] > 0
    assert changed["tasks running, mean"][0] > changed["tasks running, mean"][1]
    with pytest.raises(LookupError, match="the branches are main, same, off"):
        session.diff("main", "wrong")
    with pytest.raises(ValueError, match="already exists"):
        session.fork("off")


def test_a_branch_runs_until_its_condition_holds() -> None:
    branch = Branch(busy())
    assert branch.until(parse("running >= 20 and placements > 5 or pending > 1000"), at_most_s=1_800.0)
    assert branch.simulation.cell.running >= 20
    steps = branch.simulation.steps
    branch.backwards(events=1)
    assert branch.simulation.steps < steps
    assert not branch.until(parse("running > 100000"), at_most_s=10.0)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "incomplete"),
        ("pending", "incomplete"),
        ("pending > many", "'many' is not a number"),
        ("waiting > 3", "the names are pending"),
        ("pending > 3 running < 2", "write `and` or `or`"),
        ("pending > 3 and", "incomplete"),
        ("__import__('os')", "cannot be read"),
        ("pending.real > 3", "cannot be read"),
    ],
)
def test_a_wrong_condition_is_rejected_with_the_reason(text: str, what: str) -> None:
    with pytest.raises(ValueError, match="condition") as error:
        parse(text)
    assert what in str(error.value)


def full(priority: int) -> Simulation:
    """Return twelve machines of 16 cores with eight tasks of 8 cores on them, of the given priority."""
    one = simulation([(0.0, msgspec.structs.replace(job(1, tasks=8, cpu=8_000, priority=priority)))])
    one.run(10.0)
    return one


def test_fit_counts_tasks_in_free_capacity_and_by_evictions() -> None:
    one = full(priority=25)
    before = position(one)
    found = fit(one, JobShape(limit=vector(cpu=16_000, ram=GIB), priority=200))
    empty = MACHINES - len({one.state.where(1, index) for index in range(8)})
    assert (found.without_evictions, found.with_evictions, found.evicted) == (empty, MACHINES, 8)
    prod = fit(full(priority=200), JobShape(limit=vector(cpu=16_000, ram=GIB), priority=200))
    assert (prod.with_evictions, prod.evicted) == (prod.without_evictions, 0)
    assert position(one) == before
    with pytest.raises(ValueError, match="asks for no resource"):
        fit(one, JobShape(limit=vector()))


def test_fit_explains_why_the_next_task_does_not_fit() -> None:
    found = fit(full(priority=200), JobShape(limit=vector(cpu=9_000, ram=GIB), priority=25))
    assert found.with_evictions < found.most
    assert found.why is not None
    assert found.why.code == "resource"
    assert found.why.ruled_out[0].code == "resource"


def test_evict_names_the_victims_of_a_submission() -> None:
    found = evict(full(priority=25), JobShape(limit=vector(cpu=16_000, ram=GIB), tasks=MACHINES, priority=200))
    assert found.placed == MACHINES
    assert found.victims == (("job1", 25, 8),)
    assert len(found.examples) == 8
    nobody = evict(full(priority=25), JobShape(limit=vector(cpu=1_000, ram=GIB), priority=200))
    assert (nobody.placed, nobody.evicted) == (1, 0)


def test_a_drain_moves_tasks_or_leaves_them_pending() -> None:
    one = full(priority=200)
    rack = machines_of(one, racks=["r1"])
    assert len(rack) == MACHINES // 3
    moved = drain(one, rack)
    assert moved.moved == sum(len(one.cell.tasks_on(number)) for number in rack)
    assert moved.left_pending == 0
    whole = drain(one, machines_of(one, racks=["r0", "r1", "r2"]))
    assert (whole.moved, whole.left_pending) == (8, 8)
    assert one.state.running == 8
    with pytest.raises(LookupError, match="no rack r9"):
        machines_of(one, racks=["r9"])


def test_machines_that_are_not_needed_can_be_given_back() -> None:
    found = give_back(full(priority=200))
    # Eight tasks of 8 cores need four machines of 16 cores.
    assert (len(found.hostnames), found.of) == (MACHINES - 4, MACHINES)
    assert found.drained.left_pending == 0


def test_what_if_compares_a_changed_cell() -> None:
    one = busy()
    one.run(600.0)
    before = position(one)
    found = what_if(one, {"reclamation": "off", "add_machines": "3:16:64"}, hours=0.1)
    rows = {name: (first, second) for name, first, second in found.rows}
    assert rows["machines used, most"][1] > rows["machines used, most"][0]
    assert position(one) == before


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("reclamation", "most", "must be off or baseline"),
        ("colour", "red", "the names are"),
        ("stop_share", "much", "give a number"),
        ("batch.colour", "true", "is not a setting of a priority band; the settings are"),
        ("batch.prod", "3", "give true or false"),
        ("add_machines", "many", "NUMBER:CORES:GIB"),
        ("pass_every_s", "-1", "number of seconds"),
    ],
)
def test_a_wrong_change_is_rejected_with_the_reason(name: str, value: str, what: str) -> None:
    one = simulation()
    before = one.settings
    with pytest.raises(ValueError, match=what):
        change(one, name, value)
    assert one.settings == before


def test_a_band_can_become_prod() -> None:
    one = simulation([(0.0, job(1, tasks=2, priority=110))])
    one.run(5.0)
    assert int(one.state.machines.prod_limit[:, CPU].sum()) == 0
    change(one, "batch.prod", "true")
    assert int(one.state.machines.prod_limit[:, CPU].sum()) == 2_000


def test_a_process_answers_requests_on_its_socket(tmp_path: Path) -> None:
    service = SessionService(Session(full(priority=25)), "a test")
    thread = threading.Thread(target=serve, args=(service, tmp_path))
    thread.start()

    def ask(**request: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            for _ in range(1_000):
                if client.connect_ex(str(tmp_path / SOCKET)) == 0:
                    break
                threading.Event().wait(0.01)
            client.sendall(json.dumps(request).encode() + b"\n")
            answer: dict[str, Any] = json.loads(client.makefile("rb").readline())
            return answer

    try:
        assert "running" in str(ask(do="show"))
        assert (tmp_path / SOCKET).stat().st_mode & 0o077 == 0
        assert ask(do="ask", question="fit", cpu="16", priority=200)["text"][0].startswith("4 tasks fit")
        assert "the requests are show" in ask(do="dance")["error"]
        assert "needs racks or machines" in ask(do="ask", question="drain")["error"]
        assert "not a quantity" in ask(do="ask", question="fit", cpu="much")["error"]
        assert ask(do="until", condition="pending > 5", hours=0.01)["held"] is False
        for hours in (0, float("nan"), float("inf"), 1e6):
            assert "hours is" in ask(do="until", condition="pending > 5", hours=hours)["error"]
    finally:
        ask(do="close")
        thread.join(30.0)
    assert not thread.is_alive()
    assert not (tmp_path / SOCKET).exists()


def test_further_machines_do_not_need_a_trace() -> None:
    """Continue any state as a simulation without recorded arrivals, for example a state from a checkpoint."""
    state = simulation().state
    again = Simulation(state, Workload(behaviour=busy().workload.behaviour))
    again.submit(job(9, tasks=3))
    again.run(5.0)
    assert again.state.running == 3
    assert machine(1).hostname == "m1"
