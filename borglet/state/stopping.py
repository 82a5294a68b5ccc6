"""Stop an incarnation: first, names no longer resolve to it; then it gets SIGTERM, and later SIGKILL (§2.3, §2.6).
Pure.

    the task was up                       ─► leaving ── leave_s ──► SIGTERM ── notice_s ──► SIGKILL
    the task was not up, or stop at once  ────────────────────────► SIGTERM ── notice_s ──► SIGKILL

The Borglet reports the task as `stopping` as soon as the stop begins. The master removes the task's address from all
names when it decides to stop the task. Clients remove the address from their caches within `leave_s` seconds, so no new
clients arrive after SIGTERM.

A stop request may limit the total of both times (`StopTask.notice_s`). Then `notice_s` is at most this limit, and
`leave_s` at most the rest of it. A later request can only make the times shorter. If the Borglet restarts before
SIGTERM, the time `leave_s` begins again.
"""

from __future__ import annotations

import math

import msgspec

from borglet.messages import EndCause, Exit, Health, Phase, RunTask, StopTask
from borglet.state.incarnations import Incarnation
from borglet.state.instructions import Instruction, Terminate
from borglet.state.phases import PhaseStep

RETRY_S = 1.0
# With these causes, the task does not leave first: no client looks up this incarnation any more, or the machine is
# short of resources (§5.5, §6.2), and each second harms other tasks.
AT_ONCE = frozenset({"machine-failure", "quarantine", "superseded", "out-of-resources"})


def notice_s(task: RunTask, stop: StopTask) -> float:
    """Return the seconds between SIGTERM and SIGKILL: the notice of the task, or that of the request if it is
    shorter.
    """
    return max(0.0, task.notice_s if stop.notice_s is None else min(stop.notice_s, task.notice_s))


def leave_s(task: RunTask, stop: StopTask) -> float:
    """Return the seconds from the decision to stop a running task to its SIGTERM."""
    if stop.cause in AT_ONCE:
        return 0.0
    bound_s = task.leave_s if stop.notice_s is None else min(task.leave_s, stop.notice_s - task.notice_s)
    return max(0.0, bound_s)


def is_served(inc: Incarnation) -> bool:
    """Return whether names may resolve to this incarnation now."""
    healthy = inc.task.health is None or (inc.watch is not None and inc.watch.health is Health.HEALTHY)
    return inc.phase is Phase.UP and healthy


def ask(inc: Incarnation, stop: StopTask, out: list[Instruction], *, now: float) -> bool:
    """Apply the master's request `stop` to a task that has processes. Append the resulting instructions for the
    Borglet's runtime to `out`. Return whether the request changed anything.
    """
    notice = notice_s(inc.task, stop)
    shorter = inc.stop_notice_s is None or notice < inc.stop_notice_s
    at = now + leave_s(inc.task, stop) if inc.was_up else now
    if inc.leaving and inc.stop_at is not None:
        at, shorter = min(at, inc.stop_at), shorter or at < inc.stop_at
    elif inc.phase is Phase.STOPPING:  # SIGTERM is sent; a shorter notice is passed on at once
        at = now
    if shorter:
        order(inc, notice, EndCause.STOPPED, stop.cause, out, now=now, at=at)
    return shorter


def order(
    inc: Incarnation,
    notice_s: float,
    cause: EndCause,
    detail: str,
    out: list[Instruction],
    *,
    now: float,
    at: float = 0.0,
) -> None:
    """Begin to stop a task that has processes. The task gets SIGTERM at the time `at`, or immediately if this time has
    passed. Instructions that are due now are appended to `out`. Until SIGTERM, `inc.leaving` is true: clients stop
    using the task.
    """
    inc.step(PhaseStep.STOP, now=now)
    inc.stop_notice_s, inc.stop_cause, inc.stop_detail = max(0.0, notice_s), cause, detail
    inc.leaving, inc.stop_at = at > now, max(at, now)
    follow(inc, out, now=now)


def follow(inc: Incarnation, out: list[Instruction], *, now: float) -> None:
    """If the time of SIGTERM has come, append the instruction `Terminate` to `out`. After a failed stop, a later call
    appends it again.
    """
    if inc.phase is not Phase.STOPPING or inc.stop_at is None or inc.stop_at > now:
        return
    assert inc.stop_notice_s is not None
    inc.leaving, inc.stop_at = False, None
    out.append(Terminate(inc.key, inc.stop_notice_s, inc.stop_cause, inc.stop_detail))


def run_until(inc: Incarnation) -> float:
    """Return the time at which the present run of a task reaches its time limit (`RunTask.max_run_s`), in seconds since
    the epoch. Without a limit, the result is infinite. Each run has the whole time.
    """
    return math.inf if inc.task.max_run_s is None else inc.started_at + inc.task.max_run_s


def at_time_limit(inc: Incarnation, out: list[Instruction], *, now: float) -> None:
    """Begin to stop a task that has reached its time limit. It gets its whole notice, and time to leave if it was
    up.
    """
    detail = f"the task ran for {inc.task.max_run_s:.15g} s, which is its max_run_s"
    at = now + inc.task.leave_s if inc.was_up else now
    order(inc, inc.task.notice_s, EndCause.TIME_LIMIT, detail, out, now=now, at=at)


def before_its_start(inc: Incarnation, stop: StopTask, *, now: float) -> None:
    """Handle a stop request for a task without processes: the task does not start any more, and its exit has the cause
    "stopped".
    """
    if inc.exit is None:
        detail = f"the task was stopped before it started, with the cause {stop.cause}"
        inc.exit = Exit(EndCause.STOPPED, now, detail=detail, notice="full")
    inc.step(PhaseStep.STOP, now=now)


def ended(inc: Incarnation, exit_: Exit) -> Exit:
    """Return the exit to report for a run that ended, and delete the stop request. If the task ended before SIGTERM was
    due, its exit reports a full notice.
    """
    left = inc.leaving and not exit_.notice
    inc.stop_notice_s = inc.stop_at = None
    inc.leaving = inc.was_up = False
    return msgspec.structs.replace(exit_, notice="full") if left else exit_
