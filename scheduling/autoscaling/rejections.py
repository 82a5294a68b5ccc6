"""Rejected changes of a job by the autoscaler: what waits for the next attempt, and when a rejection is over.

A job has a rejection of its number of tasks, and one of its limits, so neither delays the other.

    rejected ─► next attempt after 1 min, then after twice as long, at most 1 h ─┬─► made ────────────────► over
                 │                                                               └─► nothing more wanted ─► over
                 └─ stopped update: over when it is not the newest one any more
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scheduling.journal.sql import execute

# The code of a rejection that also stops changes that ask for nothing more.
STOPPED = "update-stopped"
LEAST_RETRY_S, MOST_RETRY_S = 60.0, 3_600.0


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns of `JobAutoscaling` that store a rejection: its code and text, since when changes are
    rejected, and when the next attempt is. `of`: the column for the names of the resources whose rise was rejected.
    """

    code: str
    detail: str
    since: str
    retry_at: str
    of: str = ""

    def values(
        self,
        code: str = "",
        detail: str = "",
        since: dt.datetime | None = None,
        retry_at: dt.datetime | None = None,
        of: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Return the columns with their values, by default those without a rejection."""
        columns = {self.code: code, self.detail: detail, self.since: since, self.retry_at: retry_at}
        return columns | ({self.of: ",".join(sorted(of))} if self.of else {})

    @property
    def sql(self) -> str:
        """The columns of a `Rejection` in a query with a row `a` of `JobAutoscaling`."""
        return f"""a.{self.code}, a.{self.retry_at}, CASE WHEN a.{self.code} = '{STOPPED}' THEN
    (SELECT u.state = 'stopped' FROM scheduling_update AS u WHERE u.job_id = a.job_id ORDER BY u.id DESC LIMIT 1)
    END IS TRUE"""


TASKS = Columns("tasks_limited_code", "tasks_limited_detail", "tasks_limited_since", "tasks_retry_at")
LIMITS = Columns("limited_code", "limited_detail", "limited_since", "retry_at", "limited_of")


@dataclass(frozen=True, slots=True)
class Rejection:
    """The rejection that a job has; without one, `code` is empty. `stopped`: whether it is because of a stopped update
    that is still the newest one of the job.
    """

    code: str
    retry_at: dt.datetime | None
    stopped: bool

    def delays(self, now: dt.datetime, *, more: bool) -> bool:
        """Return whether a change waits for the next attempt. `more`: whether it asks for more than there is."""
        if self.retry_at is None or self.retry_at <= now:
            return False
        return self.stopped if self.code == STOPPED else more

    def is_over(self, now: dt.datetime, *, more: bool, differs: bool) -> bool:
        """Return whether nothing is rejected any more. `more`: whether more than there is would be asked for now.
        `differs`: whether any change would be made now.

        If the load varies around the limit of the quota, a rejection lasts until the next attempt, so that its tenant
        is notified once.
        """
        if not self.code:
            return False
        if self.code == STOPPED and not self.stopped:
            return True
        wanted = differs if self.code == STOPPED else more
        return not wanted and (self.retry_at is None or self.retry_at <= now)


def rejected_values(
    columns: Columns, since: dt.datetime | None, code: str, detail: str, *, of: Iterable[str] = (), urgent: bool = False
) -> dict[str, Any]:
    """Return the columns of a change that was rejected now. `since`: since when changes of the job are rejected; None
    if the last one was not. `of`: the resources whose rise was rejected. `urgent`: whether the next attempt is soon.
    """
    now = dt.datetime.now(dt.UTC)
    since = since or now
    retry_s = min(LEAST_RETRY_S if urgent else MOST_RETRY_S, max(LEAST_RETRY_S, (now - since).total_seconds()))
    return columns.values(code, detail[:500], since, now + dt.timedelta(seconds=retry_s), of)


def rejections_end(columns: Columns, found: Iterable[tuple[int, Rejection, bool, bool]], now: dt.datetime) -> None:
    """Delete the rejections that are over, unless there is a newer one. `found`: the id of a job, its rejection, and
    the arguments of `is_over`.
    """
    over = [
        (job_id, one.retry_at) for job_id, one, more, differs in found if one.is_over(now, more=more, differs=differs)
    ]
    if not over:
        return
    none = columns.values()
    execute(
        f"UPDATE scheduling_jobautoscaling AS a SET {', '.join(f'{name} = %s' for name in none)}"
        " FROM unnest(%s::bigint[], %s::timestamptz[]) AS n(job_id, retry_at)"
        f" WHERE a.job_id = n.job_id AND a.{columns.retry_at} IS NOT DISTINCT FROM n.retry_at",
        [*none.values(), *([list(column) for column in zip(*over, strict=True)])],
    )
