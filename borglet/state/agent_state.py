"""The Borglet's decisions. Events go in, instructions come out. This module uses no socket, clock or file.

    Adopted ─┐                                             ┌─► Save (desired state, before it is acted upon)
    Polled ──┼─► AgentState.handle(event, now) ─ reconcile ┼─► Start  Terminate  Resize  Remove
    Ended … ─┘             │                               └─► Probe
                           └─► wire_report(): the full state

Each event changes the state, then *reconcile* compares the desired state with the actual state (§3.3). A repeated or
late event changes nothing. Times are seconds since the epoch on a clock that never runs backwards.

The module guarantees three things. At most one incarnation of a task has processes. The Borglet does not stop a task
that the master lists neither in `run` nor in `stop`. The Borglet reports the end of a task until the master has
received the report.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from borglet.messages import NO_USAGE, EndCause, Exit, Phase, Refusal, RunTask, TaskKey
from borglet.runtimes.base.runtime import Presence
from borglet.state import events, local_restarts, stopping
from borglet.state.desired import differs_in_place, refusal_of
from borglet.state.health_restarts import probe_answered
from borglet.state.incarnations import Incarnation
from borglet.state.instructions import CancelInstall, GivenUp, Instruction, Save
from borglet.state.machine_state import Holdings, keys_of, watch
from borglet.state.phases import PhaseStep
from borglet.state.quarantine import is_new_history, stays_in_quarantine
from borglet.state.reconciling import reconcile
from borglet.state.reporting import Reporter


class AgentState(Holdings):
    """The state of one Borglet. It decides which instructions follow from an event. `Reporter` builds the reports."""

    def __init__(self) -> None:
        super().__init__()
        self._reporter = reporter = Reporter(self)
        self.wire_report, self.unmoved_by = reporter.wire_report, reporter.unmoved_by

    def incarnations(self) -> tuple[Incarnation, ...]:
        return tuple(self.by_key.values())

    # -- events

    def handle(self, event: events.Event, *, now: float) -> list[Instruction]:
        """Handle one event. Return the instructions to carry out now, in this order."""
        out: list[Instruction] = []
        match event:
            case events.Adopted():
                self._on_adopted(event, now)
                self.hold_allocs(out)
            case events.Polled():
                self._on_polled(event, now, out)
            case events.Saved():
                self._on_saved(event, now, out)
            case events.SaveFailed():
                self._on_save_failed(event)
            case events.PackagesInstalled():
                inc = self.by_key.get(event.key)
                if inc is not None and inc.phase is Phase.INSTALLING and inc.run == event.run:
                    inc.installed = True
            case events.InstallFailed():
                inc = self.by_key.get(event.key)
                if inc is not None and inc.phase is Phase.INSTALLING and inc.run == event.run:
                    self._end_run(inc, Exit(EndCause.START_FAILED, now, detail=event.detail), now, out)
            case events.Started():
                self._on_started(event, now)
            case events.StartRefused():
                exit_ = Exit(EndCause.START_FAILED, now, detail=event.detail)
                self._on_end(event.key, event.run, exit_, now, out)
            case events.StopRefused():
                self._on_stop_refused(event, now)
            case events.Ended():
                self._on_end(event.key, event.run, event.exit, now, out)
            case events.ProbeAnswered():
                probe_answered(self, event, out, now=now)
            case events.Sampled():
                for key, usage in event.usages.items():
                    if (inc := self.by_key.get(key)) is not None and inc.has_processes:
                        inc.usage = usage
            case events.AllocsHeld():
                if keys_of(event.allocs) != keys_of(self.allocs):
                    self.version += 1
                self.allocs = event.allocs
            case events.MemoryPressure():
                self._on_memory_pressure(event, now, out)
            case events.RemovalsWanted():
                self._reporter.removals = event.removals
                self.version += 1
            case events.TimePassed():
                pass
            case _:
                assert_never(event)
        if not isinstance(event, events.Sampled):
            reconcile(self, out, now=now)
            self._reporter.changed()
        return out

    def _on_adopted(self, event: events.Adopted, now: float) -> None:
        remembered, self.allocs = event.remembered, event.allocs
        self.put_in_force(remembered.desired)
        given_up = {given.key: given for given in remembered.given_up}
        for presence in event.presences:
            inc = self._adopt(presence, now)
            inc.quarantined = inc.key in remembered.quarantined
            if presence.exit is not None and inc.key not in given_up:
                self._close_run(inc, presence.exit, now)
            elif presence.exit is not None:
                self._give_up(inc, given_up[inc.key], now)
        for key, given in given_up.items():
            if key in self.run and key not in self.by_key:  # it failed before it had files on the disk
                self._give_up(self._adopt(Presence(self.run[key], given.run, 0.0, given.exit), now), given, now)
        for task in self.run.values():
            if task.key not in self.by_key:
                self.assign(task, now=now)
        self.version += 1

    def _adopt(self, presence: Presence, now: float) -> Incarnation:
        task = self.run.get(presence.key, presence.task)
        inc = Incarnation(task, run=presence.run, started_at=presence.started_at, ran=True)
        inc.resize_due = presence.exit is None and differs_in_place(presence.task, task)
        inc.was_up = True  # no file has this, so the Borglet assumes that names resolved to it
        inc.step(PhaseStep.ADOPT, now=now)
        watch(inc, now=now)
        self.by_key[inc.key] = inc
        return inc

    def _give_up(self, inc: Incarnation, given: GivenUp, now: float) -> None:
        inc.exit, inc.watch, inc.given_up = given.exit, None, True
        inc.step(PhaseStep.FINISH, now=now)

    def _on_polled(self, event: events.Polled, now: float, out: list[Instruction]) -> None:
        self._reporter.asked(event.session, event.sequence)
        if event.desired is None:
            return
        present = {key: inc.task for key, inc in self.by_key.items() if inc.phase is not Phase.ENDED}
        self._reporter.refused = refusal_of(event.desired, self.pending or self.desired, present)
        if self._reporter.refused is not None:
            self.version += 1
            return
        self.pending = event.desired
        if event.desired == self.desired:
            self._on_saved(events.Saved(event.desired.generation), now, out)
        else:
            out.append(Save(self.remembered(event.desired)))

    def _on_saved(self, event: events.Saved, now: float, out: list[Instruction]) -> None:
        if self.pending is None or self.pending.generation != event.generation:
            return
        desired, self.pending = self.pending, None
        new_history = is_new_history(self.desired, desired)
        self.put_in_force(desired)
        self.hold_allocs(out)
        for inc in list(self.by_key.values()):
            if self.listed(inc.key):
                inc.quarantined = inc.dropped = False
                continue
            if inc.phase is Phase.INSTALLING:
                out.append(CancelInstall(inc.key))
                if inc.ran:  # the end of its earlier run is reported
                    inc.step(PhaseStep.FINISH, now=now)
            if inc.phase in (Phase.ASSIGNED, Phase.INSTALLING):
                del self.by_key[inc.key]
            else:
                inc.dropped = inc.phase is Phase.ENDED
                inc.quarantined = stays_in_quarantine(inc, listed=False, new_history=new_history)
        for task in desired.run:
            known = self.by_key.get(task.key)
            if known is None:
                self.assign(task, now=now)
            elif known.phase is not Phase.ENDED:
                self._retarget(known, task, now)
        self.version += 1

    def _retarget(self, inc: Incarnation, task: RunTask, now: float) -> None:
        """Apply the changes in `task` to the running task `inc` without a restart: limits, priority, health check,
        notice period and restart policy.
        """
        inc.resize_due = inc.resize_due or (inc.has_processes and differs_in_place(inc.task, task))
        check_changed = inc.task.health != task.health
        inc.task = task
        if check_changed and inc.phase is Phase.UP:
            watch(inc, now=now)
            inc.was_up = inc.was_up or stopping.is_served(inc)

    def _on_save_failed(self, event: events.SaveFailed) -> None:
        if self.pending is None or self.pending.generation != event.generation:
            return
        self.pending = None
        detail = f"this machine cannot store the desired state: {event.detail}; an SRE can check the machine's disk"
        self._reporter.refused = Refusal("not-saved", "desired", detail)
        self.version += 1

    def _on_started(self, event: events.Started, now: float) -> None:
        inc = self.by_key.get(event.key)
        if inc is None or inc.run != event.run:
            return
        if inc.phase is Phase.STARTING:
            inc.step(PhaseStep.STARTED, now=now)
            watch(inc, now=now)
            inc.was_up = stopping.is_served(inc)
            self.version += 1
        elif inc.phase is Phase.STOPPING and not inc.leaving:
            inc.step(PhaseStep.STARTED, now=now)
            inc.stop_at = now  # the runtime may have handled the stop before the processes existed

    def _on_stop_refused(self, event: events.StopRefused, now: float) -> None:
        inc = self.by_key.get(event.key)
        if inc is not None and inc.phase is Phase.STOPPING and not inc.leaving:
            inc.stop_at = now + stopping.RETRY_S

    def _on_end(self, key: TaskKey, run: int, exit_: Exit, now: float, out: list[Instruction]) -> None:
        inc = self.by_key.get(key)
        if inc is None or inc.run != run or not inc.has_processes:
            return  # late or repeated
        self._end_run(inc, exit_, now, out)

    def _end_run(self, inc: Incarnation, exit_: Exit, now: float, out: list[Instruction]) -> None:
        self._close_run(inc, exit_, now)
        if inc.given_up:
            out.append(Save(self.remembered(self.pending or self.desired)))

    def _close_run(self, inc: Incarnation, exit_: Exit, now: float) -> None:
        exit_ = stopping.ended(inc, exit_)
        inc.exit, inc.watch, inc.usage = exit_, None, NO_USAGE
        inc.resize_due = False
        self.version += 1
        if inc.key not in self.run:
            inc.step(PhaseStep.FINISH, now=now)
            return
        decision = local_restarts.decide(inc.task.restart, exit_, inc.failures, now=now)
        if isinstance(decision, local_restarts.Again):
            inc.failures, inc.start_at = decision.failures, decision.at
            inc.step(PhaseStep.RETRY, now=now)
            return
        if decision.crash_loop:
            inc.given_up = True
            detail = f"{exit_.detail}; {decision.detail}" if exit_.detail else decision.detail
            inc.exit = msgspec.structs.replace(exit_, detail=detail)
        inc.step(PhaseStep.FINISH, now=now)

    def _on_memory_pressure(self, event: events.MemoryPressure, now: float, out: list[Instruction]) -> None:
        inc = self.by_key.get(event.key)
        if inc is not None and inc.has_processes and (inc.leaving or inc.stop_notice_s != 0):
            stopping.order(inc, 0.0, EndCause.MACHINE_SHORT, event.detail, out, now=now)
            self.version += 1
