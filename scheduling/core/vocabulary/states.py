"""The lifecycle of a task as one table (Figure 2 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class TaskState(StrEnum):
    PENDING = "pending"  # it waits for a machine
    RUNNING = "running"  # it has a machine
    DEAD = "dead"  # it finished, failed, or was killed


class JobState(StrEnum):
    PENDING = "pending"  # no task has been placed yet
    RUNNING = "running"  # at least one task has been placed
    DEAD = "dead"  # all tasks are dead


class JobGoal(StrEnum):
    """What a job can wait for at another job (`after`)."""

    SUCCEEDED = "succeeded"  # all its tasks exited with status 0
    ENDED = "ended"  # it is dead, in whatever way it ended
    RUNNING = "running"  # all its live tasks are up, or as many as may run at once


class MachineStatus(StrEnum):
    UP = "up"
    DRAINING = "draining"
    DOWN = "down"


class Transition(StrEnum):
    """The kinds of events in the life of a task. `EVICT` and `LOST` remove a task from its machine. `UPDATE` and
    `UPDATE_RESTART` change a task to another version of its spec.
    """

    SUBMIT = "submit"
    SCHEDULE = "schedule"
    EVICT = "evict"
    LOST = "lost"
    FINISH = "finish"
    FAIL = "fail"
    KILL = "kill"
    UPDATE = "update"
    UPDATE_RESTART = "update-restart"
    RESUBMIT = "resubmit"


class PoolUse(StrEnum):
    """How the tenants of a machine pool use it."""

    MAY = "may"  # their tasks run there or elsewhere
    PREFER = "prefer"  # their tasks run elsewhere only if none fits there without preemption
    MUST = "must"  # their tasks run nowhere else


class EvictionCause(StrEnum):
    """The reasons why a running task becomes pending again: those in Figure 3 of the Borg paper, and some more."""

    PREEMPTION = "preemption"  # a task of higher priority needed its resources
    MACHINE_FAILURE = "machine-failure"  # its machine failed or was unreachable for too long
    MACHINE_SHUTDOWN = "machine-shutdown"  # its machine was drained
    OUT_OF_RESOURCES = "out-of-resources"  # its machine was short of memory or disk
    DEDICATED_POOL = "dedicated-pool"  # its machine is in a pool that is dedicated to other tenants
    OTHER = "other"  # the detail gives the cause, such as an alloc that left the machine
    UPDATE = "update"  # an update needs a restart on a machine that fits the new spec
    FAILURE = "failure"  # it used up its restarts on this machine
    LOST = "lost"  # its machine no longer has it


@dataclass(frozen=True, slots=True)
class Observation:
    """A Borglet's report about a running incarnation of a task. `up`: whether the task is up. If the task has a health
    check, it must also pass the check. `skipped`: how many earlier changes of the incarnation were not written to the
    journal.
    """

    task_id: int
    incarnation: int
    phase: str
    health: str
    up: bool
    restarts: int = 0
    exit: dict[str, Any] | None = None
    address: str = ""  # of a network of its own; empty: its machine's
    skipped: int = 0


TASK_TRANSITIONS: dict[tuple[TaskState | None, Transition], TaskState] = {
    (None, Transition.SUBMIT): TaskState.PENDING,
    (TaskState.PENDING, Transition.SCHEDULE): TaskState.RUNNING,
    (TaskState.PENDING, Transition.KILL): TaskState.DEAD,
    (TaskState.PENDING, Transition.FAIL): TaskState.DEAD,
    (TaskState.PENDING, Transition.UPDATE): TaskState.PENDING,
    (TaskState.RUNNING, Transition.EVICT): TaskState.PENDING,
    (TaskState.RUNNING, Transition.LOST): TaskState.PENDING,
    (TaskState.RUNNING, Transition.FINISH): TaskState.DEAD,
    (TaskState.RUNNING, Transition.FAIL): TaskState.DEAD,
    (TaskState.RUNNING, Transition.KILL): TaskState.DEAD,
    (TaskState.RUNNING, Transition.UPDATE): TaskState.RUNNING,
    (TaskState.RUNNING, Transition.UPDATE_RESTART): TaskState.PENDING,
    (TaskState.DEAD, Transition.RESUBMIT): TaskState.PENDING,
    (TaskState.DEAD, Transition.UPDATE): TaskState.PENDING,
}


class IllegalTransition(Exception):
    """Raised for an event that is not possible in the current state of a task. The message names the task, its state
    and the event.
    """

    def __init__(self, entity: str, state: str | None, event: str, history: str = "") -> None:
        tail = f"; before: {history}" if history else ""
        super().__init__(f"{entity} is {state or 'not there'}: {event} is not possible{tail}")
        self.entity, self.state, self.event = entity, state, event


def next_state(entity: str, state: TaskState | None, event: Transition, *, history: str = "") -> TaskState:
    """Return the state of a task after `event`. Raises `IllegalTransition` if `event` is not possible in `state`.

    `entity`, `history`: the name of the task and its earlier events, for the error message.
    """
    try:
        return TASK_TRANSITIONS[(state, event)]
    except KeyError:
        raise IllegalTransition(entity, state, event, history) from None
