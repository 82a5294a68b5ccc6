"""The Borglet's decisions: events in, instructions out. No socket, no clock, no file.

    Adopted ─┐                                             ┌─► Save (desired state, before it is acted upon)
    Polled ──┼─► AgentState.handle(event, now) ─ reconcile ┼─► Start  Terminate  Resize  Remove
    Ended … ─┘             │                               └─► Probe
                           └─► report(): the full state

Level-triggered (§3.3): each event changes what is known, then *reconcile* compares what should be with what
is. The same event twice, or late, changes nothing. Three promises: never two incarnations of one task with
processes; what the master lists in neither list is never stopped for it; an end is reported until the master has
heard of it. Times are seconds since the epoch on a clock that never runs backwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, assert_never

import msgspec

from borglet import health, restarts, stopping
from borglet.desired import differs_in_place, refusal_of
from borglet.events import (
    Adopted,
    AllocsHeld,
    Ended,
    Event,
    Installed,
    InstallFailed,
    Polled,
    ProbeAnswered,
    RemovalsWanted,
    Sampled,
    Saved,
    SaveFailed,
    Squeezed,
    Started,
    StartRefused,
    StopRefused,
    TimePassed,
)
from borglet.incarnations import Incarnation
from borglet.instructions import (
    CancelInstall,
    GivenUp,
    HoldAllocs,
    Install,
    Instruction,
    Probe,
    Remembered,
    Remove,
    Resize,
    Save,
    Start,
)
from borglet.messages import (
    NO_USAGE,
    AllocReport,
    Desired,
    EndCause,
    Exit,
    Health,
    LogChunk,
    Phase,
    Refusal,
    Removal,
    Report,
    RunTask,
    StopTask,
    TaskKey,
    TaskReport,
    WireReport,
    sealed,
)
from borglet.phases import Step
from borglet.runtimes.base import Presence
from borglet.usages import figures, total


class AgentState:
    """All that one Borglet knows. `version` grows with every change worth a report at once."""

    def __init__(self) -> None:
        self.version = 0
        self._incarnations: dict[TaskKey, Incarnation] = {}
        self._desired: Desired | None = None
        self._pending: Desired | None = None  # accepted, but not yet safe on the disk
        self._run: dict[TaskKey, RunTask] = {}
        self._stop: dict[TaskKey, StopTask] = {}
        self._session = 0
        self._refused: Refusal | None = None
        self._telling = False  # a report told of ends, and no poll came since
        # Tasks and allocs as reported last, with these addresses; None since something happened.
        self._sealed: tuple[msgspec.Raw, msgspec.Raw, dict[TaskKey, str]] | None = None
        self._removals: tuple[Removal, ...] = ()
        self._allocs: tuple[AllocReport, ...] = ()

    # -- reading

    @property
    def history_id(self) -> str:
        return self._desired.history_id if self._desired is not None else ""

    @property
    def probing(self) -> bool:
        """Whether a first answer about some task's health is on its way."""
        return any(
            inc.watch is not None and inc.watch.due == math.inf and inc.watch.health is Health.UNKNOWN
            for inc in self._incarnations.values()
        )

    @property
    def allocs(self) -> tuple[AllocReport, ...]:
        return self._allocs

    def incarnations(self) -> tuple[Incarnation, ...]:
        return tuple(self._incarnations.values())

    def packages_in_use(self) -> set[str]:
        """Digests that what is here needs, or will need without another word of the master."""
        return {
            package.digest
            for inc in self._incarnations.values()
            if inc.phase is not Phase.ENDED
            for package in inc.task.packages
        }

    def next_wake(self) -> float:
        """When `TimePassed` is wanted; infinite when nothing is due."""
        return min((self._wake_of(inc) for inc in self._incarnations.values()), default=math.inf)

    def _wake_of(self, inc: Incarnation) -> float:
        at = math.inf
        if (
            inc.phase is Phase.BACKOFF
            and inc.key in self._run
            and (inc.task.packages or not self._blocked(inc))
        ):
            at = inc.start_at
        elif inc.phase is Phase.UP and inc.watch is not None:
            at = inc.watch.due
        if inc.stop_at is not None:
            at = min(at, inc.stop_at)
        return at

    def report(
        self,
        *,
        session: int,
        sequence: int,
        logs: list[LogChunk] | None = None,
        packages: list[str] | None = None,
        addresses: Mapping[TaskKey, str] = MappingProxyType({}),
    ) -> Report:
        """The full state, as the answer to one poll. Remembers which ends it told of, and tells a refusal once.

        `addresses`: of tasks that have one of their own."""
        self._tell(session, sequence)
        tasks = self._task_reports(addresses)
        return Report(
            **self._said(session, sequence, logs, packages),
            tasks=tasks,
            usage=total(task.usage for task in tasks),
            allocs=list(self._allocs),
        )

    def wire_report(
        self,
        *,
        session: int,
        sequence: int,
        logs: list[LogChunk] | None = None,
        packages: list[str] | None = None,
        addresses: Mapping[TaskKey, str] = MappingProxyType({}),
    ) -> WireReport:
        """`report` as it travels from protocol 2 on: what did not change since the last one is not made anew."""
        if self._sealed is None or self._sealed[2] != addresses:
            self._tell(session, sequence)
            told = self._task_reports(addresses, measured=False)
            self._sealed = (sealed(told), sealed(list(self._allocs)), dict(addresses))
        tasks, allocs, _ = self._sealed
        columns, usages = figures([inc.usage for inc in self._incarnations.values()])
        return WireReport(
            **self._said(session, sequence, logs, packages),
            tasks=tasks,
            allocs=allocs,
            usage_columns=columns,
            usages=usages,
        )

    def _task_reports(self, addresses: Mapping[TaskKey, str], *, measured: bool = True) -> list[TaskReport]:
        return [
            inc.report(expected=self._listed(inc.key), measured=measured, address=addresses.get(inc.key, ""))
            for inc in self._incarnations.values()
        ]

    def _tell(self, session: int, sequence: int) -> None:
        """Ends that were not told of are, with this report."""
        for inc in self._incarnations.values():
            if inc.phase is Phase.ENDED and inc.told is None:
                inc.told = (session, sequence)
                self._telling = True

    def _said(
        self, session: int, sequence: int, logs: list[LogChunk] | None, packages: list[str] | None
    ) -> dict[str, Any]:
        refused, self._refused = self._refused, None
        return {
            "session": session,
            "sequence": sequence,
            "history_id": self.history_id,
            "generation": self._desired.generation if self._desired is not None else "",
            "revision": self._desired.revision if self._desired is not None else 0,
            "logs": logs or [],
            "refused": refused,
            "removals": [removal for removal in self._removals if removal.key in self._run],
            "packages": packages or [],
        }

    def unmoved_by(self, session: int) -> bool:
        """Whether a poll of this session without a desired state changes nothing here: no end waits to be
        acknowledged."""
        return session == self._session and not self._telling

    def _listed(self, key: TaskKey) -> bool:
        return key in self._run or key in self._stop

    # -- events

    def handle(self, event: Event, *, now: float) -> list[Instruction]:
        """Take one event in; what is to be done now comes out, in order."""
        out: list[Instruction] = []
        match event:
            case Adopted():
                self._on_adopted(event, now)
                self._hold_allocs(out)
            case Polled():
                self._on_polled(event, now, out)
            case Saved():
                self._on_saved(event, now, out)
            case SaveFailed():
                self._on_save_failed(event)
            case Installed():
                inc = self._incarnations.get(event.key)
                if inc is not None and inc.phase is Phase.INSTALLING and inc.run == event.run:
                    inc.installed = True
            case InstallFailed():
                inc = self._incarnations.get(event.key)
                if inc is not None and inc.phase is Phase.INSTALLING and inc.run == event.run:
                    self._end_run(inc, Exit(EndCause.START_FAILED, now, detail=event.detail), now, out)
            case Started():
                self._on_started(event, now)
            case StartRefused():
                exit_ = Exit(EndCause.START_FAILED, now, detail=event.detail)
                self._on_end(event.key, event.run, exit_, now, out)
            case StopRefused():
                self._on_stop_refused(event, now)
            case Ended():
                self._on_end(event.key, event.run, event.exit, now, out)
            case ProbeAnswered():
                self._on_probe_answered(event, now, out)
            case Sampled():
                for key, usage in event.usages.items():
                    if (inc := self._incarnations.get(key)) is not None and inc.has_processes:
                        inc.usage = usage
            case AllocsHeld():
                if _keys(event.allocs) != _keys(self._allocs):
                    self.version += 1
                self._allocs = event.allocs
            case Squeezed():
                self._on_squeezed(event, now, out)
            case RemovalsWanted():
                self._removals = event.removals
                self.version += 1
            case TimePassed():
                pass
            case _:
                assert_never(event)
        if not isinstance(event, Sampled):
            self._reconcile(now, out)
            self._sealed = None
        return out

    def _on_adopted(self, event: Adopted, now: float) -> None:
        remembered, self._allocs = event.remembered, event.allocs
        self._in_force(remembered.desired)
        given_up = {given.key: given for given in remembered.given_up}
        for presence in event.presences:
            inc = self._adopt(presence, now)
            inc.quarantined = inc.key in remembered.quarantined
            if presence.exit is not None and inc.key not in given_up:
                self._close_run(inc, presence.exit, now)
            elif presence.exit is not None:
                self._give_up(inc, given_up[inc.key], now)
        for key, given in given_up.items():
            if (
                key in self._run and key not in self._incarnations
            ):  # it failed before anything was on the disk
                self._give_up(
                    self._adopt(Presence(self._run[key], given.run, 0.0, given.exit), now), given, now
                )
        for task in self._run.values():
            if task.key not in self._incarnations:
                self._assign(task, now)
        self.version += 1

    def _adopt(self, presence: Presence, now: float) -> Incarnation:
        task = self._run.get(presence.key, presence.task)
        inc = Incarnation(task, run=presence.run, started_at=presence.started_at, ran=True)
        inc.resize_due = presence.exit is None and differs_in_place(presence.task, task)
        inc.was_up = True  # as far as its successor knows
        inc.step(Step.ADOPT, now=now)
        self._watch(inc, now)
        self._incarnations[inc.key] = inc
        return inc

    def _give_up(self, inc: Incarnation, given: GivenUp, now: float) -> None:
        inc.exit, inc.watch, inc.given_up = given.exit, None, True
        inc.step(Step.FINISH, now=now)

    def _assign(self, task: RunTask, now: float) -> None:
        inc = Incarnation(task)
        inc.step(Step.ASSIGN, now=now)
        self._incarnations[task.key] = inc

    def _on_polled(self, event: Polled, now: float, out: list[Instruction]) -> None:
        if event.session != self._session:
            self._session = event.session
            for inc in self._incarnations.values():
                # Whether the last report of a lost connection arrived, nobody knows: tell it again.
                inc.told = None
        self._telling = False
        for inc in self._incarnations.values():
            if inc.told is not None and event.sequence > inc.told[1]:
                inc.acknowledged = True
            elif inc.told is not None:
                self._telling = True
        if event.desired is None:
            return
        present = {key: inc.task for key, inc in self._incarnations.items() if inc.phase is not Phase.ENDED}
        self._refused = refusal_of(event.desired, self._pending or self._desired, present)
        if self._refused is not None:
            self.version += 1
            return
        self._pending = event.desired
        if event.desired == self._desired:
            self._on_saved(Saved(event.desired.generation), now, out)
        else:
            out.append(Save(self._remembered(event.desired)))

    def _remembered(self, desired: Desired | None) -> Remembered:
        """As it will be once `desired` is in force."""
        listed: set[TaskKey] = set()
        changed = False
        if desired is not None:
            listed = {task.key for task in desired.run} | {stop.key for stop in desired.stop}
            changed = self._desired is not None and self._desired.history_id != desired.history_id
        return Remembered(
            desired,
            given_up=[
                GivenUp(inc.key, inc.run, inc.exit)
                for inc in self._incarnations.values()
                if inc.given_up and inc.exit is not None and inc.key in listed
            ],
            quarantined=[
                inc.key
                for inc in self._incarnations.values()
                if (inc.ran or inc.phase not in (Phase.ASSIGNED, Phase.INSTALLING))
                and inc.key not in listed
                and (changed or inc.quarantined)
            ],
        )

    def _on_saved(self, event: Saved, now: float, out: list[Instruction]) -> None:
        if self._pending is None or self._pending.generation != event.generation:
            return
        desired, self._pending = self._pending, None
        changed = self._desired is not None and self._desired.history_id != desired.history_id
        self._in_force(desired)
        self._hold_allocs(out)
        for inc in list(self._incarnations.values()):
            if self._listed(inc.key):
                inc.quarantined = inc.dropped = False
                continue
            if inc.phase is Phase.INSTALLING:
                out.append(CancelInstall(inc.key))
                if inc.ran:  # what it did before is told as its end
                    inc.step(Step.FINISH, now=now)
            if inc.phase in (Phase.ASSIGNED, Phase.INSTALLING):
                del self._incarnations[inc.key]
            else:
                inc.dropped = inc.phase is Phase.ENDED
                inc.quarantined = inc.quarantined or changed
        for task in desired.run:
            known = self._incarnations.get(task.key)
            if known is None:
                self._assign(task, now)
            elif known.phase is not Phase.ENDED:
                self._retarget(known, task, now)
        self.version += 1

    def _hold_allocs(self, out: list[Instruction]) -> None:
        """An alloc that is in neither list is left alone, like a task."""
        wanted = tuple(self._desired.allocs) if self._desired is not None else ()
        dropped = (_keys(self._allocs) & self._stop.keys()) - {alloc.key for alloc in wanted}
        if wanted or dropped:
            out.append(HoldAllocs(wanted, frozenset(dropped)))

    def _in_force(self, desired: Desired | None) -> None:
        self._desired = desired
        self._run = {task.key: task for task in desired.run} if desired is not None else {}
        self._stop = {stop.key: stop for stop in desired.stop} if desired is not None else {}

    def _retarget(self, inc: Incarnation, task: RunTask, now: float) -> None:
        """A change in place: limits, priority, health check, notice, restart policy."""
        inc.resize_due = inc.resize_due or (inc.has_processes and differs_in_place(inc.task, task))
        check_changed = inc.task.health != task.health
        inc.task = task
        if check_changed and inc.phase is Phase.UP:
            self._watch(inc, now)
            inc.was_up = inc.was_up or stopping.is_served(inc)

    def _on_save_failed(self, event: SaveFailed) -> None:
        if self._pending is None or self._pending.generation != event.generation:
            return
        self._pending = None
        detail = f"this machine can't keep the desired state: {event.detail}; make its disk writable"
        self._refused = Refusal("not-saved", "desired", detail)
        self.version += 1

    def _on_started(self, event: Started, now: float) -> None:
        inc = self._incarnations.get(event.key)
        if inc is None or inc.run != event.run:
            return
        if inc.phase is Phase.STARTING:
            inc.step(Step.STARTED, now=now)
            self._watch(inc, now)
            inc.was_up = stopping.is_served(inc)
            self.version += 1
        elif inc.phase is Phase.STOPPING and not inc.leaving:
            inc.step(Step.STARTED, now=now)
            inc.stop_at = now  # the stop may have come before there was anything to stop

    def _watch(self, inc: Incarnation, now: float) -> None:
        inc.watch = health.begin(inc.started_at, now=now) if inc.task.health is not None else None

    def _on_stop_refused(self, event: StopRefused, now: float) -> None:
        inc = self._incarnations.get(event.key)
        if inc is not None and inc.phase is Phase.STOPPING and not inc.leaving:
            inc.stop_at = now + stopping.RETRY_S

    def _on_end(self, key: TaskKey, run: int, exit_: Exit, now: float, out: list[Instruction]) -> None:
        inc = self._incarnations.get(key)
        if inc is None or inc.run != run or not inc.has_processes:
            return  # late, or told twice
        self._end_run(inc, exit_, now, out)

    def _end_run(self, inc: Incarnation, exit_: Exit, now: float, out: list[Instruction]) -> None:
        self._close_run(inc, exit_, now)
        if inc.given_up:
            out.append(Save(self._remembered(self._pending or self._desired)))

    def _close_run(self, inc: Incarnation, exit_: Exit, now: float) -> None:
        exit_ = stopping.ended(inc, exit_)
        inc.exit, inc.watch, inc.usage = exit_, None, NO_USAGE
        inc.resize_due = False
        self.version += 1
        if inc.key not in self._run:
            inc.step(Step.FINISH, now=now)
            return
        decision = restarts.decide(inc.task.restart, exit_, inc.failures, now=now)
        if isinstance(decision, restarts.Again):
            inc.failures, inc.start_at = decision.failures, decision.at
            inc.step(Step.RETRY, now=now)
            return
        if decision.crash_loop:
            inc.given_up = True
            detail = f"{exit_.detail}; {decision.detail}" if exit_.detail else decision.detail
            inc.exit = msgspec.structs.replace(exit_, detail=detail)
        inc.step(Step.FINISH, now=now)

    def _on_squeezed(self, event: Squeezed, now: float, out: list[Instruction]) -> None:
        inc = self._incarnations.get(event.key)
        if inc is not None and inc.has_processes and (inc.leaving or inc.stop_notice_s != 0):
            stopping.order(inc, 0.0, EndCause.MACHINE_SHORT, event.detail, out, now=now)
            self.version += 1

    def _on_probe_answered(self, event: ProbeAnswered, now: float, out: list[Instruction]) -> None:
        inc = self._incarnations.get(event.key)
        if inc is None or inc.run != event.run or inc.watch is None or inc.task.health is None:
            return
        before = inc.watch.health
        inc.watch = health.answered(
            inc.watch, inc.task.health, ok=event.ok, detail=event.detail, holds_s=event.holds_s, now=now
        )
        if inc.watch.health is not before:
            inc.was_up = inc.was_up or stopping.is_served(inc)
            self.version += 1
        if inc.watch.health is Health.UNHEALTHY and inc.phase is Phase.UP and inc.key in self._run:
            detail = f"{inc.watch.failures} checks in a row failed; the last: {inc.watch.detail}"
            stopping.order(inc, inc.task.notice_s, EndCause.UNHEALTHY, detail, out, now=now)
            self.version += 1

    # -- reconciling what is with what should be

    def _reconcile(self, now: float, out: list[Instruction]) -> None:
        for key, stop in self._stop.items():
            if (inc := self._incarnations.get(key)) is not None:
                self._reconcile_stop(inc, stop, now, out)
        waiting = [
            inc
            for inc in self._incarnations.values()
            if inc.key in self._run
            and (inc.phase is Phase.ASSIGNED or (inc.phase is Phase.BACKOFF and inc.start_at <= now))
        ]
        for inc in waiting:
            if inc.task.packages:  # what must leave first may take its time meanwhile
                self._install(inc, now, out)
        waiting = [inc for inc in waiting if not inc.task.packages]
        waiting += [
            inc for inc in self._incarnations.values() if inc.installed and inc.phase is Phase.INSTALLING
        ]
        for inc in sorted(waiting, key=lambda inc: inc.key, reverse=True):  # the newest incarnation first
            if not self._blocked(inc):
                self._start(inc, now, out)
        for inc in list(self._incarnations.values()):
            if inc.phase is Phase.UP:
                self._reconcile_up(inc, now, out)
            elif inc.phase is Phase.STOPPING:
                stopping.follow(inc, out, now=now)
            elif inc.phase is Phase.ENDED and self._may_be_forgotten(inc):
                del self._incarnations[inc.key]
                out.append(Remove(inc.key))

    def _may_be_forgotten(self, inc: Incarnation) -> bool:
        """The master has heard of the end, and no longer lists it. While a desired state is on its way to the disk
        nothing is forgotten: it may list it again."""
        return inc.acknowledged and inc.dropped and not inc.quarantined and self._pending is None

    def _reconcile_stop(self, inc: Incarnation, stop: StopTask, now: float, out: list[Instruction]) -> None:
        if inc.phase in (Phase.ASSIGNED, Phase.BACKOFF, Phase.INSTALLING):
            if inc.phase is Phase.INSTALLING:
                out.append(CancelInstall(inc.key))
            stopping.before_its_start(inc, stop, now=now)
            self.version += 1
        elif inc.has_processes and stopping.ask(inc, stop, out, now=now):
            self.version += 1

    def _install(self, inc: Incarnation, now: float, out: list[Instruction]) -> None:
        inc.run += 1
        inc.installed = False
        inc.step(Step.INSTALL, now=now)
        out.append(Install(inc.task, inc.run))
        self.version += 1

    def _start(self, inc: Incarnation, now: float, out: list[Instruction]) -> None:
        if inc.phase is not Phase.INSTALLING:
            inc.run += 1
        inc.started_at = now
        inc.ran = True
        inc.step(Step.START, now=now)
        out.append(Start(inc.task, inc.run))
        self.version += 1

    def _reconcile_up(self, inc: Incarnation, now: float, out: list[Instruction]) -> None:
        if inc.resize_due:
            inc.resize_due = False
            out.append(Resize(inc.task))
        check, watch = inc.task.health, inc.watch
        if check is None or watch is None or watch.due > now:
            return
        inc.watch = watch.asked()
        port = inc.task.ports.get(check.port)
        if port is not None:
            out.append(Probe(inc.key, inc.run, check, port))
            return
        ports = ", ".join(sorted(inc.task.ports)) or "none"
        detail = f"health.port: the task has no port {check.port!r} (its ports: {ports})"
        self._on_probe_answered(ProbeAnswered(inc.key, inc.run, False, detail), now, out)

    def _blocked(self, inc: Incarnation) -> bool:
        """Whether an incarnation that must be gone first is not."""
        for other in self._incarnations.values():
            same_task = other.key.job == inc.key.job and other.key.index == inc.key.index
            if other is not inc and (same_task or other.key in inc.task.waits_for) and self._holds(other):
                return True
        return False

    def _holds(self, inc: Incarnation) -> bool:
        """Whether it has processes or gets them again without a word of the master."""
        again = inc.ran and inc.phase in (Phase.BACKOFF, Phase.INSTALLING)
        return inc.has_processes or (again and inc.key in self._run)

    # -- invariants

    def validate(self) -> None:
        """Raises AssertionError, with the incarnation, when a promise of this module is broken."""
        holders: dict[tuple[str, int], TaskKey] = {}
        for key, inc in self._incarnations.items():
            story = f"{key} in {inc.phase}: {'; '.join(inc.story)}"
            assert key == inc.key, story
            assert inc.phase is not None, story
            if inc.has_processes:
                other = holders.setdefault((key.job, key.index), key)
                assert other == key, f"two incarnations with processes: {other} and {story}"
            assert (inc.phase is Phase.ASSIGNED) == (inc.run == 0 and inc.phase is not Phase.ENDED), story
            assert inc.phase is not Phase.ENDED or inc.exit is not None, story
            assert inc.phase is not Phase.STOPPING or inc.stop_notice_s is not None, story
            assert inc.stop_at is None or inc.phase is Phase.STOPPING, story
            assert not inc.leaving or (inc.was_up and inc.stop_at is not None), story
            assert inc.watch is None or inc.has_processes, story
            assert inc.phase not in (Phase.ASSIGNED, Phase.INSTALLING) or key in self._run, story
            assert not (inc.quarantined and self._listed(key)), story
        for key in self._run:
            assert key in self._incarnations, f"{key} is in run and unknown"
        for key in self._stop:
            known = self._incarnations.get(key)
            assert known is None or known.phase in (Phase.STOPPING, Phase.ENDED), f"{key} is not stopped"


def _keys(allocs: tuple[AllocReport, ...]) -> set[TaskKey]:
    return {alloc.key for alloc in allocs}
