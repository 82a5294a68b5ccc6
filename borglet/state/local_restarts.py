"""Decide whether and when an ended incarnation starts again on this machine (§2.6, §3.3). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from borglet.messages import EndCause, Exit, RestartPolicy

# Causes that are not failures of the task. It starts again, and they do not count towards a crash loop.
BLAMELESS = frozenset({EndCause.STOPPED, EndCause.MACHINE_RESTARTED})


@dataclass(frozen=True, slots=True)
class Again:
    """The decision to start the task again at the time `at` (seconds since the epoch). `failures`: the times of the
    failures that count towards the maximum number of failures.
    """

    at: float
    failures: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Final:
    """The decision not to restart the task on this machine. `crash_loop`: whether the reason is too many failures.
    `detail`: in this case, a text with the number of failures.
    """

    crash_loop: bool = False
    detail: str = ""


def decide(policy: RestartPolicy, exit_: Exit, failures: tuple[float, ...], *, now: float) -> Again | Final:
    """Return the decision after the exit of a task with this policy. `failures`: the times of earlier failures, oldest
    first, in seconds since the epoch.
    """
    if exit_.cause is EndCause.MACHINE_SHORT:
        return Final()  # the master finds another machine, because this one is short of resources
    if policy.on == "never" or (policy.on == "failure" and exit_.cause is EndCause.TIME_LIMIT):
        return Final()  # a run that is repeated would take as long again, and hold the machine for ever
    if exit_.cause in BLAMELESS:
        return Again(now, failures)
    if exit_.cause is EndCause.EXITED and exit_.status == 0:
        return Again(now + policy.backoff_s, failures) if policy.on == "always" else Final()
    recent = (*(at for at in failures if at > now - policy.window_s), now)
    if len(recent) > policy.max_failures:
        return Final(
            crash_loop=True,
            detail=f"crash loop: {len(recent)} failures within {policy.window_s:g} s,"
            f" more than the {policy.max_failures} allowed",
        )
    return Again(now + backoff(policy, len(recent)), recent)


def backoff(policy: RestartPolicy, failures: int) -> float:
    """Return how many seconds to wait before the restart. The delay doubles with each failure, up to a maximum.
    `failures`: the number of recent failures, including the last one.
    """
    doublings = min(failures - 1, 62)
    return float(min(policy.backoff_max_s, policy.backoff_s * 2**doublings))
