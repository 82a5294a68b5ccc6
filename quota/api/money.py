"""REST of money: ledger, balances, budgets, invoices, costs. Amounts are whole micro-credits."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from quota import clock, selectors
from quota.api.base import QuotaView, page, principal_of, valid
from quota.billing import costs, statements
from quota.billing.budgets import budget_set
from quota.billing.invoice_lines import exact, table_of
from quota.billing.invoice_pdf import invoice_pdf
from quota.billing.invoices import invoice_close, invoice_draft, running_month
from quota.billing.ledger import budget_grant, budget_hand_down
from quota.billing.spending import ACTIONS
from quota.models import Invoice, Posting, Tenant
from quota.paging import IdPaging, NewestPaging, paged
from quota.tables import csv_answer, file_answer
from quota.vocabulary import months
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, require

OF_TENANT = OpenApiParameter("tenant", OpenApiTypes.STR, description="Return only items of this tenant.")


class EntrySerializer(serializers.Serializer[Any]):
    account = serializers.CharField(source="account.kind")
    tenant = serializers.CharField(source="account.tenant.name", default=None, allow_null=True)
    amount = serializers.IntegerField()


class PostingSerializer(serializers.ModelSerializer[Any]):
    """`entries` add up to zero."""

    tenant = serializers.CharField(source="tenant.name", default=None, allow_null=True)
    order = serializers.IntegerField(source="order_id", allow_null=True)
    entries = EntrySerializer(many=True)

    class Meta:
        model = Posting
        fields = ["id", "kind", "tenant", "order", "text", "actor", "occurred_at", "entries"]


class LedgerView(QuotaView):
    pagination_class = NewestPaging

    @extend_schema(
        parameters=[
            OF_TENANT,
            OpenApiParameter(
                "kind", OpenApiTypes.STR, description="Return only postings of this kind, such as `charge`."
            ),
            OpenApiParameter("order", OpenApiTypes.INT, description="Return only postings of this order."),
        ],
        responses=PostingSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List postings with their entries, newest first, for the tenants whose money you may see."""
        rows = statements.postings(principal_of(request), tenant=request.query_params.get("tenant") or None)
        if kind := request.query_params.get("kind"):
            rows = rows.filter(kind=kind)
        if given := request.query_params.get("order"):
            rows = rows.filter(order_id=_whole("order", given))
        return page(self, request, rows, PostingSerializer)


class RunningSerializer(serializers.Serializer[Any]):
    """The current month. `waiting`: held for orders that begin before its end; `percent`: of `limit`."""

    month = serializers.CharField()
    spent = serializers.IntegerField()
    usage = serializers.IntegerField()
    waiting = serializers.IntegerField()
    limit = serializers.IntegerField()
    percent = serializers.IntegerField()
    exhausted = serializers.BooleanField()


class StatementSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    time_zone = serializers.CharField()
    available = serializers.IntegerField()
    held = serializers.IntegerField()
    owed = serializers.IntegerField()
    spendable = serializers.IntegerField()
    monthly = serializers.IntegerField(allow_null=True)
    alerts = serializers.ListField(child=serializers.IntegerField())
    action = serializers.CharField()
    overdraft = serializers.IntegerField()
    exhausted_at = serializers.DateTimeField(allow_null=True)
    running = RunningSerializer()


class BalancesView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(responses=StatementSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List balance and spending of this month per tenant whose money you may see."""
        tenants = statements.billed_tenants(principal_of(request))
        return paged(self, tenants, lambda rows: [found.as_json() for found in statements.statements(rows)])


class BudgetSerializer(serializers.Serializer[Any]):
    monthly = serializers.IntegerField(required=False, allow_null=True, help_text="null: the available money.")
    alerts = serializers.ListField(
        child=serializers.IntegerField(),
        required=False,
        help_text="Percentages of the budget at which a notification is sent.",
    )
    action = serializers.ChoiceField(ACTIONS, required=False, help_text="At 100 %.")
    overdraft = serializers.IntegerField(
        required=False, help_text="How far below zero the tenant may buy. Only SREs change it."
    )


class BudgetView(QuotaView):
    @extend_schema(responses=StatementSerializer)
    def get(self, request: Request, tenant: str) -> Response:
        return Response(_statement(statements.billed_tenant(principal_of(request), tenant)))

    @extend_schema(request=BudgetSerializer, responses=StatementSerializer)
    def put(self, request: Request, tenant: str) -> Response:
        """Set the budget of a tenant. Fields that are left out are switched off, except the overdraft."""
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        require(principal, Action.BILLING_ADMIN, tenant=row.name)
        budget_set(principal=principal, tenant=row, **valid(BudgetSerializer, request.data))
        return Response(_statement(row))


class FundsSerializer(serializers.Serializer[Any]):
    amount = serializers.IntegerField(help_text="Micro-credits; a value below 0 takes available money back.")
    text = serializers.CharField(max_length=300, required=False, allow_blank=True)


class BudgetGrantsView(QuotaView):
    @extend_schema(request=FundsSerializer, responses={201: StatementSerializer})
    def post(self, request: Request, tenant: str) -> Response:
        """Grant money to a tenant. Only for SREs."""
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        require(principal, Action.PLATFORM_ADMIN)
        budget_grant(principal=principal, tenant=row, **valid(FundsSerializer, request.data))
        return Response(_statement(row), status=201)


class HandDownSerializer(serializers.Serializer[Any]):
    to = serializers.CharField(max_length=63, help_text="A team of the organisation, or the organisation of the team.")
    amount = serializers.IntegerField()
    text = serializers.CharField(max_length=300, required=False, allow_blank=True)


class HandDownView(QuotaView):
    @extend_schema(request=HandDownSerializer, responses={201: StatementSerializer})
    def post(self, request: Request, tenant: str) -> Response:
        """Move money of an organisation to a team, or back. Only for owners."""
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        require(principal, Action.BILLING_ADMIN, tenant=row.name)
        given = valid(HandDownSerializer, request.data)
        to = selectors.tenant_named(principal, given.pop("to"))
        budget_hand_down(principal=principal, from_tenant=row, to_tenant=to, **given)
        return Response(_statement(row), status=201)


@extend_schema_field({"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$", "examples": ["2026-03"]})
class MonthField(serializers.DateField):
    """A month, such as 2026-03."""

    def __init__(self, **options: Any) -> None:
        super().__init__(format="%Y-%m", **options)


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
    amount = serializers.IntegerField(help_text="Refunds are below 0; all lines add up to the total.")


class WholeInvoiceSerializer(InvoiceSerializer):
    lines = LineSerializer(many=True)

    class Meta(InvoiceSerializer.Meta):
        fields = [*InvoiceSerializer.Meta.fields, "lines"]


class NewInvoiceSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(max_length=63)
    month = serializers.CharField(max_length=7, help_text="2026-03")


class InvoicesView(QuotaView):
    pagination_class = NewestPaging

    @extend_schema(parameters=[OF_TENANT], responses=InvoiceSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List invoices of closed months, newest first."""
        rows = statements.invoices(principal_of(request), tenant=request.query_params.get("tenant") or None)
        return page(self, request, rows, InvoiceSerializer)

    @extend_schema(request=NewInvoiceSerializer, responses={201: WholeInvoiceSerializer})
    def post(self, request: Request) -> Response:
        """Close a month that has ended, before it closes automatically. Only for SREs. Idempotent."""
        principal = principal_of(request)
        require(principal, Action.PLATFORM_ADMIN)
        given = valid(NewInvoiceSerializer, request.data)
        tenant = selectors.tenant_named(principal, given["tenant"])
        invoice = invoice_close(principal=principal, tenant=tenant, month=_month(given["month"]))
        return Response(WholeInvoiceSerializer(invoice).data, status=201)


class InvoiceView(QuotaView):
    @extend_schema(responses=WholeInvoiceSerializer)
    def get(self, request: Request, number: str) -> Response:
        return Response(WholeInvoiceSerializer(statements.invoice_numbered(principal_of(request), number)).data)


class DraftView(QuotaView):
    @extend_schema(
        parameters=[
            OpenApiParameter(
                "month", OpenApiTypes.STR, description="Month such as 2026-03; by default the current one."
            )
        ],
        responses=WholeInvoiceSerializer,
    )
    def get(self, request: Request, tenant: str) -> Response:
        """Return the draft of a month's invoice, or the invoice if the month is closed."""
        row = statements.billed_tenant(principal_of(request), tenant)
        given = request.query_params.get("month")
        return Response(WholeInvoiceSerializer(invoice_draft(row, _month(given) if given else None)).data)


class AsItIs(BaseContentNegotiation):
    """The path says what the answer is, whatever the client accepts; errors are JSON."""

    def select_parser(self, request: Request, parsers: list[Any]) -> Any:  # type: ignore[override]
        return parsers[0]

    def select_renderer(
        self,
        request: Request,
        renderers: list[BaseRenderer],  # type: ignore[override]
        format_suffix: str | None = None,
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


class InvoicePdfView(QuotaView):
    content_negotiation_class = AsItIs

    @extend_schema(responses={(200, "application/pdf"): OpenApiTypes.BINARY})
    def get(self, request: Request, number: str) -> HttpResponse:
        """Return an invoice as PDF."""
        invoice = statements.invoice_numbered(principal_of(request), number)
        return file_answer(f"{invoice.number}.pdf", invoice_pdf(invoice), "application/pdf")


class InvoiceCsvView(QuotaView):
    content_negotiation_class = AsItIs

    @extend_schema(responses={(200, "text/csv"): OpenApiTypes.STR})
    def get(self, request: Request, number: str) -> HttpResponse:
        """Return the lines of an invoice as CSV (RFC 4180). They add up to its total exactly."""
        invoice = statements.invoice_numbered(principal_of(request), number)
        return csv_answer(f"{invoice.number}.csv", table_of(invoice, invoice.tenant.name))


class CostsQuerySerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(
        max_length=63, required=False, help_text="By default all tenants whose money you may see."
    )
    since = serializers.DateTimeField(required=False, help_text="By default the begin of the current month.")
    until = serializers.DateTimeField(required=False, help_text="By default the end of the current month.")
    month = serializers.CharField(
        max_length=7,
        required=False,
        help_text="A month such as 2026-03 in the tenant's time zone, instead of `from` and `until`.",
    )
    by = serializers.ChoiceField(costs.SPLITS, required=False)
    label = serializers.CharField(max_length=63, required=False, help_text="With by=label: the key of the label.")  # type: ignore[assignment]


class CostSerializer(serializers.Serializer[Any]):
    """`quota`: bought and asked for; `unused`: bought and not asked for; its key is empty where no job can be named."""

    key = serializers.CharField()
    quota = serializers.IntegerField()
    unused = serializers.IntegerField()
    usage = serializers.IntegerField()
    total = serializers.IntegerField()


class CostsView(QuotaView):
    @extend_schema(parameters=[CostsQuerySerializer], responses=CostSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Return the costs of quota and usage in a period, by job, team, band, cell or label, highest first."""
        return Response([cost.as_json() for cost in _costs(request)])


class CostsCsvView(QuotaView):
    content_negotiation_class = AsItIs

    @extend_schema(parameters=[CostsQuerySerializer], responses={(200, "text/csv"): OpenApiTypes.STR})
    def get(self, request: Request) -> HttpResponse:
        """Return the costs as CSV, in credits."""
        head = (request.query_params.get("by") or "job", "quota", "unused", "usage", "total")
        rows = [
            (cost.key, exact(cost.quota), exact(cost.unused), exact(cost.usage), exact(cost.total))
            for cost in _costs(request)
        ]
        return csv_answer("costs.csv", [head, *rows])


def _costs(request: Request) -> list[costs.Cost]:
    principal = principal_of(request)
    given = valid(CostsQuerySerializer, request.query_params.dict())
    name = given.get("tenant")
    tenants = [statements.billed_tenant(principal, name)] if name else list(statements.billed_tenants(principal))
    since, until = _period(given, tenants[0] if name else None)
    return costs.costs(tenants, since=since, until=until, by=given.get("by", "job"), label=given.get("label", ""))


def _period(given: dict[str, Any], tenant: Tenant | None) -> tuple[dt.datetime, dt.datetime]:
    zone = tenant.time_zone if tenant else "UTC"
    if "month" in given:
        if "since" in given or "until" in given:
            detail = "give it alone, not beside since and until"
            raise Rejected("invalid", f"month: {detail}", fields={"month": detail})
        month = _month(given["month"])
    else:
        month = running_month(tenant) if tenant else months.month_of(clock.now(), zone)
    since, until = months.bounds(month, zone)
    return given.get("since", since), given.get("until", until)


def _statement(tenant: Tenant) -> dict[str, Any]:
    return statements.statements([tenant])[0].as_json()


def _month(given: str) -> dt.date:
    try:
        month = dt.datetime.strptime(given, "%Y-%m").date()
    except ValueError as error:
        raise Rejected(
            "invalid", f"month: {given[:20]!r}; give 2026-03", fields={"month": "such as 2026-03"}
        ) from error
    if not 1970 <= month.year <= 9000:
        raise Rejected("invalid", f"month: {given[:20]!r}; give 1970-01 or later", fields={"month": "out of range"})
    return month


def _whole(name: str, given: str) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) <= 18):
        raise Rejected("invalid", f"{name}: {given[:50]!r}; give its number", fields={name: "a number"})
    return int(given)
