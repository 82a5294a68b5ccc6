"""REST of prices and quotes."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import clock, selectors
from quota.api.base import QuotaView, page, principal_of, valid
from quota.models import PriceList, Quote
from quota.paging import IdPaging
from quota.pricing.market import cell_require
from quota.pricing.price_lists import price_list_at, price_list_set, quote_make
from quota.pricing.what_if import what_if
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, may, require
from quota.vocabulary.resources import as_mapping


class PriceListSerializer(serializers.ModelSerializer[Any]):
    class Meta:
        model = PriceList
        fields = ["cell", "version", "base", "usage", "curve", "valid_from", "note", "created_by", "created_at"]


class PricesSerializer(serializers.Serializer[Any]):
    """Prices by resource in micro-credits for one unit (core, GiB, GiB/s, accelerator) and hour."""

    cell = serializers.CharField(max_length=63)
    base = serializers.JSONField(help_text='{"cpu": 20000, "ram": 2500}')
    usage = serializers.JSONField(
        required=False, default=dict, help_text="The price of used resources, in the same form as that of quota."
    )
    curve = serializers.JSONField(
        required=False,
        default=list,  # type: ignore[arg-type]
        help_text="[[sold share, factor], …], both in thousandths.",
    )


class NewPriceListSerializer(PricesSerializer):
    note = serializers.CharField(max_length=200, required=False, allow_blank=True, default="")
    valid_from = serializers.DateTimeField(required=False, allow_null=True)


class PricesView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(
        parameters=[
            OpenApiParameter("cell", OpenApiTypes.STR, description="Return only price lists of this cell."),
            OpenApiParameter(
                "in_force", OpenApiTypes.BOOL, description="If you give a cell, return only its current list."
            ),
        ],
        responses=PriceListSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List all versions of price lists."""
        require(principal_of(request), Action.CELL_VIEW)
        rows = PriceList.objects.order_by("id")
        if cell := request.query_params.get("cell", ""):
            require(principal_of(request), Action.CELL_VIEW, cell=cell)
            cell_require(cell)
            now = price_list_at(cell, clock.now())
            rows = rows.filter(cell=cell)
            if request.query_params.get("in_force", "0").lower() in ("1", "true"):
                rows = rows.filter(pk=now.pk)
        return page(self, request, rows, PriceListSerializer)

    @extend_schema(request=NewPriceListSerializer, responses={201: PriceListSerializer})
    def post(self, request: Request) -> Response:
        """Create the next version of a cell's prices."""
        require(principal_of(request), Action.PLATFORM_ADMIN)
        given = valid(NewPriceListSerializer, request.data)
        return Response(PriceListSerializer(price_list_set(principal=principal_of(request), **given)).data, status=201)


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
    orders_cut = serializers.BooleanField(help_text="There were more orders than the computation counts.")
    by_band = SumSerializer(many=True)
    by_tenant = SumSerializer(many=True)
    usage = SumSerializer()
    usage_by_band = SumSerializer(many=True)
    usage_by_tenant = SumSerializer(many=True)
    examples = ExampleSerializer(many=True)


class WhatIfView(QuotaView):
    @extend_schema(request=PricesSerializer, responses=WhatIfSerializer)
    def post(self, request: Request) -> Response:
        """Return what recent and open orders would cost at other prices. Changes nothing."""
        require(principal_of(request), Action.PLATFORM_ADMIN)
        given = valid(PricesSerializer, request.data)
        return Response(what_if(principal=principal_of(request), **given))


class PartSerializer(serializers.Serializer[Any]):
    """The part of one resource in a price. Values that are not whole are fractions, such as `1441/2`."""

    resource = serializers.CharField()
    quantity = serializers.IntegerField()
    hours = serializers.CharField()
    base = serializers.IntegerField()
    band_milli = serializers.IntegerField()
    sold_milli = serializers.CharField()
    then_milli = serializers.CharField()
    scarcity_milli = serializers.CharField()
    amount = serializers.IntegerField()


class QuoteSerializer(serializers.ModelSerializer[Any]):
    tenant = serializers.CharField(source="tenant.name")
    band = serializers.CharField(source="band.name")
    amounts = serializers.SerializerMethodField()
    parts = PartSerializer(many=True)
    prices = serializers.IntegerField(source="prices.version", help_text="The version of the price list.")

    class Meta:
        model = Quote
        fields = [
            "id",
            "tenant",
            "cell",
            "band",
            "amounts",
            "starts_at",
            "ends_at",
            "price",
            "parts",
            "prices",
            "made_by",
            "created_at",
            "valid_until",
        ]

    def get_amounts(self, quote: Quote) -> dict[str, int]:
        return as_mapping(quote.amounts)


class NewQuoteSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(max_length=63)
    cell = serializers.CharField(max_length=63)
    band = serializers.CharField(max_length=63)
    amounts = serializers.DictField(child=serializers.JSONField())
    starts_at = serializers.DateTimeField(required=False, help_text="By default now.")
    ends_at = serializers.DateTimeField()


class QuotesView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(
        parameters=[OpenApiParameter("tenant", OpenApiTypes.STR, description="Return only quotes of this tenant.")],
        responses=QuoteSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List the quotes of the tenants that you may see."""
        rows = _visible(request)
        if tenant := request.query_params.get("tenant", ""):
            rows = rows.filter(tenant=selectors.tenant_named(principal_of(request), tenant))
        return page(self, request, rows, QuoteSerializer)

    @extend_schema(request=NewQuoteSerializer, responses={201: QuoteSerializer})
    def post(self, request: Request) -> Response:
        """Create a quote: a price that is valid for a while. `?dry_run=1` returns the price and stores nothing."""
        principal = principal_of(request)
        given: dict[str, Any] = valid(NewQuoteSerializer, request.data)
        tenant = selectors.tenant_named(principal, given.pop("tenant"))
        given.setdefault("starts_at", clock.now().replace(microsecond=0))
        return Response(QuoteSerializer(quote_make(principal=principal, tenant=tenant, **given)).data, status=201)


class QuoteView(QuotaView):
    @extend_schema(responses=QuoteSerializer)
    def get(self, request: Request, quote: int) -> Response:
        row = _visible(request).filter(pk=quote).first()
        if row is None or not may(principal_of(request), Action.QUOTA_VIEW, tenant=row.tenant.name):
            raise NotFound("quote", str(quote))
        return Response(QuoteSerializer(row).data)


def _visible(request: Request) -> QuerySet[Quote]:
    tenants = selectors.tenants_visible(principal_of(request))
    return Quote.objects.filter(tenant__in=tenants).select_related("tenant", "band", "prices").order_by("id")
