"""REST API for credits: what a tenant gets back because a cell broke its promise. Amounts are micro-credits."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import clock
from quota.api.base import ListView, QuotaView
from quota.api.money import AnyAccept, MonthField
from quota.billing.credits import selectors
from quota.billing.credits.corrections import amount_now, credit_correct
from quota.billing.statements import billed_tenant
from quota.csv_files import csv_answer
from quota.models import Credit
from quota.paging import NewestPaging
from quota.vocabulary.permissions import Action, require


class CreditQuerySerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(max_length=63, required=False, help_text="Return only credits of this tenant.")
    month = MonthField(required=False, help_text="Return only credits on the invoice of this month, such as 2026-03.")
    cell = serializers.CharField(max_length=63, required=False, help_text="Return only credits of this cell.")


class CreditSerializer(serializers.ModelSerializer[Any]):
    """A line of credit for one job and month. `amount`: negative if a correction takes a credit back."""

    tenant = serializers.CharField(source="tenant.name")
    month = MonthField()
    posting = serializers.IntegerField(source="posting_id")
    corrects = serializers.IntegerField(source="corrects_id", allow_null=True)

    class Meta:
        model = Credit
        fields = [
            *("id", "tenant", "cell", "month", "job", "job_uid", "kind", "amount", "since", "until", "posting"),
            *("corrects", "reason", "actor", "created_at"),
        ]


class EvidenceSerializer(serializers.Serializer[Any]):
    """The breaches of one hour with one cause. `terms`: the promise in force. `tasks`: how many tasks, at most at once.
    `task_seconds`: how long they were pending beyond the promise. `items`: the first of them, with times and events.
    """

    hour = serializers.CharField()
    cause = serializers.CharField()
    terms = serializers.DictField(child=serializers.FloatField())
    tasks = serializers.IntegerField()
    task_seconds = serializers.FloatField()
    evictions = serializers.IntegerField()
    amount = serializers.IntegerField()
    items = serializers.ListField(child=serializers.DictField())


class WholeCreditSerializer(CreditSerializer):
    """A line of credit with its evidence. `amount_now`: the amount after all corrections."""

    evidence = EvidenceSerializer(many=True)
    amount_now = serializers.SerializerMethodField()
    corrections = CreditSerializer(many=True, source="corrections.all")

    class Meta(CreditSerializer.Meta):
        fields = [*CreditSerializer.Meta.fields, "amount_now", "corrections", "evidence"]

    def get_amount_now(self, row: Credit) -> int:
        return amount_now(row)


class ExpectedJobSerializer(serializers.Serializer[Any]):
    """What the breaches of one job would be credited now. `hours`: how many rows of hours and causes. `unmetered`: how
    many of them are not metered yet, and count as 0.
    """

    cell = serializers.CharField()
    job = serializers.CharField()
    kind = serializers.CharField()
    amount = serializers.IntegerField()
    hours = serializers.IntegerField()
    unmetered = serializers.IntegerField()


class ExpectedCreditSerializer(serializers.Serializer[Any]):
    """What a tenant would be credited now. The invoice may credit another amount, because the charges of the month may
    change. `jobs`: the largest amounts, at most 200 of `number`. `complete`: false if there are so many breaches that
    only the oldest ones were priced.
    """

    amount = serializers.IntegerField()
    number = serializers.IntegerField()
    complete = serializers.BooleanField()
    jobs = ExpectedJobSerializer(many=True)


class CreditTotalSerializer(serializers.Serializer[Any]):
    """What was credited in a cell on the invoices of a month. `given`: without corrections."""

    cell = serializers.CharField()
    month = MonthField()
    tenants = serializers.IntegerField()
    jobs = serializers.IntegerField()
    given = serializers.IntegerField()
    corrected = serializers.IntegerField()
    total = serializers.IntegerField()


class CorrectionSerializer(serializers.Serializer[Any]):
    to = serializers.IntegerField(help_text="The new amount of the credit; not the difference.")
    reason = serializers.CharField(max_length=300, help_text="Why it is corrected. The tenant reads it.")


@extend_schema_view(get=extend_schema(parameters=[CreditQuerySerializer]))
class CreditsView(ListView):
    """List credits and corrections, newest first, for the tenants whose money you may see."""

    serializer_class = CreditSerializer
    pagination_class = NewestPaging

    def get_queryset(self) -> QuerySet[Credit]:
        return selectors.credits_visible(self.principal, **self.query(CreditQuerySerializer)).defer("evidence")


class CreditView(QuotaView):
    @extend_schema(responses=WholeCreditSerializer)
    def get(self, request: Request, credit: int) -> Response:
        """Return a credit with its evidence: the hours, tasks, causes and events."""
        return Response(WholeCreditSerializer(selectors.credit_numbered(self.principal, credit)).data)


class CreditCorrectView(QuotaView):
    @extend_schema(request=CorrectionSerializer, responses=WholeCreditSerializer)
    def post(self, request: Request, credit: int) -> Response:
        """Correct a credit by a line of its own, of which the tenant is notified. Idempotent. Only for SREs."""
        require(self.principal, Action.PLATFORM_ADMIN)
        row = selectors.credit_numbered(self.principal, credit)
        credit_correct(principal=self.principal, credit=row, **self.body(CorrectionSerializer))
        return Response(WholeCreditSerializer(row).data)


class ExpectedCreditsView(QuotaView):
    @extend_schema(responses=ExpectedCreditSerializer)
    def get(self, request: Request, tenant: str) -> Response:
        """Return what the breaches that are on no invoice yet would be credited now, by job."""
        row = billed_tenant(self.principal, tenant)
        return Response(ExpectedCreditSerializer(selectors.expected(row, until=clock.now())).data)


class CreditTotalsView(QuotaView):
    @extend_schema(responses=CreditTotalSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the sums of credits per cell and month of the last 13 months, newest first. Only for SREs."""
        return Response(CreditTotalSerializer(selectors.totals(self.principal), many=True).data)


class CreditsCsvView(QuotaView):
    content_negotiation_class = AnyAccept

    @extend_schema(parameters=[CreditQuerySerializer], responses={(200, "text/csv"): OpenApiTypes.STR})
    def get(self, request: Request) -> HttpResponse:
        """Return credits with their evidence as CSV: one row per hour with its amount, and one row per task. The file
        has the newest 2,000 credits.
        """
        rows = selectors.credits_visible(self.principal, **self.query(CreditQuerySerializer))
        return csv_answer("credits.csv", selectors.table(rows))
