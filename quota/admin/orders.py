"""Orders of all tenants, for SREs who decide about them."""

from __future__ import annotations

import datetime as dt

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as now_
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from quota.admin.acting import act_with_reason
from quota.admin.amounts import amount_text
from quota.admin.base import FactsAdmin, principal_of, vector_text
from quota.market.orders import order_approve, order_cancel, order_reject
from quota.models import Order


class OrderAdmin(FactsAdmin):
    list_display = [
        "id",
        "tenant",
        "cell",
        "band_name",
        "amounts_shown",
        "period_shown",
        "state_shown",
        "approver",
        "price_shown",
        "placed_by",
        "created_shown",
    ]
    list_filter = ["state", "approver", "cell", "band", "renew"]
    list_select_related = ["tenant", "band"]
    search_fields = ["=id", "tenant__name", "placed_by"]
    fieldsets = [
        (None, {"fields": ["tenant", "cell", "band_name", "amounts_shown", "starts_at", "ends_at", "renew", "note"]}),
        (_("Price"), {"fields": ["price_shown", "refunded_shown", "parts_shown", "prices", "quote"]}),
        (
            _("State"),
            {
                "fields": [
                    "state_shown",
                    "approver",
                    "placed_by",
                    "created_at",
                    "decided_by",
                    "decided_at",
                    "reason",
                    "ended_at",
                    "replaces",
                    "replaced_as",
                ]
            },
        ),
    ]
    readonly_fields = ("band_name", "amounts_shown", "price_shown", "refunded_shown", "parts_shown", "state_shown")
    actions = ["approve", "reject", "cancel"]

    @display(description=_("band"), ordering="band")
    def band_name(self, order: Order) -> str:
        return str(order.band.name)

    @display(description=_("period, UTC"), ordering="starts_at")
    def period_shown(self, order: Order) -> SafeString:
        begin, end = (moment.astimezone(dt.UTC) for moment in (order.starts_at, order.ends_at))
        return format_html('<span class="whitespace-nowrap">{} – {}</span>', f"{begin:%F %H:%M}", f"{end:%F %H:%M}")

    @display(description=_("placed, UTC"), ordering="created_at")
    def created_shown(self, order: Order) -> SafeString:
        placed = order.created_at.astimezone(dt.UTC)
        return format_html('<span class="whitespace-nowrap">{}</span>', f"{placed:%F %H:%M}")

    @display(description=_("amounts"))
    def amounts_shown(self, order: Order) -> SafeString:
        return vector_text(order.amounts)

    @display(
        description=_("state"),
        ordering="state",
        label={"pending": "warning", "approved": "info", "active": "success", "rejected": "danger"},
    )
    def state_shown(self, order: Order) -> str:
        return order.state

    @display(description=_("price"), ordering="price")
    def price_shown(self, order: Order) -> SafeString | str:
        return amount_text(order.price)

    @display(description=_("refunded"))
    def refunded_shown(self, order: Order) -> SafeString | str:
        return amount_text(order.refunded)

    @display(description=_("how the price came about"))
    def parts_shown(self, order: Order) -> SafeString | str:
        rows = ((part.get("resource", "?"), amount_text(part.get("amount", 0))) for part in order.parts)
        return format_html_join("", "<div>{}: {}</div>", rows) or "–"

    @admin.action(description=_("Approve"))
    def approve(self, request: HttpRequest, rows: QuerySet[Order]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="approve",
            title=now_("Approve orders"),
            warning=now_("The quota is the tenants' as soon as its period begins, and they are charged."),
            act=lambda row, reason: order_approve(principal=principal, order=row, reason=reason),  # type: ignore[arg-type]
        )

    @admin.action(description=_("Reject"))
    def reject(self, request: HttpRequest, rows: QuerySet[Order]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="reject",
            title=now_("Reject orders"),
            warning=now_("The tenants read the reason. What the orders hold is free again."),
            act=lambda row, reason: order_reject(principal=principal, order=row, reason=reason),  # type: ignore[arg-type]
        )

    @admin.action(description=_("Cancel"))
    def cancel(self, request: HttpRequest, rows: QuerySet[Order]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="cancel",
            title=now_("Cancel orders"),
            warning=now_("Quota in force ends at once; whole days that are left are refunded."),
            act=lambda row, reason: order_cancel(principal=principal, order=row, reason=reason),  # type: ignore[arg-type]
        )


PAGES = {Order: OrderAdmin}
