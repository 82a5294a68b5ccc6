"""REST API for prices and quotes."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import clock, selectors
from quota.api.base import AmountsField, ListView, QuotaView
from quota.models import PriceList, Quote
from quota.pricing.capacity_for_sale import cell_require
from quota.pricing.price_lists import price_list_at, price_list_set, quote_make
from quota.pricing.what_if import what_if
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may, require


class PriceListSerializer(serializers.ModelSerializer[Any]):
    class Meta:
        model = PriceList
        fields = ["cell", "version", "base", "usage", "curve", "valid_from", "note", "created_by", "created_at"]


class PricesSerializer(serializers.Serializer[Any]):
    """Prices by resource, in micro-credits per hour for one unit (core, GiB, GiB/s or accelerator)."""

    cell = serializers.CharField(max_length=63)
    base = serializers.JSONField(help_text='{"cpu": 20000, "ram": 2500}')
    usage = serializers.JSONField(
        required=False, default=dict, help_text="The prices of used resources, in the same form as `base`."
    )
    curve = serializers.JSONField(
        required=False,
        default=list,  # type: ignore[arg-type]
        help_text="Pairs of the sold share and the price factor from this share on, both in thousandths.",
    )


class NewPriceListSerializer(PricesSerializer):
    note = serializers.CharField(max_length=200, required=False, allow_blank=True, default="")
    valid_from = serializers.DateTimeField(required=False, allow_null=True)


class PricesQuerySerializer(serializers.Serializer[Any]):
    cell = serializers.CharField(required=False, help_text="Return only price lists of this cell.")
    in_force = serializers.BooleanField(default=False, help_text="With `cell`: return only the current price list.")


@extend_schema_view(get=extend_schema(parameters=[PricesQuerySerializer]))
class PricesView(ListView):
    """List all versions of price lists."""

    serializer_class = PriceListSerializer

    def get_queryset(self) -> QuerySet[PriceList]:
        given = self.query(PricesQuerySerializer)
        cell = given.get("cell", "")
        require(self.principal, Action.CELL_VIEW, cell=cell)
        rows = PriceList.objects.order_by("id")
        if not cell:
            return rows
        cell_require(cell)
        now = price_list_at(cell, clock.now())  # the first read creates the first price list
        return rows.filter(pk=now.pk) if given["in_force"] else rows.filter(cell=cell)

    @extend_schema(request=NewPriceListSerializer, responses={201: PriceListSerializer})
    def post(self, request: Request) -> Response:
        """Create the next version of a cell's prices. Only for SREs."""
        require(self.principal, Action.PLATFORM_ADMIN)
        row = price_list_set(principal=self.principal, **self.body(NewPriceListSerializer))
        return Response(PriceListSerializer(row).data, status=201)


class SumSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    count = serializers.IntegerField()
    before = serializers.IntegerField()
    after = serializers.IntegerField()


class ExampleSerializer(serializers.Serializer[Any]):
    band = serializers.CharField()
    resource = serializers.CharField()
    quantity = serializers.IntegerField()
    sold_milli = serializers.IntegerField()
    before = serializers.IntegerField()
    after = serializers.IntegerField()


class WhatIfSerializer(serializers.Serializer[Any]):
    cell = serializers.CharField()
    since = serializers.DateTimeField()
    compared_with = serializers.IntegerField()
    orders = SumSerializer()
    orders_cut = serializers.BooleanField(help_text="True if there are more orders than are counted.")
    by_band = SumSerializer(many=True)
    by_tenant = SumSerializer(many=True)
    usage = SumSerializer()
    usage_by_band = SumSerializer(many=True)
    usage_by_tenant = SumSerializer(many=True)
    examples = ExampleSerializer(many=True)


class WhatIfView(QuotaView):
    @extend_schema(request=PricesSerializer, responses=WhatIfSerializer)
    def post(self, request: Request) -> Response:
        """Return what recent and open orders would cost at other prices. Changes nothing. Only for SREs."""
        require(self.principal, Action.PLATFORM_ADMIN)
        return Response(what_if(principal=self.principal, **self.body(PricesSerializer)))


class PartSerializer(serializers.Serializer[Any]):
    """The part of a price that one resource costs.

    A value that is not whole is written as a fraction, such as `1441/2`.
    """

    resource = serializers.CharField()
    quantity = serializers.IntegerField()
    hours = serializers.CharField()
    base = serializers.IntegerField()
    band_milli = serializers.IntegerField()
    sold_milli = serializers.CharField()
    then_milli = serializers.CharField()
    scarcity_milli = serializers.CharField()
    amount = serializers.IntegerField()


PRICED = ("id", "tenant", "cell", "band", "amounts", "starts_at", "ends_at", "price", "parts", "prices", "created_at")


class PricedSerializer(serializers.ModelSerializer[Any]):
    """The fields that quotes and orders share."""

    tenant = serializers.CharField(source="tenant.name")
    band = serializers.CharField(source="band.name")
    amounts = AmountsField()
    parts = PartSerializer(many=True)
    prices = serializers.IntegerField(source="prices.version", help_text="The version of the price list.")


class QuoteSerializer(PricedSerializer):
    """A quote. Prices are in micro-credits, and each amount is in the unit of its resource."""

    class Meta:
        model = Quote
        fields = (*PRICED, "made_by", "valid_until")


class NewQuoteSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(max_length=63)
    cell = serializers.CharField(max_length=63)
    band = serializers.CharField(max_length=63)
    amounts = serializers.DictField(child=serializers.JSONField())
    starts_at = serializers.DateTimeField(required=False, help_text="By default now.")
    ends_at = serializers.DateTimeField()


class QuotesQuerySerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(required=False, help_text="Return only quotes of this tenant.")


@extend_schema_view(get=extend_schema(parameters=[QuotesQuerySerializer]))
class QuotesView(ListView):
    """List the quotes of the tenants that you may see."""

    serializer_class = QuoteSerializer

    def get_queryset(self) -> QuerySet[Quote]:
        rows = _visible(self.principal)
        if tenant := self.query(QuotesQuerySerializer).get("tenant"):
            rows = rows.filter(tenant=selectors.tenant_named(self.principal, tenant))
        return rows

    @extend_schema(request=NewQuoteSerializer, responses={201: QuoteSerializer})
    def post(self, request: Request) -> Response:
        """Create a quote: a price that is valid for a while. `?dry_run=1` returns the price and stores nothing."""
        given = self.body(NewQuoteSerializer)
        tenant = selectors.tenant_named(self.principal, given.pop("tenant"))
        given.setdefault("starts_at", clock.now().replace(microsecond=0))
        return Response(QuoteSerializer(quote_make(principal=self.principal, tenant=tenant, **given)).data, status=201)


class QuoteView(QuotaView):
    @extend_schema(responses=QuoteSerializer)
    def get(self, request: Request, quote: int) -> Response:
        """Return a quote."""
        row = _visible(self.principal).filter(pk=quote).first()
        if row is None or not may(self.principal, Action.QUOTA_VIEW, tenant=row.tenant.name):
            raise NotFound("quote", str(quote))
        return Response(QuoteSerializer(row).data)


def _visible(principal: Principal) -> QuerySet[Quote]:
    tenants = selectors.tenants_visible(principal)
    return Quote.objects.filter(tenant__in=tenants).select_related("tenant", "band", "prices").order_by("id")
