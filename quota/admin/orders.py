"""The console's page about the orders of all tenants, on which SREs approve, reject and cancel orders."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as now_
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from quota.admin.amounts import amount_column, amount_text
from quota.admin.base import FactsAdmin, principal_of, vector_text
from quota.admin.reason_forms import act_with_reason
from quota.market.orders import order_approve, order_cancel, order_reject
from quota.models import Order


class OrderAdmin(FactsAdmin):
    price_shown = amount_column("price", _("price"))
    refunded_shown = amount_column("refunded", _("credits refunded"))
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

    @display(description=_("placed at, UTC"), ordering="created_at")
    def created_shown(self, order: Order) -> SafeString:
        placed = order.created_at.astimezone(dt.UTC)
        return format_html('<span class="whitespace-nowrap">{}</span>', f"{placed:%F %H:%M}")

    @display(description=_("resource amounts"))
    def amounts_shown(self, order: Order) -> SafeString:
        return vector_text(order.amounts)

    @display(
        description=_("state"),
        ordering="state",
        label={"pending": "warning", "approved": "info", "active": "success", "rejected": "danger"},
    )
    def state_shown(self, order: Order) -> str:
        return order.state

    @display(description=_("price by resource"))
    def parts_shown(self, order: Order) -> SafeString | str:
        rows = ((part.get("resource", "?"), amount_text(part.get("amount", 0))) for part in order.parts)
        return format_html_join("", "<div>{}: {}</div>", rows) or "–"

    @admin.action(description=_("Approve these orders"))
    def approve(self, request: HttpRequest, rows: QuerySet[Order]) -> HttpResponse | None:
        warning = now_("The tenants get the quota as soon as its period begins, and are charged for it.")
        return self._decide(request, rows, order_approve, "approve", now_("Approve orders"), warning)

    @admin.action(description=_("Reject these orders"))
    def reject(self, request: HttpRequest, rows: QuerySet[Order]) -> HttpResponse | None:
        warning = now_("The tenants read the reason. The money and the quota that the orders hold become available.")
        return self._decide(request, rows, order_reject, "reject", now_("Reject orders"), warning)

    @admin.action(description=_("Cancel these orders"))
    def cancel(self, request: HttpRequest, rows: QuerySet[Order]) -> HttpResponse | None:
        warning = now_("Quota in force ends at once. The remaining whole days are refunded.")
        return self._decide(request, rows, order_cancel, "cancel", now_("Cancel orders"), warning)

    def _decide(
        self,
        request: HttpRequest,
        rows: QuerySet[Order],
        service: Callable[..., object],
        action: str,
        title: str,
        warning: str,
    ) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action=action,
            title=title,
            warning=warning,
            act=lambda order, reason: service(principal=principal, order=order, reason=reason),
        )


PAGES = {Order: OrderAdmin}
