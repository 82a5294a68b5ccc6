"""The input of a simulated cell: jobs that are submitted, failures of machines, and the behaviour of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints


class Arrivals(Protocol):
    """Jobs that users submit during a simulation. `times` [A]: when each of A jobs arrives, in seconds, in ascending
    order.
    """

    @property
    def times(self) -> Floats: ...

    def job(self, number: int) -> events.JobSubmitted:
        """Return the submission of the job at position `number`. Two calls return equal events."""


class MachineChange(NamedTuple):
    """A change of a machine at a time. `facts`: None if the machine fails; otherwise the machine is up, with the
    capacity and the attributes in `facts`.
    """

    at: float
    machine_id: int
    facts: events.MachineSet | None


class Ending(NamedTuple):
    """The end of a task by itself. `after_s`: seconds after its start. `how`: finished, failed or killed."""

    after_s: float
    how: str


class Behaviour(Protocol):
    """The behaviour of tasks on simulated machines. All results depend only on the arguments."""

    def ending(self, task_id: int, incarnation: int, priority: int) -> Ending | None:
        """Return when a started incarnation ends by itself, or None if it never does."""

    def demand(self, task_id: Ints, limit: Ints, priority: Ints, now: float) -> Ints:
        """Return the usage [N, 3] of CPU (milli-cores), RAM and disk (bytes) of N running tasks at the time `now`.
        `limit` [N, R]: their limits.
        """


@dataclass(frozen=True)
class Submissions:
    """A fixed list of jobs that are submitted (`Arrivals`). `times`: when each job arrives, in seconds."""

    times: Floats = field(default_factory=lambda: np.zeros(0))
    jobs: Sequence[events.JobSubmitted] = ()

    def job(self, number: int) -> events.JobSubmitted:
        return self.jobs[number]


@dataclass(frozen=True)
class Workload:
    """The whole input of a simulated cell after its start. `changes` are sorted by time."""

    behaviour: Behaviour
    arrivals: Arrivals = field(default_factory=Submissions)
    changes: Sequence[MachineChange] = ()
