"""Compare the report of a machine with the `View` of the machine, and return the changes to store (§3.3). No I/O.

    View (what the database contains) ───┐
                                         ├─ compare ─► ReportChanges ─► the shard's writer, in batches
    Report (what is on the machine) ─────┘

A view lists the incarnations that should run (`run`) and stop (`stop`). A report may lack an incarnation of `run`
because the Borglet has not yet received the instruction to run it. So the incarnation counts as lost only if report
and view have the same `generation`, which shows that the Borglet has received these lists.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from borglet.messages import EndCause, Exit, Health, Phase, Report, TaskKey, TaskReport
from scheduling.core.vocabulary.states import Observation
from scheduling.link.views.exit_verdict import TaskExit

# Largest number of removals that are handled per report. The next report contains the others again.
MAX_REMOVALS = 4
REASONS = ("cpu-starved",)


@dataclass(slots=True)
class ExpectedTask:
    """An incarnation that should run, as the database describes it. `checked`: it has a health check.

    `alloc`: it is an alloc (§2.4). An alloc has no processes; it is up as soon as a shard serves its machine.
    `unwanted`: the machine has asked the cell to remove this incarnation.
    """

    task_id: int
    checked: bool = False
    restart_on: str = "failure"
    max_moves: int = 3
    alloc: bool = False
    phase: str = Phase.ASSIGNED.value
    health: str = Health.UNKNOWN.value
    up: bool = False
    restarts: int = 0
    exit: tuple[str, float] | None = None  # (cause, time)
    unwanted: bool = False
    address: str = ""  # if it has its own network


@dataclass(slots=True)
class View:
    """The incarnations of a machine according to the database.

    `run`: those that should run. `stop`: those that should stop, with task ids. `quarantine`: those in quarantine.

    The folder of an ended alloc may stay on the machine. Log savers, which are tasks that save its logs, then run
    there. `allocs_kept`: allocs whose folder stays. `dropping`: allocs whose folder is being deleted, with the id of
    the `KeptAlloc`. `savers`: log savers, with (id of the `KeptAlloc`, position in its list of log savers).
    """

    history_id: str
    generation: str
    run: dict[TaskKey, ExpectedTask] = field(default_factory=dict)
    stop: dict[TaskKey, int] = field(default_factory=dict)
    quarantine: frozenset[str] = frozenset()
    savers: dict[TaskKey, tuple[int, int]] = field(default_factory=dict)
    dropping: dict[TaskKey, int] = field(default_factory=dict)
    allocs_kept: set[TaskKey] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class IncarnationGone:
    """An incarnation that was asked to stop, and whose processes have all ended. `exit`: how they ended."""

    task_id: int
    incarnation: int
    exit: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class UnknownIncarnation:
    """A running incarnation that the database does not contain. `flagged`: its Borglet has put it in quarantine."""

    key: TaskKey
    name: str
    flagged: bool


@dataclass(frozen=True, slots=True)
class Unwanted:
    """A task that its machine asks the cell to remove. The machine has too little capacity for the task, even after it
    throttled other tasks (§6.2).
    """

    task_id: int
    incarnation: int
    detail: str
    reason: str = "other"


@dataclass(slots=True)
class ReportChanges:
    """The changes to store because of a report. `strangers`: all living incarnations in the report that the database
    does not expect on the machine, or None if they are the same as in the last report.
    """

    seen: list[Observation] = field(default_factory=list)
    over: list[TaskExit] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)  # (task id, incarnation)
    gone: list[IncarnationGone] = field(default_factory=list)
    strangers: list[UnknownIncarnation] | None = None
    unwanted: list[Unwanted] = field(default_factory=list)
    saved: list[tuple[int, int]] = field(default_factory=list)  # (kept alloc, position of the saver)
    dropped: list[int] = field(default_factory=list)  # kept allocs without a folder left

    @property
    def size(self) -> int:
        """Return the number of changes of tasks. Changes of kept allocs and unknown incarnations are not counted."""
        return len(self.seen) + len(self.over) + len(self.lost) + len(self.gone) + len(self.unwanted)

    def __bool__(self) -> bool:
        return bool(self.size or self.saved or self.dropped or self.strangers is not None)

    def extend(self, later: ReportChanges) -> None:
        """Add the changes of a later report to these changes."""
        for name in ("seen", "over", "lost", "gone", "unwanted", "saved", "dropped"):
            getattr(self, name).extend(getattr(later, name))
        if later.strangers is not None:
            self.strangers = later.strangers


def compare(view: View, report: Report) -> ReportChanges:
    """Return the changes to store because of `report`, and apply them to `view`. So an equal report later makes no
    changes.

    If the changes cannot be stored, the caller must read the view from the database again. A report with another
    `history_id` than the view makes no changes.
    """
    changes = ReportChanges()
    if report.history_id != view.history_id:
        return changes
    acknowledged = report.generation == view.generation
    strangers: list[UnknownIncarnation] = []
    # An alloc that has left counts as gone when its folder is deleted, unless the folder is kept.
    here = {alloc.key for alloc in report.allocs} - view.allocs_kept
    for task in report.tasks:
        key = task.key
        here.add(key)
        expected = view.run.get(key)
        if expected is not None:
            _compare_running(view, key, expected, task, changes)
        elif key in view.stop:
            if task.phase is Phase.ENDED:
                changes.gone.append(
                    IncarnationGone(view.stop.pop(key), key.incarnation, exit_json(storable(task.exit)))
                )
        elif key in view.savers:
            if task.phase is Phase.ENDED and task.exit is not None and task.exit.status == 0:
                changes.saved.append(view.savers.pop(key))
        elif task.phase is not Phase.ENDED:
            strangers.append(UnknownIncarnation(key, storable_text(task.name), task.quarantined))
    for removal in report.removals[:MAX_REMOVALS]:
        expected = view.run.get(removal.key)
        if expected is not None and not expected.unwanted:
            expected.unwanted = True
            detail = storable_text(f"removed at the request of its machine ({removal.reason}): {removal.detail}")
            reason = removal.reason if removal.reason in REASONS else "other"
            changes.unwanted.append(Unwanted(expected.task_id, removal.key.incarnation, detail, reason))
    if acknowledged:
        _compare_missing(view, here, changes)
        if (keys := frozenset(str(stranger.key) for stranger in strangers)) != view.quarantine:
            changes.strangers = strangers
            view.quarantine = keys
    return changes


def _compare_running(
    view: View, key: TaskKey, expected: ExpectedTask, task: TaskReport, changes: ReportChanges
) -> None:
    if task.phase is Phase.ENDED:
        del view.run[key]
        changes.over.append(
            TaskExit(
                expected.task_id,
                key.incarnation,
                storable(task.exit) or Exit(EndCause.START_FAILED, 0.0, detail="the Borglet reported no reason"),
                task.restarts,
                expected.restart_on,
                expected.max_moves,
            )
        )
        return
    up = task.phase is Phase.UP and (not expected.checked or task.health is Health.HEALTHY)
    mark = (task.exit.cause.value, task.exit.at) if task.exit is not None else None
    address = storable_address(task.address) if task.address else ""
    if (
        task.phase == expected.phase
        and task.health == expected.health
        and up == expected.up
        and task.restarts == expected.restarts
        and address == expected.address
        and (mark is None or mark == expected.exit)
    ):
        return
    changes.seen.append(
        Observation(
            expected.task_id,
            key.incarnation,
            task.phase.value,
            task.health.value,
            up,
            task.restarts,
            exit_json(storable(task.exit)) if mark != expected.exit else None,
            address,
        )
    )
    expected.address = address
    expected.phase, expected.health, expected.up = task.phase.value, task.health.value, up
    expected.restarts, expected.exit = task.restarts, mark or expected.exit


def _compare_missing(view: View, here: set[TaskKey], changes: ReportChanges) -> None:
    for key, expected in list(view.run.items()):
        if expected.alloc:
            if not expected.up:
                expected.up, expected.phase = True, Phase.UP.value
                changes.seen.append(
                    Observation(expected.task_id, key.incarnation, Phase.UP.value, expected.health, True, 0)
                )
        elif key not in here:
            changes.lost.append((expected.task_id, key.incarnation))
            del view.run[key]
    for key in [key for key in view.dropping if key not in here]:
        changes.dropped.append(view.dropping.pop(key))
    for key in [key for key in view.stop if key not in here]:
        changes.gone.append(IncarnationGone(view.stop.pop(key), key.incarnation))


def storable(exit_: Exit | None) -> Exit | None:
    """Return the exit without NUL characters in its `detail`, because PostgreSQL cannot store them. If `exit_` is
    None, return None.
    """
    if exit_ is None or "\x00" not in exit_.detail:
        return exit_
    return msgspec.structs.replace(exit_, detail=storable_text(exit_.detail))


def storable_text(text: str) -> str:
    """Return the text with each NUL character replaced, because PostgreSQL cannot store NUL characters."""
    return text.replace("\x00", "\ufffd")


def storable_address(text: str) -> str:
    """Return the IP address `text` in its shortest form, or "" if `text` is not an IP address."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


def exit_json(exit_: Exit | None) -> dict[str, Any] | None:
    """Return the exit as JSON, as rows and events contain it. If `exit_` is None, return None."""
    result: dict[str, Any] | None = None if exit_ is None else msgspec.to_builtins(exit_)
    return result


def exit_mark(stored: Mapping[str, Any] | None) -> tuple[str, float] | None:
    """Return (cause, time) of a stored exit, or None if nothing is stored. Two exits count as the same if these are
    equal.
    """
    return None if not stored else (str(stored.get("cause", "")), float(stored.get("at", 0.0)))
