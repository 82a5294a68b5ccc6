"""The table of all kinds of notifications. Pages, REST and the documentation show it.

A new kind needs one line in this table and one line in quota/README.md.
"""

from __future__ import annotations

from typing import NamedTuple

# Levels from the least to the most important. A channel sends notices from its own level up.
LEVELS = ("info", "warning", "urgent")


class NoticeKind(NamedTuple):
    """A kind of notification.

    `name`: the object, a dot and the change, such as `order.approved`. `sre`: true if SREs get such notifications.
    """

    name: str
    about: str
    sre: bool = False


KINDS: tuple[NoticeKind, ...] = (
    NoticeKind("order.placed", "An order waits for approval.", sre=True),
    NoticeKind("order.passed-on", "An order waits for an SRE, because no owner can decide about it.", sre=True),
    NoticeKind("order.approved", "An order was approved by a person or by a rule."),
    NoticeKind("order.rejected", "An order was rejected, and its money was released."),
    NoticeKind("order.active", "The period of an order has begun, and its quota is in force."),
    NoticeKind("order.reminder", "An order ends soon."),
    NoticeKind("order.renewed", "An order was renewed for another period."),
    NoticeKind("order.renewal-failed", "An order could not be renewed."),
    NoticeKind("order.expired", "The period of an order has ended."),
    NoticeKind("order.cancelled", "An order was cancelled."),
    NoticeKind("order.changed", "An order was changed."),
    NoticeKind("order.transferred", "An order, or a part of an order, was transferred to another tenant."),
    NoticeKind("order.timed-out", "Nobody decided about an order in time, and its money was released."),
    NoticeKind("quota.granted", "An SRE granted quota."),
    NoticeKind("quota.ended", "An SRE ended or shortened a grant."),
    NoticeKind("quota.grace", "Quota expired while jobs still use it; the grace period has begun."),
    NoticeKind("quota.grace-over", "The grace period has ended; new submissions are rejected."),
    NoticeKind("quota.dropped", "Jobs beyond the quota were moved to the free priority."),
    NoticeKind("shortfall.found", "A cell has less capacity than it has sold. Some orders are affected.", sre=True),
    NoticeKind("shortfall.changed", "The missing amount of a shortfall has changed.", sre=True),
    NoticeKind("shortfall.over", "A cell has enough capacity again for all sold quota.", sre=True),
    NoticeKind("price.changed", "A new price list of a cell comes into force."),
    NoticeKind("band.changed", "The rules or the price of a band changed."),
    NoticeKind("budget.granted", "Credits were granted, or moved from the organisation."),
    NoticeKind("budget.alert", "Spending has reached a percentage of the budget for which an alert is set."),
    NoticeKind("budget.stopped", "The budget is spent, and buying or submitting has stopped."),
    NoticeKind("budget.dropped", "Running jobs were moved to the free priority, because the budget is spent."),
    NoticeKind("budget.resumed", "Buying or submitting is possible again."),
    NoticeKind("invoice.ready", "The invoice of a month is ready."),
    NoticeKind("credit.given", "Credits were paid back, because a cell broke its promise."),
    NoticeKind("credit.corrected", "An SRE corrected a credit for a broken promise."),
    NoticeKind("member.changed", "A member joined, left, or has another role."),
    NoticeKind("invitation.sent", "A person was invited."),
    NoticeKind("invitation.accepted", "A person accepted an invitation."),
    NoticeKind("service-account.changed", "A service account was created, changed or deleted."),
    NoticeKind("capability.changed", "A capability was requested, granted, rejected or revoked.", sre=True),
    NoticeKind("job.failing", "No task of a job has been up for two minutes, and its tasks crash or are unhealthy."),
    NoticeKind("job.crash-looping", "Tasks of a job have been crashing for ten minutes, while others are up."),
    NoticeKind("job.recovered", "All tasks of a job that was failing or crash-looping are up again."),
    NoticeKind("job.pending", "A task of a job has been pending for too long: 15 minutes for prod jobs, else an hour."),
    NoticeKind("job.deadline-at-risk", "The deadline of a job is near, and some of its tasks have not ended."),
    NoticeKind("job.recommendation", "The autoscaler recommends other limits for the tasks of a job."),
    NoticeKind("job.scaling-limited", "A change of a job by the autoscaler was rejected, for example by quota."),
    NoticeKind("job.failed", "A job has ended, and some of its tasks failed."),
    NoticeKind("job.update-stopped", "The update or restart of a job has stopped by itself."),
    NoticeKind("job.rolled-back", "A job returns to its last good version, because its update failed."),
    NoticeKind(
        "job.promise-broken",
        "A cell broke its promise to a job: a task was pending for longer, or evicted more often, than promised.",
    ),
    NoticeKind("cron.missed", "A run of a cron job was not started in time, or its job was rejected."),
    NoticeKind("workflow.failed", "A workflow has ended, and at least one of its nodes failed."),
    NoticeKind("notices.paused", "A channel has failed for a day and was paused.", sre=True),
    NoticeKind("notices.test", "A user tests a channel.", sre=True),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def wanted(kind: str, level: str, *, kinds: tuple[str, ...], from_level: str) -> bool:
    """Return whether a channel sends notifications of this `kind` and `level`.

    `kinds`: prefixes of the kinds that the channel sends; empty for all kinds. `from_level`: the lowest level that the
    channel sends. A prefix ends at a dot: `order` matches `order.placed`, but not `orders.x`.
    """
    if LEVELS.index(level) < LEVELS.index(from_level):
        return False
    return not kinds or any(kind == start or kind.startswith(start.rstrip(".") + ".") for start in kinds)
