"""What follows when a run of a task has ended: the task finishes, fails, runs again, or moves to another machine (§3.3,
§4). Pure.

A run that exceeded `max_run_s` has failed, and is repeated only if the job restarts always.
"""

from __future__ import annotations

from dataclasses import dataclass

from borglet.messages import EndCause, Exit


@dataclass(frozen=True, slots=True)
class TaskExit:
    """The end of an incarnation that the master did not stop. The machine will not start this incarnation again."""

    task_id: int
    incarnation: int
    exit: Exit
    restarts: int
    restart_on: str
    max_moves: int


@dataclass(frozen=True, slots=True)
class ExitVerdict:
    """The next state of a task whose incarnation has ended. The task becomes dead if `how` is set, or pending if
    `cause` is set.

    `avoid`: for some time, the task is not placed on the same machine again.
    """

    detail: str
    how: str = ""  # finished | failed
    cause: str = ""  # an EvictionCause
    avoid: bool = False


def judge(over: TaskExit, *, moves: int) -> ExitVerdict:
    """Return the next state of the task that has ended. `moves`: how often the task has moved to another machine
    before, because it failed (§4).
    """
    exit_ = over.exit
    detail = describe(exit_)
    if exit_.cause is EndCause.MACHINE_SHORT:
        return ExitVerdict(detail, cause="out-of-resources", avoid=True)
    if exit_.cause is EndCause.MACHINE_RESTARTED:
        return ExitVerdict(detail, cause="machine-failure")
    if exit_.cause is EndCause.STOPPED:
        # The cell did not request this stop. Somebody requested it on the machine.
        return ExitVerdict(f"stopped on its machine: {exit_.detail or 'no reason given'}", cause="other")
    if exit_.cause is EndCause.EXITED and exit_.status == 0 and over.restart_on != "always":
        return ExitVerdict(detail, how="finished")
    if over.restarts:
        detail = f"{detail}, after {over.restarts} restarts"
    if exit_.cause is EndCause.TIME_LIMIT and over.restart_on != "always":
        return ExitVerdict(detail, how="failed")
    if over.restart_on == "never":
        return ExitVerdict(f"{detail}; its restart policy allows no restart", how="failed")
    if moves < over.max_moves:
        return ExitVerdict(detail, cause="failure", avoid=True)
    return ExitVerdict(f"{detail}; moved {moves} times before", how="failed")


def describe(exit_: Exit) -> str:
    """Describe in one sentence how a task ended."""
    if exit_.status is not None:
        text = f"exited with status {exit_.status}"
    elif exit_.signal is not None:
        text = f"killed by signal {exit_.signal}"
    else:
        text = "ended"
    if exit_.cause not in (EndCause.EXITED, EndCause.SIGNALED):
        text = f"{exit_.cause.value.replace('-', ' ')}, {text}"
    return f"{text}: {exit_.detail}" if exit_.detail else text
