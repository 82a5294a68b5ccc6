"""The kinds of notifications: one table, which settings pages, REST and the documentation show.

Adding one touches one line here, and one of quota/README.md; other kinds cannot be sent.
"""

from __future__ import annotations

from typing import NamedTuple

# From the least important to the most. Each channel has a lowest level that it sends.
LEVELS = ("info", "warning", "urgent")


class NoticeKind(NamedTuple):
    """A kind of notification. `name`: object and change, with a dot. `sre`: SREs are notified too, or alone."""

    name: str
    about: str
    sre: bool = False


KINDS: tuple[NoticeKind, ...] = (
    NoticeKind("order.placed", "An order waits for approval.", sre=True),
    NoticeKind("order.passed-on", "An order waits for an SRE, because no owner can decide about it.", sre=True),
    NoticeKind("order.approved", "An order was approved, by a person or by a rule."),
    NoticeKind("order.rejected", "An order was rejected; its hold is back in the budget."),
    NoticeKind("order.active", "The period of an order has begun; its quota is in force."),
    NoticeKind("order.reminder", "An order ends soon."),
    NoticeKind("order.renewed", "An order was renewed for another period."),
    NoticeKind("order.renewal-failed", "An order could not be renewed."),
    NoticeKind("order.expired", "The period of an order is over."),
    NoticeKind("order.cancelled", "An order was cancelled."),
    NoticeKind("order.changed", "An order was changed."),
    NoticeKind("order.transferred", "An order, or a part of one, went to another tenant."),
    NoticeKind("order.timed-out", "Nobody decided about an order in time; its hold is back in the budget."),
    NoticeKind("quota.granted", "An SRE granted quota."),
    NoticeKind("quota.ended", "An SRE ended or shortened a grant."),
    NoticeKind("quota.grace", "Quota expired under running jobs; the grace has begun."),
    NoticeKind("quota.grace-over", "The grace period has ended; new submissions are rejected."),
    NoticeKind("quota.dropped", "Tasks beyond the quota dropped to the free band."),
    NoticeKind("shortfall.found", "A cell has less than what is sold; the orders it touches.", sre=True),
    NoticeKind("shortfall.changed", "A shortfall grew or shrank.", sre=True),
    NoticeKind("shortfall.over", "A cell has again what is sold.", sre=True),
    NoticeKind("price.changed", "A new price list of a cell comes into force."),
    NoticeKind("band.changed", "The rules or the price of a band changed."),
    NoticeKind("budget.granted", "Budget was granted, or handed down by the organisation."),
    NoticeKind("budget.alert", "Spending has reached a part of the budget that somebody wanted to hear of."),
    NoticeKind("budget.stopped", "Spending has reached the budget; buying or submitting has stopped."),
    NoticeKind("budget.dropped", "Running jobs dropped to the free priority, for the budget is spent."),
    NoticeKind("budget.resumed", "Buying or submitting is possible again."),
    NoticeKind("invoice.ready", "The invoice of a month is ready."),
    NoticeKind("member.changed", "Somebody joined or left, or has another role."),
    NoticeKind("invitation.sent", "Somebody was invited."),
    NoticeKind("invitation.accepted", "Somebody accepted an invitation."),
    NoticeKind("service-account.changed", "A service account was made or ended."),
    NoticeKind("capability.changed", "A capability was granted, revoked, or ends soon.", sre=True),
    NoticeKind("job.failing", "No task of a job has been up for two minutes, and its tasks crash or are unhealthy."),
    NoticeKind("job.recovered", "All tasks of a job that was failing are up again."),
    NoticeKind("notices.paused", "A channel of notices keeps failing and was paused.", sre=True),
    NoticeKind("notices.test", "Somebody tries out a channel of notices.", sre=True),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def wanted(kind: str, level: str, *, kinds: tuple[str, ...], from_level: str) -> bool:
    """Return whether a channel for `kinds` (prefixes, empty for all) from `from_level` on receives such a notification.

    A beginning ends where a name or a part of it does: `order` takes `order.placed`, not `orders.x`.
    """
    if LEVELS.index(level) < LEVELS.index(from_level):
        return False
    return not kinds or any(kind == start or kind.startswith(start.rstrip(".") + ".") for start in kinds)
