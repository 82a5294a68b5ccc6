"""A cell with simulated machines. All other parts are real, also the state of each Borglet.

A test decides when messages arrive, and how late.

    rows ─ load ─► view, desired ─► AgentState ─► report ─ compare ─► news (in flight) ─ apply ─► rows
    journal ─► warm state ─► schedule_pass ─► plan (in flight) ─ commit ─► rows
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from borglet.messages import EndCause, Exit, Phase, TaskKey, opened
from borglet.state.agent_state import AgentState
from borglet.state.events import Adopted, Ended, Event, Polled, Saved, Started
from borglet.state.instructions import Remembered, Save, Start, Terminate
from quota.vocabulary.bands import DEFAULT_BANDS
from quota.vocabulary.permissions import system
from scheduling.core.cell.state import CellState
from scheduling.core.explaining.explain import Explainer
from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.journal import journal
from scheduling.link.shard import writer
from scheduling.link.shard.writer import MachineReportChanges
from scheduling.link.views.desired import Loaded, Specs, load
from scheduling.link.views.report_changes import compare
from scheduling.master.commit import CommitOutcome, commit
from scheduling.master.snapshot import load_state
from scheduling.models import Cell, Machine

MASTER = system("master")


@dataclass(eq=False)
class SimulatedMachine:
    """A machine with the real state of a Borglet. Its processes start and stop at once, and `ends` ends one of them."""

    row: Machine
    agent: AgentState = field(default_factory=AgentState)
    runs: dict[TaskKey, int] = field(default_factory=dict)
    sequence: int = 0
    loaded: Loaded | None = None
    in_flight: list[MachineReportChanges] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._handle(Adopted(Remembered(), ()), 0.0)

    def look(self, specs: Specs) -> None:
        """Read from the database what the machine should run and what its tasks' rows contain, as a link shard does."""
        self.loaded = load(self.row.cell_id, [self.row.id], specs)[self.row.id]

    def poll(self, now: float) -> None:
        """Poll the machine with the desired state that was read last, and add the changes that it reports to
        `in_flight`.
        """
        assert self.loaded is not None
        self.sequence += 1
        self._handle(Polled(self.row.session, self.sequence, self.loaded.desired), now)
        report = opened(self.agent.wire_report(session=self.row.session, sequence=self.sequence))
        assert report.refused is None, report.refused
        changes = compare(self.loaded.view, report)
        if changes or self.loaded.down:
            view = self.loaded.view
            self.in_flight.append(
                MachineReportChanges(self.row.id, self.row.session, view.history_id, changes, returned=self.loaded.down)
            )

    def deliver(self) -> None:
        """Write the changes in `in_flight` to the rows, as a link shard does."""
        news, self.in_flight = self.in_flight, []
        writer.apply(self.row.cell_id, news)

    def ends(self, key: TaskKey, exit_: Exit, now: float) -> None:
        """End a process of the machine, as if it had exited by itself."""
        self._handle(Ended(key, self.runs.pop(key), exit_), now)

    def _handle(self, event: Event, now: float) -> None:
        for instruction in self.agent.handle(event, now=now):
            match instruction:
                case Save():
                    self._handle(Saved(instruction.generation), now)
                case Start():
                    self.runs[instruction.task.key] = instruction.run
                    self._handle(Started(instruction.task.key, instruction.run), now)
                case Terminate():
                    if instruction.key in self.runs:
                        stopped = Exit(instruction.cause or EndCause.STOPPED, now, signal=15)
                        self.ends(instruction.key, stopped, now)
        self.agent.validate()

    def up(self) -> set[TaskKey]:
        return {inc.key for inc in self.agent.incarnations() if inc.phase is Phase.UP}


class SimulatedCell:
    """A cell with simulated machines, and the state that its master keeps in memory.

    `now` is the time of the machines and of the scheduler, in seconds. It only moves forward.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.now = 1_000.0
        self.machines: list[SimulatedMachine] = []
        self.specs = Specs()
        self.state: CellState = load_state(cell.id)
        self.policy = Policy(bands=tuple(DEFAULT_BANDS), crashed_pair_s=0.0)
        self._rng = np.random.default_rng(7)

    def add(self, row: Machine) -> SimulatedMachine:
        machine = SimulatedMachine(row)
        self.machines.append(machine)
        return machine

    def tick(self, seconds: float = 1.0) -> float:
        self.now += seconds
        return self.now

    def advance(self) -> None:
        """Apply the new events of the journal to the state that the master keeps in memory."""
        while records := journal.tail(self.cell.id, after=self.state.revision):
            for record in records:
                self.state.apply(record.event, revision=record.revision, time=record.time.timestamp())

    def decide(self, *, explainer: Explainer | None = None) -> Plan:
        self.advance()
        return schedule_pass(self.state, self.policy, now=self.tick(), rng=self._rng, explainer=explainer)

    def commit(self, plan: Plan) -> CommitOutcome:
        return commit(self.cell.id, plan, principal=MASTER)

    def talk(self, machine: SimulatedMachine) -> None:
        """Read the rows of a machine, poll it, and write the changes that it reports."""
        machine.look(self.specs)
        machine.poll(self.tick())
        machine.deliver()
