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

from scheduling.models import JobAutoscaling

# The code of a rejection that also stops changes that ask for nothing more.
STOPPED = "update-stopped"
LEAST_RETRY_S, MOST_RETRY_S = 60.0, 3_600.0


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns of `JobAutoscaling` that store a rejection: its code and text, since when changes are
    rejected, and when the next attempt is.
    """

    code: str
    detail: str
    since: str
    retry_at: str

    def values(
        self, code: str = "", detail: str = "", since: dt.datetime | None = None, retry_at: dt.datetime | None = None
    ) -> dict[str, Any]:
        """Return the columns with their values, by default those without a rejection."""
        return dict(
            zip((self.code, self.detail, self.since, self.retry_at), (code, detail, since, retry_at), strict=True)
        )

    @property
    def sql(self) -> str:
        """The columns of a `Rejection` in a query with a row `a` of `JobAutoscaling`."""
        return f"""a.{self.code}, a.{self.retry_at}, CASE WHEN a.{self.code} = '{STOPPED}' THEN
    (SELECT u.state = 'stopped' FROM scheduling_update AS u WHERE u.job_id = a.job_id ORDER BY u.id DESC LIMIT 1)
    END IS TRUE"""


TASKS = Columns("tasks_limited_code", "tasks_limited_detail", "tasks_limited_since", "tasks_retry_at")
LIMITS = Columns("limited_code", "limited_detail", "limited_since", "retry_at")


@dataclass(frozen=True, slots=True)
class Rejection:
    """The rejection that a job has; without one, `code` is empty. `stopped`: whether it is because of a stopped update
    that is still the newest one of the job.
    """

    code: str
    retry_at: dt.datetime | None
    stopped: bool

    def delays(self, now: dt.datetime, *, more: bool, urgent: bool = False) -> bool:
        """Return whether a change waits for the next attempt. `more`: whether it asks for more than there is. `urgent`:
        whether it does not wait for quota, because a task ran out of memory.
        """
        if self.retry_at is None or self.retry_at <= now:
            return False
        return self.stopped if self.code == STOPPED else more and not urgent

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


def rejected_values(columns: Columns, since: dt.datetime | None, code: str, detail: str) -> dict[str, Any]:
    """Return the columns of a change that was rejected now. `since`: since when changes of the job are rejected; None
    if the last one was not.
    """
    now = dt.datetime.now(dt.UTC)
    since = since or now
    retry_s = min(MOST_RETRY_S, max(LEAST_RETRY_S, (now - since).total_seconds()))
    return columns.values(code, detail[:500], since, now + dt.timedelta(seconds=retry_s))


def rejections_end(columns: Columns, found: Iterable[tuple[int, Rejection, bool, bool]], now: dt.datetime) -> None:
    """Delete the rejections that are over. `found`: the id of a job, its rejection, and the arguments of `is_over`."""
    over = [job_id for job_id, one, more, differs in found if one.is_over(now, more=more, differs=differs)]
    if over:
        JobAutoscaling.objects.filter(pk__in=over).update(**columns.values())
