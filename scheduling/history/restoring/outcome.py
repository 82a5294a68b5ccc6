"""What a restore in place loses and changes, as values for JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from scheduling.history.restoring.differences import RequestedJob

# Lists have this many jobs or machines at most; their numbers are always complete.
MOST_NAMES = 100


class Names(msgspec.Struct, frozen=True):
    """Jobs or machines. `number`: how many. `tasks`: how many live tasks the jobs have. `names`: the first of them."""

    number: int
    tasks: int
    names: list[str]


class Problem(msgspec.Struct, frozen=True):
    """A job that cannot be set back. `job`: its tenant and name. `reason`: a sentence."""

    job: str
    reason: str


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore in place, or of its dry run.

    `revision`: of the cell before the restore. `to_revision`: of the moment to which the cell is set back. `events`:
    the number of events after this moment, by kind. `stopped`: jobs that were submitted since. `submitted`: jobs that
    have ended since, and are submitted again. `changed`: jobs with another spec, which are updated. `tasks_revived`,
    `tasks_ended`: other tasks that become pending or dead. Jobs that are rejected are in none of these.
    `tasks_finished`: tasks that have finished since, and are not repeated. `tasks_elsewhere`: tasks that run on another
    machine than at that moment, and stay there. `joined`, `removed`, `machines_changed`: machines, which stay as they
    are. `problems`: the first jobs that cannot be set back, and `problems_number`: how many there are. `history`: the
    id of the new history; empty for a dry run.
    """

    cell: str
    revision: int
    to_revision: int
    events: dict[str, int]
    stopped: Names
    submitted: Names
    changed: Names
    tasks_revived: int
    tasks_ended: int
    tasks_finished: int
    tasks_elsewhere: int
    joined: Names
    removed: Names
    machines_changed: Names
    problems_number: int
    problems: list[Problem]
    history: str


def names_of_jobs(jobs: Sequence[RequestedJob]) -> Names:
    """Return the number of the jobs, the number of their live tasks, and the names of the first jobs."""
    titles = sorted(job.title for job in jobs)
    return Names(len(jobs), sum(len(job.alive) for job in jobs), titles[:MOST_NAMES])


def names_of_machines(machines: Sequence[str]) -> Names:
    """Return machines; they have no tasks."""
    return Names(len(machines), 0, list(machines[:MOST_NAMES]))
