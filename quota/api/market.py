"""REST API for the market of a cell: the rules by which it sells quota, the calendar of sold quota, approval rules for
orders, and shortfalls (sold quota that exceeds capacity).
"""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import clock, selectors
from quota.api.base import AmountsField, ListView, QuotaView
from quota.market.approval_rules import APPROVERS, rule_remove, rule_set
from quota.models import ApprovalRule, Market, Shortfall
from quota.pricing.capacity_for_sale import band_named, calendar_days, cell_require, market_of, market_set
from quota.vocabulary.permissions import Action, require

MOST_DAYS = 400


class MarketSerializer(serializers.ModelSerializer[Any]):
    class Meta:
        model = Market
        fields = [
            "cell",
            "selling",
            "headroom_milli",
            "grace_hours",
            "after_grace",
            "drop_after_hours",
            "quote_minutes",
            "approval_hours",
            "longest_days",
        ]


class MarketChangeSerializer(serializers.ModelSerializer[Any]):
    """A change of a market's rules. Omitted fields stay unchanged."""

    class Meta:
        model = Market
        fields = MarketSerializer.Meta.fields[1:]


class MarketView(QuotaView):
    @extend_schema(responses=MarketSerializer)
    def get(self, request: Request, cell: str) -> Response:
        """Return the rules by which a cell's quota is sold."""
        require(self.principal, Action.CELL_VIEW, cell=cell)
        cell_require(cell)
        return Response(MarketSerializer(market_of(cell)).data)

    @extend_schema(request=MarketChangeSerializer, responses=MarketSerializer)
    def put(self, request: Request, cell: str) -> Response:
        """Change the rules by which a cell sells quota. The grace period of sold quota stays the same."""
        require(self.principal, Action.PLATFORM_ADMIN)
        given = self.body(MarketChangeSerializer)
        cell_require(cell)
        return Response(MarketSerializer(market_set(principal=self.principal, cell=cell, **given)).data)


def _near_today(date: dt.date) -> None:
    if abs(date - clock.now().date()) > dt.timedelta(days=36_500):
        raise serializers.ValidationError("the date is too far from today; give a date within 100 years")


def _is_time_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise serializers.ValidationError("the time zone is unknown; give a name such as Europe/Berlin") from error


class CalendarQuerySerializer(serializers.Serializer[Any]):
    cell = serializers.CharField()
    band = serializers.CharField()
    first = serializers.DateField(
        required=False, validators=[_near_today], help_text="The first day; by default today."
    )
    days = serializers.IntegerField(min_value=1, max_value=MOST_DAYS, default=30)
    time_zone = serializers.CharField(default="UTC", validators=[_is_time_zone], help_text="Such as Europe/Berlin.")


class SoldAmountsField(AmountsField):
    """A field that shows amounts of the resources that can be bought. Amounts below zero are shown as 0."""

    def to_representation(self, value: Any) -> dict[str, int]:
        return {name: max(0, amount) for name, amount in super().to_representation(value).items() if name != "ports"}


class CalendarDaySerializer(serializers.Serializer[Any]):
    """A day of the calendar of sold quota.

    `limit`: quota that may be sold; `sold`: the maximum that is sold at any time of the day; `left`: the minimum that
    is available at any time of the day.
    """

    date = serializers.DateField()
    begins_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    limit = SoldAmountsField()
    sold = SoldAmountsField()
    left = SoldAmountsField()


class CalendarView(QuotaView):
    @extend_schema(parameters=[CalendarQuerySerializer], responses=CalendarDaySerializer(many=True))
    def get(self, request: Request) -> Response:
        """Return the quota that can be bought in a band of a cell on each day."""
        given = self.query(CalendarQuerySerializer)
        require(self.principal, Action.CELL_VIEW, cell=given["cell"])
        cell_require(given["cell"])
        zone = ZoneInfo(given["time_zone"])
        first = given.get("first") or clock.now().astimezone(zone).date()
        rows = calendar_days(given["cell"], given["band"], first, given["days"], zone)
        return Response(CalendarDaySerializer(rows, many=True).data)


class ApprovalRuleSerializer(serializers.ModelSerializer[Any]):
    band = serializers.CharField(source="band.name", default="")
    tenant = serializers.CharField(source="tenant.name", default="")

    class Meta:
        model = ApprovalRule
        fields = ["rank", "cell", "band", "tenant", "most_price", "approver"]


class ApprovalRuleChangeSerializer(serializers.Serializer[Any]):
    approver = serializers.ChoiceField(list(APPROVERS))
    cell = serializers.CharField(max_length=63, required=False, allow_blank=True)
    band = serializers.CharField(max_length=63, required=False, allow_blank=True)
    tenant = serializers.CharField(max_length=63, required=False, allow_blank=True)
    most_price = serializers.IntegerField(
        required=False, allow_null=True, help_text="Micro-credits. The rule applies to orders up to this price."
    )


class RulesView(ListView):
    """List the approval rules, by rank. The first rule that matches an order decides who approves it. Rules for tenants
    that you may not see are omitted.
    """

    serializer_class = ApprovalRuleSerializer

    def get_queryset(self) -> QuerySet[ApprovalRule]:
        visible = selectors.tenants_visible(self.principal)
        return ApprovalRule.objects.filter(Q(tenant=None) | Q(tenant__in=visible)).select_related("band", "tenant")


class RuleView(QuotaView):
    @extend_schema(request=ApprovalRuleChangeSerializer, responses=ApprovalRuleSerializer)
    def put(self, request: Request, rank: int) -> Response:
        """Create the approval rule with this rank, or replace the existing rule. Only for SREs."""
        require(self.principal, Action.PLATFORM_ADMIN)
        given = self.body(ApprovalRuleChangeSerializer)
        name, band = given.pop("tenant", ""), given.pop("band", "")
        given["tenant"] = selectors.tenant_named(self.principal, name) if name else None
        given["band"] = band_named(band) if band else None
        return Response(ApprovalRuleSerializer(rule_set(principal=self.principal, rank=rank, **given)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, rank: int) -> Response:
        """Delete the approval rule with this rank. SREs decide about orders that match no rule."""
        rule_remove(principal=self.principal, rank=min(rank, 2**31 - 1))
        return Response(status=204)


class ShortfallSerializer(serializers.ModelSerializer[Any]):
    short = AmountsField()
    orders = serializers.ListField(child=serializers.IntegerField(), help_text="Newest first.")
    tenants = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = Shortfall
        fields = ["id", "cell", "begins_at", "ends_at", "short", "orders", "tenants", "found_at", "closed_at"]


class ShortfallQuerySerializer(serializers.Serializer[Any]):
    open = serializers.BooleanField(default=False, help_text="True returns only open shortfalls.")


@extend_schema(parameters=[ShortfallQuerySerializer])
class ShortfallsView(ListView):
    """List shortfalls: periods in which the sold prod quota exceeds the capacity of the cell. Only for SREs."""

    serializer_class = ShortfallSerializer

    def get_queryset(self) -> QuerySet[Shortfall]:
        require(self.principal, Action.PLATFORM_ADMIN)
        rows = Shortfall.objects.order_by("id")
        return rows.filter(closed_at=None) if self.query(ShortfallQuerySerializer)["open"] else rows
