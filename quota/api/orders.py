"""REST of orders: place them, decide about them, change them."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import selectors
from quota.api.base import QuotaView, page, principal_of, valid
from quota.api.prices import NewQuoteSerializer, PartSerializer
from quota.market.orders import (
    order_approve,
    order_cancel,
    order_change,
    order_place,
    order_reject,
    order_renewal_set,
    order_transfer,
)
from quota.models import Order, OrderState
from quota.paging import IdPaging
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, may
from quota.vocabulary.resources import as_mapping

_MOST = 2**63 - 1


class OrderSerializer(serializers.ModelSerializer[Any]):
    """Prices in micro-credits; amounts in the units of the axis."""

    tenant = serializers.CharField(source="tenant.name")
    band = serializers.CharField(source="band.name")
    amounts = serializers.SerializerMethodField()
    parts = PartSerializer(many=True)
    prices = serializers.IntegerField(source="prices.version", help_text="The version of the price list.")

    class Meta:
        model = Order
        fields = [
            "id",
            "tenant",
            "cell",
            "band",
            "amounts",
            "starts_at",
            "ends_at",
            "grace_until",
            "state",
            "price",
            "refunded",
            "parts",
            "prices",
            "quote",
            "approver",
            "renew",
            "renew_error",
            "replaces",
            "replaced_as",
            "key",
            "note",
            "placed_by",
            "created_at",
            "decided_by",
            "decided_at",
            "reason",
            "ended_at",
        ]

    def get_amounts(self, order: Order) -> dict[str, int]:
        return as_mapping(order.amounts)


class NewOrderSerializer(NewQuoteSerializer):
    """The fields of a quote, and those that only an order has."""

    quote = serializers.IntegerField(
        min_value=1, max_value=_MOST, required=False, help_text="Order at the price of this quote."
    )
    renew = serializers.BooleanField(required=False)
    note = serializers.CharField(max_length=500, required=False, allow_blank=True)
    key = serializers.CharField(
        max_length=64, required=False, help_text="A key that you choose. The same key orders only once."
    )


class OrderReasonSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=500, required=False, allow_blank=True)


class OrderRejectionSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=500)


class OrderChangeSerializer(serializers.Serializer[Any]):
    amounts = serializers.DictField(child=serializers.JSONField(), required=False)
    starts_at = serializers.DateTimeField(required=False, help_text="Only an order that has not begun accepts this.")
    ends_at = serializers.DateTimeField(required=False)
    note = serializers.CharField(max_length=500, required=False, allow_blank=True)
    key = serializers.CharField(max_length=64, required=False)


class OrderTransferSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(max_length=63)
    note = serializers.CharField(max_length=500, required=False, allow_blank=True)
    key = serializers.CharField(max_length=64, required=False)


class OrderRenewalSerializer(serializers.Serializer[Any]):
    renew = serializers.BooleanField()


class OrdersView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(
        parameters=[
            OpenApiParameter("tenant", OpenApiTypes.STR, description="Return only orders of this tenant."),
            OpenApiParameter("cell", OpenApiTypes.STR, description="Return only orders of this cell."),
            OpenApiParameter("state", OpenApiTypes.STR, enum=[s.value for s in OrderState]),
        ],
        responses=OrderSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List the orders of the tenants that you may see."""
        rows, given = _visible(request), request.query_params
        if tenant := given.get("tenant", ""):
            rows = rows.filter(tenant=selectors.tenant_named(principal_of(request), tenant))
        if cell := given.get("cell", ""):
            rows = rows.filter(cell=cell)
        if state := given.get("state", ""):
            known = [s.value for s in OrderState]
            if state not in known:
                detail = f"one of {', '.join(known)}"
                raise Rejected("invalid", f"state: {state[:50]!r}; give {detail}", fields={"state": detail})
            rows = rows.filter(state=state)
        return page(self, request, rows, OrderSerializer)

    @extend_schema(request=NewOrderSerializer, responses={201: OrderSerializer})
    def post(self, request: Request) -> Response:
        """Order quota. `?dry_run=1` returns whether it is available, its price, and who would decide."""
        principal = principal_of(request)
        given: dict[str, Any] = valid(NewOrderSerializer, request.data)
        tenant = selectors.tenant_named(principal, given.pop("tenant"))
        return _answer(order_place(principal=principal, tenant=tenant, **given), status=201)


class OrderView(QuotaView):
    @extend_schema(responses=OrderSerializer)
    def get(self, request: Request, order: int) -> Response:
        return _answer(_order(request, order))


class OrderApproveView(QuotaView):
    @extend_schema(request=OrderReasonSerializer, responses=OrderSerializer)
    def post(self, request: Request, order: int) -> Response:
        """Approve a pending order. Only SREs may approve their own."""
        row = _order(request, order)
        given = valid(OrderReasonSerializer, request.data)
        return _answer(order_approve(principal=principal_of(request), order=row, **given))


class OrderRejectView(QuotaView):
    @extend_schema(request=OrderRejectionSerializer, responses=OrderSerializer)
    def post(self, request: Request, order: int) -> Response:
        """Reject a pending order, with a reason."""
        row = _order(request, order)
        given = valid(OrderRejectionSerializer, request.data)
        return _answer(order_reject(principal=principal_of(request), order=row, **given))


class OrderCancelView(QuotaView):
    @extend_schema(request=OrderReasonSerializer, responses=OrderSerializer)
    def post(self, request: Request, order: int) -> Response:
        """Cancel an order. If it has begun, the remaining whole days are refunded."""
        row = _order(request, order)
        given = valid(OrderReasonSerializer, request.data)
        return _answer(order_cancel(principal=principal_of(request), order=row, **given))


class OrderChangeView(QuotaView):
    @extend_schema(request=OrderChangeSerializer, responses={201: OrderSerializer})
    def post(self, request: Request, order: int) -> Response:
        """Change amounts or period. Returns the order that replaces this one."""
        row = _order(request, order)
        given = valid(OrderChangeSerializer, request.data)
        return _answer(order_change(principal=principal_of(request), order=row, **given), status=201)


class OrderTransferView(QuotaView):
    @extend_schema(request=OrderTransferSerializer, responses={201: OrderSerializer})
    def post(self, request: Request, order: int) -> Response:
        """Transfer the rest to another team, which pays for it. Returns the order of that team."""
        row, principal = _order(request, order), principal_of(request)
        given = valid(OrderTransferSerializer, request.data)
        tenant = selectors.tenant_named(principal, given.pop("tenant"))
        return _answer(order_transfer(principal=principal, order=row, tenant=tenant, **given), status=201)


class OrderRenewView(QuotaView):
    @extend_schema(request=OrderRenewalSerializer, responses=OrderSerializer)
    def post(self, request: Request, order: int) -> Response:
        """Switch automatic renewal on or off."""
        row = _order(request, order)
        given = valid(OrderRenewalSerializer, request.data)
        return _answer(order_renewal_set(principal=principal_of(request), order=row, **given))


def _visible(request: Request) -> QuerySet[Order]:
    tenants = selectors.tenants_visible(principal_of(request))
    return Order.objects.filter(tenant__in=tenants).select_related("tenant", "band", "prices").order_by("id")


def _order(request: Request, pk: int) -> Order:
    """Return the order. Raises `NotFound`, also for an order that the principal may not see."""
    row = _visible(request).filter(pk=pk).first() if pk <= _MOST else None
    if row is None or not may(principal_of(request), Action.QUOTA_VIEW, tenant=row.tenant.name):
        raise NotFound("order", str(pk))
    return row


def _answer(order: Order, *, status: int = 200) -> Response:
    return Response(OrderSerializer(order).data, status=status)
