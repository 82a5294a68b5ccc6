"""The console's pages about the market: the rules by which cells sell quota, approval rules for orders, and shortfalls
(sold quota that exceeds capacity).
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from quota.admin.amounts import AmountField, amount_text
from quota.admin.base import FactsAdmin, ServiceAdmin, ServiceForm, principal_of, vector_text
from quota.market.approval_rules import rule_remove, rule_set
from quota.models import ApprovalRule, Market, Shortfall
from quota.pricing.capacity_for_sale import cell_require, market_set
from quota.vocabulary.resources import format_number


class MarketForm(ServiceForm):
    class Meta:
        help_texts = {
            "selling": _("If off, nobody can order quota in this cell. Sold quota stays valid."),
            "headroom_milli": _("The share of the capacity that is never sold to prod, in thousandths."),
            "longest_days": _("The maximum length of an order, in days."),
            "quote_minutes": _("How long a quote is valid, in minutes."),
            "approval_hours": _("How long an order waits for a decision, in hours. After this time it is cancelled."),
            "grace_hours": _(
                "How long jobs may still use expired quota, in hours. Quota that was already sold keeps its grace"
                " period."
            ),
            "after_grace": _("What happens to jobs that exceed the remaining quota when the grace period ends."),
            "drop_after_hours": _(
                "Hours from the end of the grace period until jobs are demoted to the free priority."
            ),
        }

    def _get_validation_exclusions(self) -> set[str]:
        """Return the fields that only the service checks. Its errors name the field and the cure, and those of database
        constraints name only the constraint.
        """
        return {*super()._get_validation_exclusions(), "headroom_milli"}  # type: ignore[misc]


class MarketAdmin(ServiceAdmin):
    """The page of the rules by which each cell sells quota. The default rules apply to a cell without a row."""

    form = MarketForm
    list_display = [
        *("cell", "selling", "headroom_shown"),
        *("longest_days", "quote_minutes", "approval_hours", "grace_hours", "after_grace"),
    ]
    list_filter = ["selling"]
    search_fields = ["cell"]
    fieldsets = [
        (None, {"fields": ["cell", "selling", "headroom_milli", "longest_days"]}),
        (_("Orders"), {"fields": ["quote_minutes", "approval_hours"]}),
        (_("When quota expires"), {"fields": ["grace_hours", "after_grace", "drop_after_hours"]}),
    ]
    fields_fixed = ("cell",)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        if row is None:
            cell_require(given["cell"])
        return market_set(principal=principal_of(request), **given)

    @display(description=_("share never sold to prod"), ordering="headroom_milli")
    def headroom_shown(self, market: Market) -> str:
        return f"{format_number(market.headroom_milli / 10)} %"


class RuleForm(ServiceForm):
    most_price = AmountField(
        label=_("maximum price"), required=False, help_text=_("In credits. If empty, the rule matches any price.")
    )

    class Meta:
        model = ApprovalRule
        fields = ["rank", "cell", "band", "tenant", "most_price", "approver"]


class RuleAdmin(ServiceAdmin):
    """The page of approval rules.

    The first rule that matches an order decides who approves it. If no rule matches, an SRE approves the order.
    """

    form = RuleForm
    list_display = ["rank", "cell_shown", "band_shown", "tenant_shown", "price_shown", "approver"]
    list_select_related = ["band", "tenant"]
    autocomplete_fields = ["tenant"]
    fields = ["rank", "cell", "band", "tenant", "most_price", "approver"]
    fields_fixed = ("rank",)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        return rule_set(principal=principal_of(request), **given)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        rule_remove(principal=principal_of(request), rank=obj.rank)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for rank in queryset.values_list("rank", flat=True):
            rule_remove(principal=principal_of(request), rank=rank)

    @display(description=_("cell"))
    def cell_shown(self, rule: ApprovalRule) -> Any:
        return rule.cell or _("any")

    @display(description=_("band"))
    def band_shown(self, rule: ApprovalRule) -> Any:
        return rule.band.name if rule.band else _("any")

    @display(description=_("tenant"))
    def tenant_shown(self, rule: ApprovalRule) -> Any:
        return rule.tenant.name if rule.tenant else _("any")

    @display(description=_("maximum price"))
    def price_shown(self, rule: ApprovalRule) -> Any:
        return amount_text(rule.most_price) if rule.most_price is not None else _("any")


class OpenFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "open"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("yes", _("open")), ("no", _("closed"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() in ("yes", "no"):
            return queryset.filter(closed_at__isnull=self.value() == "yes")
        return queryset


class ShortfallAdmin(FactsAdmin):
    """The page of shortfalls. A shortfall is a period in which the sold quota exceeds the capacity of the cell.

    To end a shortfall, add machines, or agree with tenants to move their orders to another cell or period. Sold quota
    stays valid.
    """

    list_display = fields = (
        *("cell", "begins_at", "ends_at", "short_shown", "tenants_shown", "orders_shown", "found_at", "closed_at"),
    )
    list_filter = [OpenFilter, "cell"]
    readonly_fields = ("short_shown", "tenants_shown", "orders_shown")

    @display(description=_("missing capacity"))
    def short_shown(self, row: Shortfall) -> SafeString:
        return vector_text(row.short)

    @display(description=_("affected tenants"))
    def tenants_shown(self, row: Shortfall) -> str:
        return ", ".join(map(str, row.tenants)) or "–"

    @display(description=_("affected orders"))
    def orders_shown(self, row: Shortfall) -> SafeString | str:
        if not row.orders:
            return "–"
        site = self.admin_site.name
        return format_html_join(
            ", ",
            '<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>',
            ((reverse(f"{site}:quota_order_change", args=[pk]), pk) for pk in row.orders),
        )


PAGES = {Market: MarketAdmin, ApprovalRule: RuleAdmin, Shortfall: ShortfallAdmin}
