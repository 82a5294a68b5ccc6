"""The table of orders of quota."""

from __future__ import annotations

from enum import StrEnum

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField, VectorField, never_negative
from quota.models.prices import PriceList, Quote
from quota.models.quota import PriorityBand
from quota.models.tenants import Tenant


class OrderState(StrEnum):
    """The states of an order: pending → approved → active → expired. Other final states are rejected and cancelled.

    Pending and approved orders hold capacity and money. An approved order waits for its start. An active order has a
    grant.
    """

    DRAFT = "draft"
    PENDING = "pending"
    APPROVED = "approved"
    ACTIVE = "active"
    EXPIRED = "expired"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


# Orders in these states hold capacity and money, and have no grant yet.
HOLDING = (OrderState.PENDING.value, OrderState.APPROVED.value)
OPEN = (*HOLDING, OrderState.ACTIVE.value)


class Order(models.Model):
    """An order of quota: amounts at a band in a cell for a period, at a price in micro-credits.

    `approver`: `auto`, `owner` or `sre`. `renew`: at the end, an order of the same length follows. `replaces`: the
    older order that this order changes, renews or takes over from another team; `replaced_as`: `change`, `renewal` or
    `transfer`. `grace_until`: the end of the grace period; until then the quota of this order counts as sold.
    `renew_next_at`: time of the next attempt to renew the order; `renew_error`: error of the last attempt. `refunded`:
    the refunded part of the price. `key`: a text that the client chooses, so that a repeated request does not place a
    second order.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="orders")
    cell = DnsLabelField(_("cell"))
    band = models.ForeignKey(PriorityBand, models.PROTECT, related_name="orders")
    amounts = VectorField(_("resource amounts"))
    starts_at = models.DateTimeField(_("starts at"))
    ends_at = models.DateTimeField(_("ends at"))
    state = models.CharField(
        _("state"),
        max_length=16,
        choices=[(state.value, state.value) for state in OrderState],
        default=OrderState.DRAFT.value,
    )
    price = models.BigIntegerField(_("price"))
    refunded = models.BigIntegerField(_("credits refunded"), default=0)
    parts = models.JSONField(_("price by resource"), default=list)
    prices = models.ForeignKey(PriceList, models.PROTECT, related_name="orders", verbose_name=_("price list"))
    quote = models.ForeignKey(Quote, models.SET_NULL, null=True, blank=True, related_name="orders")
    approver = models.CharField(_("approver"), max_length=8, blank=True)
    renew = models.BooleanField(_("automatic renewal"), default=False)
    replaces = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="successors", verbose_name=_("replaced order")
    )
    replaced_as = models.CharField(_("kind of replacement"), max_length=16, blank=True)
    key = models.CharField(_("idempotency key"), max_length=64, blank=True)
    note = models.CharField(_("note"), max_length=500, blank=True)
    placed_by = models.CharField(_("placed by"), max_length=200)
    created_at = models.DateTimeField(_("placed at"))
    decided_by = models.CharField(_("approved or rejected by"), max_length=200, blank=True)
    decided_at = models.DateTimeField(_("approved or rejected at"), null=True, blank=True)
    reason = models.CharField(_("reason for the decision"), max_length=500, blank=True)
    ended_at = models.DateTimeField(_("ended at"), null=True, blank=True)
    grace_until = models.DateTimeField(_("grace period ends at"), null=True, blank=True)
    renew_next_at = models.DateTimeField(null=True, blank=True)
    renew_error = models.CharField(_("error of the last renewal"), max_length=300, blank=True)
    reminded_at = models.DateTimeField(_("reminder sent at"), null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["tenant", "-id"], name="order_by_tenant"),
            models.Index(fields=["cell", "state", "starts_at"], name="order_by_cell"),
            models.Index(  # for the sweep
                fields=["id"],
                condition=Q(state__in=["pending", "approved", "active"]) | Q(renew_next_at__isnull=False),
                name="order_open",
            ),
        ]
        constraints = [
            never_negative("amounts", "order_never_negative"),
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="order_period_forward"),
            models.CheckConstraint(condition=Q(grace_until__gte=F("ends_at")), name="order_grace_after_end"),
            models.CheckConstraint(
                condition=Q(price__gte=0, refunded__gte=0, refunded__lte=F("price")), name="order_refund_in_price"
            ),
            models.UniqueConstraint(
                fields=["tenant", "key"], condition=~Q(key=""), name="one_order_per_tenant_and_key"
            ),
        ]
        verbose_name = _("order")
        verbose_name_plural = _("orders")

    def __str__(self) -> str:
        return f"order {self.pk} of {self.tenant}"
