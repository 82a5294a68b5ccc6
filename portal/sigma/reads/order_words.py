"""Sentences about the state of an order or a grant, and about its next step."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from django.utils.formats import date_format
from django.utils.translation import gettext as _

from portal.sigma.reads.market import zone_of
from quota.models import Market, Order, OrderState, Quota

_KINDS = {
    "order.placed": "placed",
    "order.passed-on": "passed on to the SREs",
    "order.approved": "approved",
    "order.rejected": "rejected",
    "order.active": "began: its quota is in force",
    "order.reminder": "reminder sent that it ends soon",
    "order.renewed": "renewed",
    "order.renewal-failed": "could not be renewed",
    "order.renewal-set": "renewal switched",
    "order.expired": "ended",
    "order.cancelled": "cancelled",
    "order.changed": "changed",
    "order.transferred": "transferred to another team",
    "order.timed-out": "cancelled, because nobody decided in time",
}


class OrderStatus(NamedTuple):
    """A state. `tone`: of its colour, `label`: one or two words, `sentence`: the next step."""

    tone: str
    label: str
    sentence: str


def format_order_state(order: Order, *, now: dt.datetime, rules: Market) -> str:
    """Return a sentence about what an order waits for, or how it ended."""
    zone = zone_of(order.tenant)

    def day(moment: dt.datetime) -> str:
        return date_format(moment.astimezone(zone), "j M Y, H:i")

    if order.state == OrderState.PENDING.value:
        approver = _("an owner of the tenant") if order.approver == "owner" else _("an SRE")
        until = order.created_at + dt.timedelta(hours=rules.approval_hours)
        return _(
            "It waits for approval by %(who)s. Its quota and credits are held until then. If nobody decides by"
            " %(until)s, both are released."
        ) % {"who": approver, "until": day(until)}
    if order.state == OrderState.APPROVED.value:
        return _("It is approved and begins on %s. Its quota is held until then.") % day(order.starts_at)
    if order.state == OrderState.ACTIVE.value:
        if order.renew and not order.renew_error:
            return _("Its quota is in force until %s. It will be renewed before then.") % day(order.ends_at)
        if order.renew:
            return _("It could not be renewed: %s") % order.renew_error
        grace = order.grace_until or order.ends_at
        if grace > order.ends_at:
            return _(
                "Its quota is in force until %(end)s. For jobs that still run then, it counts until %(grace)s."
                " After that, new jobs are rejected."
            ) % {"end": day(order.ends_at), "grace": day(grace)}
        return _("Its quota is in force until %s.") % day(order.ends_at)
    if order.state == OrderState.EXPIRED.value and order.grace_until is not None and order.grace_until > now:
        return _("It ended on %(end)s. For running jobs, it still counts until %(grace)s.") % {
            "end": day(order.ends_at),
            "grace": day(order.grace_until),
        }
    if order.state == OrderState.EXPIRED.value:
        return _("It ended on %s.") % day(order.ends_at)
    if order.reason:
        return _("%(state)s: %(reason)s") % {"state": _(order.state), "reason": order.reason}
    return ""


def grant_standing(grant: Quota, now: dt.datetime) -> OrderStatus:
    """Return the state of a grant: in force, ends soon, in its grace period, or over. Days in the tenant's zone."""
    zone = zone_of(grant.tenant)

    def day(moment: dt.datetime) -> str:
        return date_format(moment.astimezone(zone), "j M, H:i")

    if grant.starts_at > now:
        return OrderStatus("plain", _("not begun"), _("begins %s") % day(grant.starts_at))
    if grant.ends_at is None:
        return OrderStatus("good", _("in force"), _("without an end"))
    if grant.ends_at > now:
        days = (grant.ends_at - now).days
        soon = days < 7
        return OrderStatus(
            "wait" if soon else "good", _("ends soon") if soon else _("in force"), _("until %s") % day(grant.ends_at)
        )
    until = grant.grace_until or grant.ends_at
    if until > now:
        return OrderStatus("wait", _("ended"), _("still counts for running jobs until %s") % day(until))
    return OrderStatus("plain", _("over"), _("since %s; new jobs beyond the remaining quota are rejected") % day(until))


def kind_words(kind: str) -> str:
    return _(_KINDS.get(kind, kind))
