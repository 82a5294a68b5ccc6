"""Tests of a task that crashes again and again, from the reports of its machine to rows and journal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from borglet.messages import EndCause, Exit, Phase, Report, TaskKey, TaskReport, decode_to_shard, encode
from scheduling.core.vocabulary.events import TaskReported
from scheduling.core.vocabulary.plan import Assignment
from scheduling.journal import journal
from scheduling.link.shard import writer
from scheduling.link.shard.connection import Connection
from scheduling.link.shard.inbox import Inbox
from scheduling.link.shard.report_intake import ReportIntake
from scheduling.link.shard.roster import Roster
from scheduling.link.views.desired import Specs, load
from scheduling.link.views.flaps import BURST, REFILL_S, STEADY_MOST_S
from scheduling.link.views.last_report import merge_report
from scheduling.master.invariants import validate
from scheduling.models import Cell, Machine, Task
from scheduling.tasks import transitions
from tests.integration import rows

pytestmark = pytest.mark.django_db(transaction=True)


class VirtualLoop(asyncio.SelectorEventLoop):
    now = 0.0

    def time(self) -> float:
        return self.now


class SilentWire:
    congested = False

    def send(self, content: bytes) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


class Shard:
    """The part of a link shard that reads and stores reports, with one machine that runs task 0 of a job."""

    def __init__(self, cell: Cell, machine: Machine, loop: VirtualLoop) -> None:
        self.cell, self.loop = cell, loop
        self.roster = Roster(random.Random(1))
        self.intake = ReportIntake(self.roster)
        self.held = Connection(machine.id, cell.id, machine.hostname, 0, SilentWire(), 0.0)
        self.roster.connections[machine.id] = self.held
        self.read()

    def read(self) -> None:
        """Read the expected state of the machine from the database again, as after a notification."""
        view = load(self.cell.id, [self.held.machine_id], Specs())[self.held.machine_id].view
        self.held.take_view(view)
        self.held.flaps.rebase(view, self.loop.now)
        self.intake.compare(self.held)
        (self.key,) = view.run

    def report(self, phase: Phase, restarts: int) -> None:
        exit_ = Exit(EndCause.EXITED, float(restarts), status=1) if restarts else None
        task = TaskReport(self.key, "", phase, restarts=restarts, exit=exit_)
        assert self.held.view is not None
        whole = Report(0, 1, self.held.view.history_id, self.held.view.generation, 0, [task])
        self.held.last_report = merge_report(self.held.last_report, decode_to_shard(encode(whole)))
        self.intake.compare(self.held)
        self.turn()

    def turn(self) -> None:
        self.intake.release()
        inbox, self.roster.inbox = self.roster.inbox, Inbox()
        if inbox.news:
            writer.apply(self.cell.id, list(inbox.news.values()))

    def crash(self, restarts: int, *, every_s: float = 30.0) -> None:
        self.report(Phase.BACKOFF, restarts)
        self.loop.now += every_s / 2
        self.report(Phase.UP, restarts + 1)
        self.loop.now += every_s / 2


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    cell = rows.a_cell()
    machine = rows.a_machine(cell)
    job = rows.a_job(cell, rows.a_tenant(), tasks=1)
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_place(entry, [Assignment(job.id, 0, machine.id, ports=(20_000,))])
    yield cell
    assert [problem for problem in validate(cell.id) if "is charged" not in problem] == []


def on_shard(cell: Cell, what: Callable[[Shard], None]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        try:
            what(Shard(cell, Machine.objects.get(), loop))
        finally:
            connection.close()  # each event loop has a connection of its own

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def reported(cell: Cell) -> list[TaskReported]:
    return [record.event for record in journal.tail(cell.id, after=0) if isinstance(record.event, TaskReported)]


def test_the_first_crashes_are_visible_at_once_and_later_ones_are_counted(cell) -> None:
    def crashes(shard: Shard) -> None:
        shard.report(Phase.UP, 0)
        for number in range(3):
            shard.crash(number)
            assert Task.objects.get().restarts == number + 1
            assert Task.objects.get().up
        for number in range(3, 120):
            shard.crash(number)

    on_shard(cell, crashes)
    found = reported(cell)
    assert len(found) <= 1 + BURST + 120 * 30 / REFILL_S + 2
    assert sum(event.skipped for event in found) + len(found) >= 240 - 45


def test_a_task_that_is_calm_again_is_up_within_five_minutes(cell) -> None:
    def crashes(shard: Shard) -> None:
        for number in range(60):
            shard.crash(number)
        assert not Task.objects.get().up
        shard.loop.now += STEADY_MOST_S
        shard.turn()
        task = Task.objects.get()
        assert (task.up, task.phase, task.restarts) == (True, "up", 60)

    on_shard(cell, crashes)
    assert reported(cell)[-1].skipped > 0


def test_a_task_that_is_up_and_crashes_is_down_at_once(cell) -> None:
    def crashes(shard: Shard) -> None:
        for number in range(60):
            shard.crash(number)
        shard.loop.now += STEADY_MOST_S
        shard.turn()
        assert Task.objects.get().up
        shard.report(Phase.BACKOFF, 60)
        assert not Task.objects.get().up

    on_shard(cell, crashes)


def test_a_view_that_is_read_again_keeps_what_is_held(cell) -> None:
    def crashes(shard: Shard) -> None:
        for number in range(30):
            shard.crash(number)
        before = len(reported(cell))
        for _ in range(5):
            shard.read()
            shard.turn()
        assert len(reported(cell)) == before
        shard.loop.now += STEADY_MOST_S
        shard.turn()
        assert Task.objects.get().up

    on_shard(cell, crashes)


def test_another_shard_writes_the_present_state_at_once(cell) -> None:
    def crashes(shard: Shard) -> None:
        for number in range(30):
            shard.crash(number)
        assert not Task.objects.get().up
        key: TaskKey = shard.key
        other = Shard(cell, Machine.objects.get(), shard.loop)
        assert other.key == key
        other.report(Phase.UP, 30)
        assert Task.objects.get().up

    on_shard(cell, crashes)
