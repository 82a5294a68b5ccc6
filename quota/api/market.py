"""REST of the market of a cell: its rules, its calendar, who approves, and what is short."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.db.models import Q
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import clock, selectors
from quota.api.base import QuotaView, page, principal_of, valid
from quota.market.approval_rules import APPROVERS, rule_remove, rule_set
from quota.models import ApprovalRule, Market, Shortfall
from quota.paging import IdPaging
from quota.pricing.market import band_named, calendar_days, cell_require, market_of, market_set
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, require
from quota.vocabulary.resources import as_mapping

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


class MarketChangeSerializer(serializers.Serializer[Any]):
    """A change of a market's rules. Omitted fields stay unchanged."""

    selling = serializers.BooleanField(required=False)
    headroom_milli = serializers.IntegerField(required=False, min_value=0, max_value=1000)
    grace_hours = serializers.IntegerField(required=False, min_value=0)
    after_grace = serializers.ChoiceField(["refuse", "drop"], required=False)
    drop_after_hours = serializers.IntegerField(required=False, min_value=0)
    quote_minutes = serializers.IntegerField(required=False, min_value=1)
    approval_hours = serializers.IntegerField(required=False, min_value=1)
    longest_days = serializers.IntegerField(required=False, min_value=1)


class MarketView(QuotaView):
    @extend_schema(responses=MarketSerializer)
    def get(self, request: Request, cell: str) -> Response:
        """Return the rules by which a cell's quota is sold."""
        require(principal_of(request), Action.CELL_VIEW, cell=cell)
        cell_require(cell)
        return Response(MarketSerializer(market_of(cell)).data)

    @extend_schema(request=MarketChangeSerializer, responses=MarketSerializer)
    def put(self, request: Request, cell: str) -> Response:
        """Change the selling rules of a cell. Sold quota keeps the grace period that it was sold with."""
        require(principal_of(request), Action.PLATFORM_ADMIN)
        given = valid(MarketChangeSerializer, request.data)
        cell_require(cell)
        return Response(MarketSerializer(market_set(principal=principal_of(request), cell=cell, **given)).data)


class CalendarDaySerializer(serializers.Serializer[Any]):
    """A day: what may be sold, the most that is sold and the least that is available at any moment of it."""

    date = serializers.DateField()
    begins_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    limit = serializers.DictField(child=serializers.IntegerField())
    sold = serializers.DictField(child=serializers.IntegerField())
    left = serializers.DictField(child=serializers.IntegerField())


class CalendarView(QuotaView):
    @extend_schema(
        parameters=[
            OpenApiParameter("cell", OpenApiTypes.STR, required=True),
            OpenApiParameter("band", OpenApiTypes.STR, required=True),
            OpenApiParameter("first", OpenApiTypes.DATE, description="The first day; by default today."),
            OpenApiParameter("days", OpenApiTypes.INT, description=f"1 to {MOST_DAYS}; 30 when left out."),
            OpenApiParameter(
                "time_zone", OpenApiTypes.STR, description="Time zone such as Europe/Berlin; by default UTC."
            ),
        ],
        responses=CalendarDaySerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """Return what is available in a band of a cell on each day."""
        given = request.query_params
        cell = given.get("cell", "")
        require(principal_of(request), Action.CELL_VIEW, cell=cell)
        cell_require(cell)
        zone = _zone(given.get("time_zone", "") or "UTC")
        first = _date(given.get("first", "")) or clock.now().astimezone(zone).date()
        rows = calendar_days(cell, given.get("band", ""), first, _days(given.get("days", "") or "30"), zone)
        return Response([row.as_json() for row in rows])


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


class RulesView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(responses=ApprovalRuleSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the approval rules, by rank; the first that fits decides. Only rules of tenants that you may see."""
        visible = selectors.tenants_visible(principal_of(request))
        rows = ApprovalRule.objects.filter(Q(tenant=None) | Q(tenant__in=visible)).select_related("band", "tenant")
        return page(self, request, rows, ApprovalRuleSerializer)


class RuleView(QuotaView):
    @extend_schema(request=ApprovalRuleChangeSerializer, responses=ApprovalRuleSerializer)
    def put(self, request: Request, rank: int) -> Response:
        """Create or replace the rule of a rank."""
        principal = principal_of(request)
        require(principal, Action.PLATFORM_ADMIN)
        given: dict[str, Any] = valid(ApprovalRuleChangeSerializer, request.data)
        name = given.pop("tenant", "")
        given["tenant"] = selectors.tenant_named(principal, name) if name else None
        band = given.pop("band", "")
        given["band"] = band_named(band) if band else None
        return Response(ApprovalRuleSerializer(rule_set(principal=principal, rank=rank, **given)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, rank: int) -> Response:
        """Delete a rule. SREs decide about orders that no rule fits."""
        rule_remove(principal=principal_of(request), rank=min(rank, 2**31 - 1))
        return Response(status=204)


class ShortfallSerializer(serializers.ModelSerializer[Any]):
    short = serializers.SerializerMethodField()
    orders = serializers.ListField(child=serializers.IntegerField(), help_text="Newest first.")
    tenants = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = Shortfall
        fields = ["id", "cell", "begins_at", "ends_at", "short", "orders", "tenants", "found_at", "closed_at"]

    def get_short(self, row: Shortfall) -> dict[str, int]:
        return as_mapping(row.short)


class ShortfallsView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(
        parameters=[OpenApiParameter("open", OpenApiTypes.BOOL, description="Only open ones.")],
        responses=ShortfallSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List periods in which more prod quota is sold than the cell has. Only for SREs."""
        require(principal_of(request), Action.PLATFORM_ADMIN)
        rows = Shortfall.objects.order_by("id")
        if request.query_params.get("open", "0").lower() in ("1", "true"):
            rows = rows.filter(closed_at=None)
        return page(self, request, rows, ShortfallSerializer)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        detail = "the name of a time zone, such as Europe/Berlin"
        raise Rejected("invalid", f"time_zone: {name[:50]!r}; give {detail}", fields={"time_zone": detail}) from error


def _date(text: str) -> dt.date | None:
    """Return the date from the query. It must be within a century of today, which keeps all calculations valid."""
    if not text:
        return None
    detail = "a date such as 2027-01-31, not a hundred years away"
    try:
        date = dt.date.fromisoformat(text)
    except ValueError as error:
        raise Rejected("invalid", f"first: {text[:50]!r}; give {detail}", fields={"first": detail}) from error
    if abs(date - clock.now().date()) > dt.timedelta(days=36_500):
        raise Rejected("invalid", f"first: {text[:50]!r}; give {detail}", fields={"first": detail})
    return date


def _days(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_DAYS):
        detail = f"1 to {MOST_DAYS}"
        raise Rejected("invalid", f"days: {text[:50]!r}; give {detail}", fields={"days": detail})
    return int(text)
