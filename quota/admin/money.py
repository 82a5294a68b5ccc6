"""The console's pages about budgets, accounts, postings and invoices."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.db.models import Model, OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as now_
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.paginator import InfinitePaginator
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from quota.admin.amounts import AmountField, amount_column, amount_text
from quota.admin.base import FactsAdmin, ServiceAdmin, ServiceForm, principal_of
from quota.admin.reason_forms import act_by_form
from quota.billing.budgets import budget_set
from quota.billing.invoices import invoice_close
from quota.billing.ledger import budget_grant
from quota.models import Account, AccountKind, Budget, Invoice, Posting, Tenant
from quota.vocabulary.money import format_credits

MOST_UNSET = 50  # tenants without a budget on one page


class PercentsField(forms.CharField):
    """A form field for a list of percentages such as `50, 80, 100`. The service checks that they are in range."""

    widget = UnfoldAdminTextInputWidget

    def to_python(self, value: Any) -> list[int]:  # type: ignore[override]
        parts = [part.strip().removesuffix("%").strip() for part in str(value or "").split(",")]
        if not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts if part):
            raise forms.ValidationError(_("This is not a list of whole percentages. Give numbers such as 50, 80, 100."))
        return [int(part) for part in parts if part]

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(map(str, value)) if isinstance(value, list) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.prepare_value(initial or []) != (data or ""))


class BudgetForm(ServiceForm):
    monthly = AmountField(
        label=_("limit per month"),
        required=False,
        help_text=_("In credits. If empty, all available money may be spent."),
    )
    alerts = PercentsField(
        label=_("alert thresholds"),
        required=False,
        help_text=_("Percentages of the budget at which the tenant gets an alert, such as 50, 80, 100."),
    )
    overdraft = AmountField(
        label=_("overdraft limit"), required=False, help_text=_("How far the balance may go below zero, in credits.")
    )

    class Meta:
        model = Budget
        fields = ["tenant", "monthly", "alerts", "action", "overdraft"]


class TenantForm(forms.Form):
    tenant = forms.ModelChoiceField(
        Tenant.objects.order_by("name"), label=_("Tenant"), widget=UnfoldAdminSelectWidget()
    )


class CreditsForm(TenantForm):
    amount = AmountField(
        label=_("Credits"),
        help_text=_("An amount such as 1200 or 12.5. A negative amount takes available credits back."),
    )
    text = forms.CharField(label=_("Purpose"), max_length=200, widget=UnfoldAdminTextInputWidget())


class BudgetAdmin(ServiceAdmin):
    form = BudgetForm
    monthly_shown = amount_column("monthly", _("limit per month"))
    overdraft_shown = amount_column("overdraft", _("overdraft limit"))
    list_display = [
        *("tenant", "available_shown", "monthly_shown", "alerts_shown", "action", "overdraft_shown", "exhausted_at")
    ]
    list_filter = ["action"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name"]
    autocomplete_fields = ["tenant"]
    fields = ["tenant", "monthly", "alerts", "action", "overdraft"]
    fields_fixed = ("tenant",)
    actions_list = ["grant_credits"]
    list_before_template = "console/budgets_unset.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the budgets. Also show up to `MOST_UNSET` tenants that have credits but no budget, sorted by name."""
        rows = Account.objects.filter(kind=AccountKind.AVAILABLE.value, tenant__budget=None).exclude(balance=0)
        unset = list(rows.select_related("tenant").order_by("tenant__name")[: MOST_UNSET + 1])
        more = rows.count() - MOST_UNSET if len(unset) > MOST_UNSET else 0
        context = {"unset": unset[:MOST_UNSET], "more_unset": more, **(extra_context or {})}
        return super().changelist_view(request, context)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        return budget_set(principal=principal_of(request), **{**given, "overdraft": given["overdraft"] or 0})

    def get_queryset(self, request: HttpRequest) -> QuerySet[Budget]:
        balance = Account.objects.filter(tenant=OuterRef("tenant"), kind=AccountKind.AVAILABLE.value)
        return cast(
            "QuerySet[Budget]", super().get_queryset(request).annotate(available=Subquery(balance.values("balance")))
        )

    @display(description=_("available credits"), ordering="available")
    def available_shown(self, budget: Any) -> SafeString | str:
        return amount_text(budget.available or 0)

    @display(description=_("alert thresholds"))
    def alerts_shown(self, budget: Budget) -> str:
        return ", ".join(f"{alert} %" for alert in budget.alerts) or "–"

    @action(description=_("Grant credits"), url_path="grant-credits", icon="payments")
    def grant_credits(self, request: HttpRequest) -> HttpResponse:
        """Grant credits from the treasury to a tenant."""

        def act(given: dict[str, Any]) -> str:
            budget_grant(principal=principal_of(request), **given)
            named = {"tenant": given["tenant"], "amount": format_credits(given["amount"])}
            return now_("%(tenant)s got %(amount)s credits.") % named

        return act_by_form(
            self,
            request,
            CreditsForm,
            title=now_("Grant credits"),
            about=now_("The treasury issues the credits. If the tenant owes money, the credits pay the debt first."),
            button=now_("Grant credits"),
            act=act,
            then="quota_account_changelist",
        )


class AccountAdmin(FactsAdmin):
    """The page of the ledger's accounts. The sum of all balances is always zero."""

    balance_shown = amount_column("balance", _("balance"))
    list_display = ["tenant_shown", "kind", "balance_shown"]
    list_filter = ["kind"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name"]
    ordering = ["tenant__name", "kind"]
    fields = ["tenant", "kind", "balance_shown"]
    readonly_fields = ("balance_shown",)

    @display(description=_("tenant"), ordering="tenant__name")
    def tenant_shown(self, account: Account) -> Any:
        return account.tenant.name if account.tenant else _("the platform")


class PostingAdmin(FactsAdmin):
    """The postings of the ledger, which is append-only.

    The list does not show how many postings exist, because counting them is slow.
    """

    list_display = ["id", "occurred_at", "kind", "tenant", "order_id", "entries_shown", "text", "actor"]
    list_filter = ["kind"]
    list_select_related = ["tenant"]
    search_fields = ["=id", "=tenant__name", "=request_id", "=order__id"]
    ordering = ["-id"]
    paginator = InfinitePaginator
    fields = ["occurred_at", "kind", "tenant", "order", "entries_shown", "text", "actor", "request_id", "key"]
    readonly_fields = ("entries_shown",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Posting]:
        return super().get_queryset(request).prefetch_related("entries__account__tenant")

    @display(description=_("ledger entries"))
    def entries_shown(self, posting: Posting) -> SafeString:
        return format_html_join(
            "",
            '<div class="whitespace-nowrap">{}: {}</div>',
            ((str(entry.account), amount_text(entry.amount)) for entry in posting.entries.all()),
        )


class MonthForm(TenantForm):
    month = forms.DateField(
        label=_("Month"),
        input_formats=["%Y-%m"],
        help_text=_("A year and a month, such as 2026-11."),
        widget=UnfoldAdminTextInputWidget(),
    )


_INVOICE = ("number", "tenant", "month", "charged_shown", "refunded_shown", "total_shown", "issued_at")


class InvoiceAdmin(FactsAdmin):
    charged_shown = amount_column("charged", _("credits charged"))
    refunded_shown = amount_column("refunded", _("credits refunded"))
    total_shown = amount_column("total", _("total credits"))
    actions_list = ["close_month"]
    list_display = _INVOICE
    list_filter = ["month"]
    list_select_related = ["tenant"]
    search_fields = ["number", "tenant__name"]
    fields = (*_INVOICE, "time_zone", "begins_at", "ends_at")
    readonly_fields = ("charged_shown", "refunded_shown", "total_shown")

    @action(description=_("Close a month"), url_path="close-month", icon="event_available")
    def close_month(self, request: HttpRequest) -> HttpResponse:
        """Close a month of a tenant after the month has ended, without waiting for the automatic close. Idempotent."""

        def act(given: dict[str, Any]) -> str:
            invoice = invoice_close(principal=principal_of(request), **given)
            named = {"number": invoice.number, "tenant": given["tenant"], "total": format_credits(invoice.total)}
            return now_("Invoice %(number)s of %(tenant)s: %(total)s credits.") % named

        return act_by_form(
            self,
            request,
            MonthForm,
            title=now_("Close a month"),
            about=now_("This creates the final invoice of the month. After that, nothing can be posted in the month."),
            button=now_("Close the month"),
            act=act,
            then="quota_invoice_changelist",
        )


PAGES = {Budget: BudgetAdmin, Account: AccountAdmin, Posting: PostingAdmin, Invoice: InvoiceAdmin}
