"""REST API for money: ledger, balances, budgets, invoices, costs. Amounts are whole micro-credits."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from quota import clock, selectors
from quota.api.base import ListView, QuotaView, valid
from quota.billing import costs, statements
from quota.billing.budgets import budget_set
from quota.billing.invoice_pdf import invoice_pdf
from quota.billing.invoice_table import exact, table_of
from quota.billing.invoices import invoice_close, invoice_draft, running_month
from quota.billing.ledger import budget_grant, budget_hand_down
from quota.billing.spending import ACTIONS
from quota.csv_files import csv_answer, file_answer
from quota.models import Invoice, Posting, Tenant
from quota.paging import IdPaging, NewestPaging, paged
from quota.vocabulary import months
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Action, require


class TenantQuerySerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(required=False, help_text="Return only items of this tenant.")


class EntrySerializer(serializers.Serializer[Any]):
    account = serializers.CharField(source="account.kind")
    tenant = serializers.CharField(source="account.tenant.name", default=None, allow_null=True)
    amount = serializers.IntegerField()


class PostingSerializer(serializers.ModelSerializer[Any]):
    """A posting: one movement of money. The amounts of its `entries` add up to zero."""

    tenant = serializers.CharField(source="tenant.name", default=None, allow_null=True)
    order = serializers.IntegerField(source="order_id", allow_null=True)
    entries = EntrySerializer(many=True)

    class Meta:
        model = Posting
        fields = ["id", "kind", "tenant", "order", "text", "actor", "occurred_at", "entries"]


class LedgerQuerySerializer(TenantQuerySerializer):
    kind = serializers.CharField(required=False, help_text="Return only postings of this kind, such as `charge`.")
    order = serializers.IntegerField(
        min_value=0, max_value=2**63 - 1, required=False, help_text="Return only postings of this order."
    )


@extend_schema(parameters=[LedgerQuerySerializer])
class LedgerView(ListView):
    """List postings with their entries, newest first, for the tenants whose money you may see."""

    serializer_class = PostingSerializer
    pagination_class = NewestPaging

    def get_queryset(self) -> QuerySet[Posting]:
        given = self.query(LedgerQuerySerializer)
        return statements.postings(self.principal, tenant=given.pop("tenant", None)).filter(**given)


class RunningSerializer(serializers.Serializer[Any]):
    """The spending of the current month.

    `waiting`: the money held for orders that begin before the month ends. `percent`: `spent` plus `waiting`, as a
    percentage of `limit`.
    """

    month = serializers.CharField(source="key")
    spent = serializers.IntegerField()
    usage = serializers.IntegerField()
    waiting = serializers.IntegerField()
    limit = serializers.IntegerField()
    percent = serializers.IntegerField()
    exhausted = serializers.BooleanField()


class StatementSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(source="tenant.name")
    time_zone = serializers.CharField(source="tenant.time_zone")
    available = serializers.IntegerField(source="spending.has.available")
    held = serializers.IntegerField(source="spending.has.held")
    owed = serializers.IntegerField(source="spending.has.owed")
    spendable = serializers.IntegerField(source="spending.has.spendable")
    monthly = serializers.IntegerField(source="budget.monthly", allow_null=True)
    alerts = serializers.ListField(source="budget.alerts", child=serializers.IntegerField())
    action = serializers.CharField(source="budget.action")
    overdraft = serializers.IntegerField(source="budget.overdraft")
    exhausted_at = serializers.DateTimeField(source="budget.exhausted_at", allow_null=True)
    running = RunningSerializer(source="spending")


class BalancesView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(responses=StatementSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the balance and this month's spending of each tenant whose money you may see."""
        tenants = statements.billed_tenants(self.principal)
        return paged(self, tenants, lambda rows: StatementSerializer(statements.statements(rows), many=True).data)


class BudgetSerializer(serializers.Serializer[Any]):
    monthly = serializers.IntegerField(required=False, allow_null=True, help_text="null: all available money.")
    alerts = serializers.ListField(
        child=serializers.IntegerField(),
        required=False,
        help_text="Percentages of the budget at which a notification is sent.",
    )
    action = serializers.ChoiceField(ACTIONS, required=False, help_text="What happens at 100 %.")
    overdraft = serializers.IntegerField(
        required=False, help_text="How far the balance may go below zero. Only SREs change this field."
    )


class BudgetView(QuotaView):
    @extend_schema(responses=StatementSerializer)
    def get(self, request: Request, tenant: str) -> Response:
        """Return the balance, the budget and this month's spending of a tenant."""
        return Response(_statement(statements.billed_tenant(self.principal, tenant)))

    @extend_schema(request=BudgetSerializer, responses=StatementSerializer)
    def put(self, request: Request, tenant: str) -> Response:
        """Set the budget of a tenant. If a field is omitted, its rule is removed. If `overdraft` is omitted, it is
        unchanged.
        """
        row = self.tenant(Action.BILLING_ADMIN)
        budget_set(principal=self.principal, tenant=row, **self.body(BudgetSerializer))
        return Response(_statement(row))


class FundsSerializer(serializers.Serializer[Any]):
    amount = serializers.IntegerField(help_text="Micro-credits; an amount below 0 takes available money back.")
    text = serializers.CharField(max_length=300, required=False, allow_blank=True)


class BudgetGrantsView(QuotaView):
    @extend_schema(request=FundsSerializer, responses={201: StatementSerializer})
    def post(self, request: Request, tenant: str) -> Response:
        """Grant money to a tenant. Only for SREs."""
        row = self.tenant()
        require(self.principal, Action.PLATFORM_ADMIN)
        budget_grant(principal=self.principal, tenant=row, **self.body(FundsSerializer))
        return Response(_statement(row), status=201)


class HandDownSerializer(serializers.Serializer[Any]):
    to = serializers.CharField(max_length=63, help_text="A team of the organisation, or the organisation of the team.")
    amount = serializers.IntegerField()
    text = serializers.CharField(max_length=300, required=False, allow_blank=True)


class HandDownView(QuotaView):
    @extend_schema(request=HandDownSerializer, responses={201: StatementSerializer})
    def post(self, request: Request, tenant: str) -> Response:
        """Move money from an organisation to one of its teams, or from a team to its organisation. Only for owners."""
        row = self.tenant(Action.BILLING_ADMIN)
        given = self.body(HandDownSerializer)
        to = selectors.tenant_named(self.principal, given.pop("to"))
        budget_hand_down(principal=self.principal, from_tenant=row, to_tenant=to, **given)
        return Response(_statement(row), status=201)


@extend_schema_field({"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$", "examples": ["2026-03"]})
class MonthField(serializers.DateField):
    """A month, such as 2026-03."""

    default_error_messages = {"invalid": "this is not a month; give a month such as 2026-03"}

    def __init__(self, **options: Any) -> None:
        within = [MinValueValidator(dt.date(1970, 1, 1)), MaxValueValidator(dt.date(9000, 12, 1))]
        super().__init__(format="%Y-%m", input_formats=["%Y-%m"], validators=within, **options)


class InvoiceSerializer(serializers.ModelSerializer[Any]):
    tenant = serializers.CharField(source="tenant.name")
    month = MonthField()

    class Meta:
        model = Invoice
        fields = [
            "number",
            "tenant",
            "month",
            "time_zone",
            "begins_at",
            "ends_at",
            "charged",
            "refunded",
            "total",
            "issued_at",
        ]


class LineSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    order = serializers.IntegerField(allow_null=True)
    cell = serializers.CharField()
    band = serializers.CharField()
    text = serializers.CharField()
    at = serializers.CharField(allow_null=True)
    starts_at = serializers.CharField(allow_null=True)
    ends_at = serializers.CharField(allow_null=True)
    amount = serializers.IntegerField(
        help_text="Refunds and credits are negative. The amounts of all lines add up to the total."
    )
    credit = serializers.IntegerField(
        default=None, allow_null=True, help_text="The id of a credit, whose evidence is at `quota/credits/{credit}/`."
    )


class WholeInvoiceSerializer(InvoiceSerializer):
    lines = LineSerializer(many=True)

    class Meta(InvoiceSerializer.Meta):
        fields = [*InvoiceSerializer.Meta.fields, "lines"]


class NewInvoiceSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(max_length=63)
    month = MonthField()


@extend_schema_view(get=extend_schema(parameters=[TenantQuerySerializer]))
class InvoicesView(ListView):
    """List invoices of closed months, newest first."""

    serializer_class = InvoiceSerializer
    pagination_class = NewestPaging

    def get_queryset(self) -> QuerySet[Invoice]:
        return statements.invoices(self.principal, **self.query(TenantQuerySerializer))

    @extend_schema(request=NewInvoiceSerializer, responses={201: WholeInvoiceSerializer})
    def post(self, request: Request) -> Response:
        """Close a month that has ended, before it closes automatically. Only for SREs. Idempotent."""
        require(self.principal, Action.PLATFORM_ADMIN)
        given = self.body(NewInvoiceSerializer)
        tenant = selectors.tenant_named(self.principal, given["tenant"])
        invoice = invoice_close(principal=self.principal, tenant=tenant, month=given["month"])
        return Response(WholeInvoiceSerializer(invoice).data, status=201)


class InvoiceView(QuotaView):
    @extend_schema(responses=WholeInvoiceSerializer)
    def get(self, request: Request, number: str) -> Response:
        """Return an invoice with its lines."""
        return Response(WholeInvoiceSerializer(statements.invoice_numbered(self.principal, number)).data)


class DraftQuerySerializer(serializers.Serializer[Any]):
    month = MonthField(required=False, help_text="Month such as 2026-03; by default the current month.")


class DraftView(QuotaView):
    @extend_schema(parameters=[DraftQuerySerializer], responses=WholeInvoiceSerializer)
    def get(self, request: Request, tenant: str) -> Response:
        """Return a draft of the invoice of a month, or the final invoice if the month is closed."""
        row = statements.billed_tenant(self.principal, tenant)
        return Response(WholeInvoiceSerializer(invoice_draft(row, self.query(DraftQuerySerializer).get("month"))).data)


class AnyAccept(DefaultContentNegotiation):
    """Content negotiation that ignores the header Accept. The path selects the format. Errors are JSON."""

    def select_renderer(
        self,
        request: Request,
        renderers: list[BaseRenderer],  # type: ignore[override]
        format_suffix: str | None = None,
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


class InvoicePdfView(QuotaView):
    content_negotiation_class = AnyAccept

    @extend_schema(responses={(200, "application/pdf"): OpenApiTypes.BINARY})
    def get(self, request: Request, number: str) -> HttpResponse:
        """Return an invoice as PDF."""
        invoice = statements.invoice_numbered(self.principal, number)
        return file_answer(f"{invoice.number}.pdf", invoice_pdf(invoice), "application/pdf")


class InvoiceCsvView(QuotaView):
    content_negotiation_class = AnyAccept

    @extend_schema(responses={(200, "text/csv"): OpenApiTypes.STR})
    def get(self, request: Request, number: str) -> HttpResponse:
        """Return the lines of an invoice as CSV (RFC 4180). Their amounts add up to the total of the invoice."""
        invoice = statements.invoice_numbered(self.principal, number)
        return csv_answer(f"{invoice.number}.csv", table_of(invoice, invoice.tenant.name))


class CostsQuerySerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(
        max_length=63, required=False, help_text="By default all tenants whose money you may see."
    )
    since = serializers.DateTimeField(required=False, help_text="By default the start of the current month.")
    until = serializers.DateTimeField(required=False, help_text="By default the end of the current month.")
    month = MonthField(
        required=False, help_text="A month such as 2026-03 in the tenant's time zone, instead of `since` and `until`."
    )
    by = serializers.ChoiceField(costs.SPLITS, required=False)
    label = serializers.CharField(max_length=63, required=False, help_text="The key of the label, if `by` is `label`.")  # type: ignore[assignment]


class CostSerializer(serializers.Serializer[Any]):
    """The costs of one job, team, band, cell or label value, which `key` names.

    `quota`: the cost of quota that jobs requested. `unused`: the cost of quota that no job requested. If costs are
    split by job, the row with an empty `key` contains the unused quota.
    """

    key = serializers.CharField()
    quota = serializers.IntegerField()
    unused = serializers.IntegerField()
    usage = serializers.IntegerField()
    total = serializers.IntegerField()


class CostsView(QuotaView):
    @extend_schema(parameters=[CostsQuerySerializer], responses=CostSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Return the costs of quota and usage in a period, by job, team, band, cell or label, highest first."""
        return Response(CostSerializer(_costs(self), many=True).data)


class CostsCsvView(QuotaView):
    content_negotiation_class = AnyAccept

    @extend_schema(parameters=[CostsQuerySerializer], responses={(200, "text/csv"): OpenApiTypes.STR})
    def get(self, request: Request) -> HttpResponse:
        """Return the costs of quota and usage in a period as CSV, in credits."""
        head = (request.query_params.get("by") or "job", "quota", "unused", "usage", "total")
        rows = [
            (cost.key, exact(cost.quota), exact(cost.unused), exact(cost.usage), exact(cost.total))
            for cost in _costs(self)
        ]
        return csv_answer("costs.csv", [head, *rows])


def _costs(view: QuotaView) -> list[costs.Cost]:
    given = valid(CostsQuerySerializer, view.request.query_params.dict())
    name, principal = given.get("tenant"), view.principal
    tenants = [statements.billed_tenant(principal, name)] if name else list(statements.billed_tenants(principal))
    since, until = _period(given, tenants[0] if name else None)
    return costs.costs(tenants, since=since, until=until, by=given.get("by", "job"), label=given.get("label", ""))


def _period(given: dict[str, Any], tenant: Tenant | None) -> tuple[dt.datetime, dt.datetime]:
    zone = tenant.time_zone if tenant else "UTC"
    if "month" in given:
        if "since" in given or "until" in given:
            raise invalid("month", "the request has a month and a period; give either `month`, or `since` and `until`")
        month = given["month"]
    else:
        month = running_month(tenant) if tenant else months.month_of(clock.now(), zone)
    since, until = months.bounds(month, zone)
    return given.get("since", since), given.get("until", until)


def _statement(tenant: Tenant) -> dict[str, Any]:
    return StatementSerializer(statements.statements([tenant])[0]).data
