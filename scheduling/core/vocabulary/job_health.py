"""Computes the health of a job from counts of its tasks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class JobHealth(StrEnum):
    """The health of a job. `scheduling/README.md` explains each value."""

    PENDING = "pending"  # no task has a machine
    STARTING = "starting"  # no task is up yet, and none has failed
    UPDATING = "updating"  # an update is in progress, and no task fails
    HEALTHY = "healthy"  # every live task is up
    DEGRADED = "degraded"  # some tasks are up, others are not
    FAILING = "failing"  # no task is up, and tasks crash, are unhealthy or have failed
    ENDED = "ended"  # all tasks are dead; pages show how the job ended


class Condition(StrEnum):
    """A condition of a live job of which its tenant is notified. `scheduling/README.md` explains each value."""

    FAILING = "failing"  # its health has been failing for some time
    CRASH_LOOPING = "crash-looping"  # some tasks keep crashing while others are up
    PENDING = "pending"  # a task has been pending for too long
    DEADLINE_AT_RISK = "deadline-at-risk"  # its deadline is near, and tasks have not ended
    RECOMMENDATION = "recommendation"  # the autoscaler recommends other limits
    SCALING_LIMITED = "scaling-limited"  # a change by the autoscaler was rejected


@dataclass(frozen=True, slots=True)
class Troubles:
    """The number of a job's tasks with each kind of trouble.

    `crashing`: live tasks that crashed and have not run long enough since then. `flapping`: those of the crashing tasks
    that are up now. `unhealthy`: tasks whose health check fails. `failed`: tasks that failed and will not be restarted.
    """

    crashing: int = 0
    flapping: int = 0
    unhealthy: int = 0
    failed: int = 0


NO_TROUBLES = Troubles()


def job_health(
    *, ended: bool, updating: bool, living: int, placed: int, up: int, troubles: Troubles = NO_TROUBLES
) -> JobHealth:
    """Return the health of a job.

    `living`: how many tasks are not dead, but at most the number that the job may run at once. `placed`: how many tasks
    have a machine. `up`: how many tasks are up and do not fail a health check. The tasks that `troubles.flapping`
    counts must be included in `up`.
    """
    if ended:
        return JobHealth.ENDED
    steady = up - troubles.flapping
    ill = troubles.crashing + troubles.unhealthy
    if steady <= 0 and (ill or (troubles.failed and not living)):
        return JobHealth.FAILING
    if ill:
        return JobHealth.DEGRADED
    if updating:
        return JobHealth.UPDATING
    if steady == 0:
        return JobHealth.STARTING if placed else JobHealth.PENDING
    return JobHealth.DEGRADED if steady < living or troubles.failed else JobHealth.HEALTHY
