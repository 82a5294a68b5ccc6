"""The journal of a simulation as rows of a real journal: each event becomes a line for PostgreSQL's COPY.

A simulation numbers all its steps, also those without an event. This journal numbers only the steps with events,
because readers of a journal expect revisions without gaps. Lines are kept in a file until they are written, so that
memory does not grow.
"""

from __future__ import annotations

import datetime as dt
import heapq
import itertools
import random
from collections.abc import Iterator
from math import log
from typing import TextIO

from borglet.messages import Health, Phase
from quota.vocabulary.permissions import Principal, system
from scheduling.core.vocabulary import events
from scheduling.journal.journal import CHUNK, JournalEntry
from scheduling.recording.tasks import RecordedTasks
from scheduling.simulator.journal import Journal

# The median time from a placement until the task runs is about 25 s, of which packages take 80 % (§3.2).
_INSTALL_MEDIAN_S, _START_MEDIAN_S, _SPREAD = 20.0, 5.0, 0.5
_CELL, _LINK = system("master"), system("link")
_FROM_LINK = (events.TaskReported, events.TaskEnded, events.TaskGone)
_BLOCK_BYTES = 1 << 24
_Due = tuple[float, int, events.TaskReported]


class RecordedJournal(Journal):
    """The journal of a recorded cell. `revision`: the newest revision. `tasks`: the rows of tasks, to which each event
    is applied. `machines`: the reason and the time of the last change of state, by machine id. `file`: receives the
    lines for COPY.

    A simulation has no reports of Borglets. So for each placed task, this journal adds reports that the task starts and
    that it is up, after random times (from `seed`), if the task still runs then.
    """

    def __init__(self, cell_id: int, tasks: RecordedTasks, file: TextIO, *, seed: int) -> None:
        super().__init__()
        self.tasks = tasks
        self.revision = 0
        self.machines: dict[int, tuple[str, float]] = {}
        self._cell_id = cell_id
        self._simulated: int | None = None
        self._entry: JournalEntry | None = None
        self._random = random.Random(seed)
        self._due: list[_Due] = []
        self._numbers = itertools.count()  # so that reports of one moment are not compared
        self._file = file

    def append(self, revision: int, time: float, event: events.Event) -> None:
        """Record an event of the simulation. `revision`: the simulation's own number of the step. `time`: seconds since
        the epoch.
        """
        self.report_until(time)
        if revision != self._simulated or self._entry is None or len(self._entry) >= CHUNK:
            self._begin(time)
            self._simulated = revision
        self._record(event, time)
        if isinstance(event, events.TaskPlaced):
            self._will_start(event, time)

    def report_until(self, time: float) -> None:
        """Record the reports about started tasks whose random times are not after `time` (seconds since the epoch)."""
        while self._due and self._due[0][0] <= time:
            at, _, report = heapq.heappop(self._due)
            if self.tasks.runs(report.job_id, report.index, report.incarnation):
                self._begin(at)
                self._simulated = None
                self._record(report, at)

    def lines(self) -> Iterator[list[str]]:
        """Yield the lines of all recorded events, in the format of PostgreSQL's COPY, in blocks of many lines."""
        self._end()
        self._file.seek(0)
        while block := self._file.readlines(_BLOCK_BYTES):
            yield block

    def _begin(self, time: float) -> None:
        self._end()
        self.revision += 1
        self._entry = JournalEntry(self._cell_id, self.revision, dt.datetime.fromtimestamp(time, dt.UTC), _CELL)

    def _end(self) -> None:
        if self._entry is not None:
            self._file.writelines(self._entry.lines())
            self._entry = None

    def _record(self, event: events.Event, time: float) -> None:
        assert self._entry is not None
        principal: Principal = _LINK if isinstance(event, _FROM_LINK) else _CELL
        if self._entry.principal is not principal:
            self._entry.act_as(principal)
        self._entry.append(event)
        self.count += 1
        self.tasks.apply(event, time)
        if isinstance(event, events.MachineState):
            self.machines[event.machine_id] = event.reason, time

    def _will_start(self, event: events.TaskPlaced, time: float) -> None:
        at = time
        for phase, median_s in ((Phase.STARTING, _INSTALL_MEDIAN_S), (Phase.UP, _START_MEDIAN_S)):
            at += self._random.lognormvariate(log(median_s), _SPREAD)
            report = events.TaskReported(
                job_id=event.job_id,
                index=event.index,
                machine_id=event.machine_id,
                incarnation=event.incarnation,
                phase=phase.value,
                health=Health.UNKNOWN.value,
                up=phase is Phase.UP,
            )
            heapq.heappush(self._due, (at, next(self._numbers), report))
