"""Reconciliation: compare the desired state of the machine with its actual state, and append to a list the instructions
that lead to the desired state. Pure.
"""

from __future__ import annotations

import dataclasses
import math

from borglet.messages import Phase, StopTask
from borglet.state import stopping
from borglet.state.events import ProbeAnswered
from borglet.state.health_restarts import probe_answered
from borglet.state.incarnations import Incarnation
from borglet.state.instructions import CancelInstall, Install, Instruction, Probe, Remove, Resize, Start
from borglet.state.machine_state import Holdings
from borglet.state.phases import PhaseStep


def reconcile(holdings: Holdings, out: list[Instruction], *, now: float) -> None:
    """Append to `out` the next instructions for each incarnation, such as `Install`, `Start` or `Remove`, so that the
    machine reaches the state that the master wants. `holdings`: the actual and the desired state of the machine.
    """
    for key, stop in holdings.stop.items():
        if (inc := holdings.by_key.get(key)) is not None:
            _stop(holdings, inc, stop, out, now=now)
    waiting = [
        inc
        for inc in holdings.by_key.values()
        if inc.key in holdings.run
        and (inc.phase is Phase.ASSIGNED or (inc.phase is Phase.BACKOFF and inc.start_at <= now))
    ]
    for inc in waiting:
        if inc.task.needs_preparation:  # while tasks that must end first are still ending
            _install(holdings, inc, out, now=now)
    for inc in holdings.by_key.values():
        if inc.installed and inc.phase is Phase.INSTALLING and inc.task.secrets != inc.prepared_for:
            _prepare(inc, out)  # a secret has changed since, so the values are requested again
    waiting = [inc for inc in waiting if not inc.task.needs_preparation]
    waiting += [inc for inc in holdings.by_key.values() if inc.installed and inc.phase is Phase.INSTALLING]
    for inc in sorted(waiting, key=lambda inc: inc.key, reverse=True):  # the newest incarnation first
        if not holdings.blocked(inc):
            _start(holdings, inc, out, now=now)
    for inc in list(holdings.by_key.values()):
        if inc.phase is Phase.UP:
            _keep_up(holdings, inc, out, now=now)
        elif inc.phase is Phase.STOPPING:
            stopping.follow(inc, out, now=now)
        elif inc.phase is Phase.ENDED and holdings.may_be_forgotten(inc):
            del holdings.by_key[inc.key]
            out.append(Remove(inc.key))


def _stop(holdings: Holdings, inc: Incarnation, stop: StopTask, out: list[Instruction], *, now: float) -> None:
    if inc.phase in (Phase.ASSIGNED, Phase.BACKOFF, Phase.INSTALLING):
        if inc.phase is Phase.INSTALLING:
            out.append(CancelInstall(inc.key))
        stopping.before_its_start(inc, stop, now=now)
        holdings.version += 1
    elif inc.has_processes and stopping.ask(inc, stop, out, now=now):
        holdings.version += 1


def _install(holdings: Holdings, inc: Incarnation, out: list[Instruction], *, now: float) -> None:
    inc.run += 1
    inc.step(PhaseStep.INSTALL, now=now)
    _prepare(inc, out)
    holdings.version += 1


def _prepare(inc: Incarnation, out: list[Instruction]) -> None:
    inc.installed, inc.prepared_for = False, inc.task.secrets
    out.append(Install(inc.task, inc.run))


def _start(holdings: Holdings, inc: Incarnation, out: list[Instruction], *, now: float) -> None:
    if inc.phase is not Phase.INSTALLING:
        inc.run += 1
    inc.started_at = now
    inc.ran = True
    inc.step(PhaseStep.START, now=now)
    out.append(Start(inc.task, inc.run))
    holdings.version += 1


def _keep_up(holdings: Holdings, inc: Incarnation, out: list[Instruction], *, now: float) -> None:
    if inc.resize_due:
        inc.resize_due = False
        out.append(Resize(inc.task))
    if inc.key in holdings.run and stopping.run_until(inc) <= now:
        stopping.at_time_limit(inc, out, now=now)
        holdings.version += 1
        return
    check, watch = inc.task.health, inc.watch
    if check is None or watch is None or watch.due > now:
        return
    inc.watch = dataclasses.replace(watch, due=math.inf)
    port = inc.task.ports.get(check.port)
    if port is not None:
        out.append(Probe(inc.key, inc.run, check, port))
        return
    ports = ", ".join(sorted(inc.task.ports)) or "none"
    detail = f"health.port: the task has no port {check.port!r}; use one of its ports: {ports}"
    probe_answered(holdings, ProbeAnswered(inc.key, inc.run, False, detail), out, now=now)
