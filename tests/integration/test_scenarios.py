"""Tests of a cell with random steps: it stays consistent, and comes to rest when no more steps follow.

Hypothesis makes submissions, updates, pauses, restarts, retries, kills, commits of old plans, late reports, crashes,
drains and silent machines.
After every step, the rows, the journal, the counters, the quota and the ports must agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from borglet.messages import EndCause, Exit
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import system
from scheduling.core.vocabulary.plan import Plan
from scheduling.jobs import submit_and_kill, updates
from scheduling.jobs.actions.pause import update_pause, update_resume
from scheduling.jobs.actions.restart import job_restart
from scheduling.jobs.actions.retry import job_retry
from scheduling.jobs.actions.scale import job_scale
from scheduling.machines import evacuation, machines
from scheduling.master.invariants import validate
from scheduling.models import Departure, Job, JobSpec, Machine, Task
from scheduling.policy.cell_settings import CellSettings
from tests.examples import SEARCH, examples
from tests.integration import rows, world
from tests.integration.simulated_cell import SimulatedCell, SimulatedMachine

# The tests take 40 s on an idle machine.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]
SRE = system("sre")
RATES = CellSettings(evictions_per_s=2.0, drain_per_s=2.0)
CAPACITY = (1_000, 2**30, 2**30, 0, 0, 8)
PRIORITIES = (0, 110, 200, 400)
_numbers = itertools.count()

names = st.sampled_from(["web", "db"])
files = st.fixed_dictionaries(
    {
        "priority": st.sampled_from(PRIORITIES),
        "tasks": st.integers(1, 5),
        "command": st.sampled_from(["serve", "serve --faster"]),
        "cpu": st.sampled_from([100, 300, 600]),
        "restart": st.sampled_from(["failure", "never"]),
        "max_down": st.integers(0, 2),
        "leave_s": st.sampled_from([None, 0]),
    }
)


def job_file(name: str, wanted: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "priority": wanted["priority"],
        "tasks": wanted["tasks"],
        "update": {"max_down": wanted["max_down"]},
        "names": {"leave_s": wanted["leave_s"]},
        "task": {
            "command": [wanted["command"]],
            "ports": ["http"],
            "limit": {"cpu": f"{wanted['cpu']}m", "ram": "64Mi", "disk": "64Mi"},
            "restart": {"on": wanted["restart"], "max_moves": 1, "max_failures": 0},
        },
    }


@contextmanager
def quota_may_be_short() -> Iterator[None]:
    try:
        yield
    except Rejected as problem:
        if problem.code != "quota-exceeded":
            raise


# A step may come at a moment at which it makes no sense: nothing is being updated, no task can be retried, …
NOT_NOW = {
    "no-open-update",
    "creation-open",
    "update-open",
    "update-paused",
    "restart-open",
    "nothing-to-restart",
    "nothing-to-retry",
    "too-many-disruptions",
    "job-ended",
    "job-exists",
}


@contextmanager
def may_come_too_early() -> Iterator[None]:
    try:
        with quota_may_be_short():
            yield
    except Conflict as problem:
        if problem.code not in NOT_NOW:
            raise


class Cell(RuleBasedStateMachine):
    """A cell of three small machines, one tenant with little quota, and two names of jobs. Its rules are the steps."""

    @initialize(first=files, second=files)
    def begin(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        number = next(_numbers)
        self.row = rows.a_cell(f"cell-{number}")
        self.tenant = rows.a_tenant(f"tenant-{number}")
        for band in ("batch", "production", "monitoring"):
            rows.grant(self.tenant, self.row, band, (4_000, 2**30, 2**30, 0, 0, 100))
        self.cell = SimulatedCell(self.row)
        for name in ("m1", "m2", "m3"):
            self.cell.add(rows.a_machine(self.row, name, capacity=CAPACITY, rack=name))
        self.plans: list[Plan] = []
        for name, wanted in (("web", first), ("db", second)):
            self.apply(name, wanted)
        self.work()
        self.work()

    def _live(self, name: str) -> Job | None:
        live = Job.objects.select_related("cell", "tenant").exclude(state="dead")
        return live.filter(cell=self.row, name=name).first()

    def _machine(self, number: int) -> SimulatedMachine:
        return self.cell.machines[number % len(self.cell.machines)]

    # -- what people do

    @rule(name=names, wanted=files)
    def apply(self, name: str, wanted: dict[str, Any]) -> None:
        read = world.read(self.row, job_file(name, wanted), tenant=self.tenant.name)
        for rehearsed in (True, False):
            before = self._numbers()
            with quota_may_be_short():
                submit_and_kill.job_apply(principal=SRE, cell=self.row, job_spec=read, dry_run=rehearsed)
            if rehearsed:
                assert before == self._numbers()

    def _numbers(self) -> tuple[int, ...]:
        """Return the revision and the numbers of jobs and tasks of the cell, which a dry run must not change."""
        self.row.refresh_from_db()
        return (
            self.row.revision,
            Job.objects.filter(cell=self.row).count(),
            Task.objects.filter(cell=self.row).count(),
        )

    @rule(name=names)
    def undo(self, name: str) -> None:
        if (job := self._live(name)) is not None and job.spec_version > 1:
            with quota_may_be_short():
                updates.job_undo(principal=SRE, job=job)

    @rule(name=names, paused=st.booleans())
    def pause(self, name: str, paused: bool) -> None:
        if (job := self._live(name)) is not None:
            with may_come_too_early():
                (update_pause if paused else update_resume)(principal=SRE, job=job)

    @rule(name=names, tasks=st.integers(1, 5))
    def scale(self, name: str, tasks: int) -> None:
        if (job := self._live(name)) is not None:
            with may_come_too_early():
                job_scale(principal=SRE, job=job, tasks=tasks)

    @rule(name=names)
    def restart(self, name: str) -> None:
        if (job := self._live(name)) is not None:
            with may_come_too_early():
                job_restart(principal=SRE, job=job)

    @rule(name=names)
    def retry(self, name: str) -> None:
        jobs = Job.objects.select_related("cell", "tenant").filter(cell=self.row, name=name)
        if (job := jobs.order_by("-id").first()) is not None:
            with may_come_too_early():
                job_retry(principal=SRE, job=job)

    @rule(name=names, really=st.integers(0, 3))
    def kill(self, name: str, really: int) -> None:
        if not really and (job := self._live(name)) is not None:
            submit_and_kill.job_kill(principal=SRE, job=job)
            assert self._live(name) is None

    @rule(name=names, index=st.integers(0, 4))
    def kill_one(self, name: str, index: int) -> None:
        job = self._live(name)
        if job is not None and Task.objects.filter(job=job, index=index).exists():
            submit_and_kill.job_kill(principal=SRE, job=job, indexes=[index])

    @rule(number=st.integers(0, 2), out=st.booleans())
    def drain(self, number: int, out: bool) -> None:
        row = Machine.objects.select_related("cell").get(pk=self._machine(number).row.pk)
        if out:
            machines.machine_undrain(principal=SRE, machine=row, reason="maintenance")
        else:
            machines.machines_drain(principal=SRE, cell=row.cell, machines=[row], reason="maintenance")

    # -- what the master does

    @rule()
    def pass_(self) -> None:
        self.cell.commit(self.cell.decide())

    @rule()
    def decide(self) -> None:
        """Make a plan as another master. A later step may commit it."""
        self.plans.append(self.cell.decide())

    @precondition(lambda self: self.plans)
    @rule()
    def commit_old_plan(self) -> None:
        self.cell.commit(self.plans.pop(0))

    @rule()
    def work(self) -> None:
        """Do one round of work: evictions, updates, a scheduling pass, and an exchange with each machine."""
        evacuation.tasks_leave(self.row.id, RATES, seconds=1.0)
        updates.updates_advance(self.row.id)
        self.cell.commit(self.cell.decide())
        for machine in self.cell.machines:
            self.cell.talk(machine)

    @rule()
    def roll(self) -> None:
        updates.updates_advance(self.row.id)

    @rule()
    def leave(self) -> None:
        evacuation.tasks_leave(self.row.id, RATES, seconds=1.0)

    @rule(number=st.integers(0, 2))
    def falls_silent(self, number: int) -> None:
        machines.machines_down(
            principal=SRE, cell_id=self.row.id, machine_ids=[self._machine(number).row.id], reason="silent"
        )
        evacuation.tasks_leave(self.row.id, RATES, seconds=1.0)

    # -- what machines do

    @rule(number=st.integers(0, 2))
    def talk(self, number: int) -> None:
        self.cell.talk(self._machine(number))

    @rule(number=st.integers(0, 2))
    def look(self, number: int) -> None:
        self._machine(number).look(self.cell.specs)

    @rule(number=st.integers(0, 2))
    def poll(self, number: int) -> None:
        machine = self._machine(number)
        if machine.loaded is None:
            machine.look(self.cell.specs)
        in_force = machine.agent.desired
        if in_force is None or machine.loaded.desired.revision >= in_force.revision:
            machine.poll(self.cell.tick())

    @rule(number=st.integers(0, 2))
    def deliver(self, number: int) -> None:
        self._machine(number).deliver()

    @rule(number=st.integers(0, 2), which=st.integers(0, 9), status=st.sampled_from([0, 1]))
    def ends(self, number: int, which: int, status: int) -> None:
        machine = self._machine(number)
        if keys := sorted(machine.runs):
            now = self.cell.tick()
            machine.ends(keys[which % len(keys)], Exit(EndCause.EXITED, now, status=status), now)

    # -- what must hold

    @invariant()
    def sound(self) -> None:
        assert validate(self.row.id) == []
        self.cell.advance()
        assert self.cell.state.validate() == []

    def teardown(self) -> None:
        if hasattr(self, "cell"):
            self._comes_to_rest()

    def _comes_to_rest(self) -> None:
        """Check that the cell stops changing once all machines serve, and that exactly the wanted tasks run."""
        for machine in self.cell.machines:
            row = Machine.objects.select_related("cell").get(pk=machine.row.pk)
            machines.machine_undrain(principal=SRE, machine=row)
            machine.in_flight.clear()  # lost with its shard; the next report contains it again
        for name in ("web", "db"):
            self.pause(name, paused=False)
        for _ in range(40):
            before = Machine.objects.filter(cell=self.row).values_list("cell__revision", flat=True)[0]
            self.cell.tick(60.0)
            for machine in self.cell.machines:
                self.cell.talk(machine)
            updates.updates_advance(self.row.id)
            self.cell.commit(self.cell.decide())
            after = Machine.objects.filter(cell=self.row).values_list("cell__revision", flat=True)[0]
            # A task that waits for SIGTERM after its names are gone changes no row meanwhile.
            if before == after and not Departure.objects.filter(machine__cell=self.row).exists():
                break
        else:
            raise AssertionError("the cell doesn't come to rest")
        assert validate(self.row.id) == []
        wanted = {
            (task.job.uid.hex, task.index, task.incarnation, task.machine_id)
            for task in Task.objects.filter(cell=self.row, state="running").select_related("job")
        }
        there = {
            (key.job, key.index, key.incarnation, machine.row.id)
            for machine in self.cell.machines
            for key in machine.runs
        }
        assert there == wanted
        for job in Job.objects.filter(cell=self.row).exclude(state="dead"):
            number = JobSpec.objects.get(job=job, version=job.spec_version).spec["tasks"]
            tasks = Task.objects.filter(job=job)
            assert tasks.filter(index__lt=number).count() == number, job.name
            assert not tasks.filter(index__gte=number).exclude(state="dead").exists(), job.name
        assert not Machine.objects.filter(cell=self.row).exclude(quarantined=[]).exists()


def test_a_cell_stays_sound_and_comes_to_rest() -> None:
    run_state_machine_as_test(
        Cell,
        settings=settings(
            max_examples=examples(20),
            stateful_step_count=40,
            deadline=None,
            derandomize=not SEARCH,
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
