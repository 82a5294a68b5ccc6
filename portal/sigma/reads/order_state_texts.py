"""Sentences about the state of an order or a grant, and about what happens next."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.sigma.reads.market import zone_of
from quota.models import Market, Order, OrderState, Quota

_STATES = {
    "": gettext_lazy("all states"),
    "waiting": gettext_lazy("waiting for approval or start"),
    "draft": gettext_lazy("draft"),
    "pending": gettext_lazy("waiting for approval"),
    "approved": gettext_lazy("approved"),
    "active": gettext_lazy("active"),
    "expired": gettext_lazy("ended"),
    "rejected": gettext_lazy("rejected"),
    "cancelled": gettext_lazy("cancelled"),
}


class GrantStatus(NamedTuple):
    """The state of granted quota. `tone`: the colour of its label. `sentence`: says when the grant begins or ends."""

    tone: str
    label: str
    sentence: str


def order_state_name(state: str) -> str:
    """Return the display name of an order state."""
    return str(_STATES.get(state, state))


def format_order_state(order: Order, *, now: dt.datetime, rules: Market) -> str:
    """Return a text that describes the state of an order and what happens next. Times are in the tenant's time zone."""

    def day(moment: dt.datetime) -> str:
        return date_format(moment.astimezone(zone_of(order.tenant)), "j M Y, H:i")

    if order.state == OrderState.PENDING.value:
        approver = _("an owner of the tenant") if order.approver == "owner" else _("an SRE")
        until = order.created_at + dt.timedelta(hours=rules.approval_hours)
        return _(
            "The order waits for approval by %(who)s. Until then, its quota and its credits are held. If nobody"
            " decides by %(until)s, the order is cancelled."
        ) % {"who": approver, "until": day(until)}
    if order.state == OrderState.APPROVED.value:
        return _("The order is approved and begins on %s. Until then, its quota is held.") % day(order.starts_at)
    if order.state == OrderState.ACTIVE.value:
        if order.renew and not order.renew_error:
            return _("The quota of this order is in force until %s. The order will be renewed before that time.") % day(
                order.ends_at
            )
        if order.renew:
            return _("The order could not be renewed: %s") % order.renew_error
        grace = order.grace_until or order.ends_at
        if grace > order.ends_at:
            return _(
                "The quota of this order is in force until %(end)s. Jobs that still run then may use the quota"
                " until %(grace)s. After that, new jobs are rejected."
            ) % {"end": day(order.ends_at), "grace": day(grace)}
        return _("The quota of this order is in force until %s.") % day(order.ends_at)
    if order.state == OrderState.EXPIRED.value:
        text = _("The order ended on %s.") % day(order.ends_at)
        if order.grace_until is not None and order.grace_until > now:
            text += " " + _("Running jobs may use its quota until %s.") % day(order.grace_until)
        return text
    if order.reason:
        return _("%(state)s: %(reason)s") % {"state": _(order.state), "reason": order.reason}
    return ""


def grant_standing(grant: Quota, now: dt.datetime) -> GrantStatus:
    """Return the state of granted quota, with a sentence that says when the grant begins or ends. Times are in the
    tenant's time zone.
    """

    def day(moment: dt.datetime) -> str:
        return date_format(moment.astimezone(zone_of(grant.tenant)), "j M, H:i")

    if grant.starts_at > now:
        return GrantStatus("plain", _("not begun yet"), _("begins on %s") % day(grant.starts_at))
    if grant.ends_at is None:
        return GrantStatus("good", _("in force"), _("has no end date"))
    if grant.ends_at > now:
        tone, label = ("wait", _("ends soon")) if (grant.ends_at - now).days < 7 else ("good", _("in force"))
        return GrantStatus(tone, label, _("ends on %s") % day(grant.ends_at))
    until = grant.grace_until or grant.ends_at
    if until > now:
        return GrantStatus("wait", _("ended"), _("running jobs may use the quota until %s") % day(until))
    return GrantStatus(
        "plain", _("expired"), _("ended on %s; new jobs that exceed the remaining quota are rejected") % day(until)
    )
