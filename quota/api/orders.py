"""REST API for orders: placing, approving, rejecting and changing orders."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import selectors
from quota.api.base import ListView, QuotaView
from quota.api.prices import PRICED, NewQuoteSerializer, PricedSerializer
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
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may

_MOST = 2**63 - 1


class OrderSerializer(PricedSerializer):
    """An order. Prices are in micro-credits, and each amount is in the unit of its resource."""

    class Meta:
        model = Order
        fields = (
            *PRICED,
            "grace_until",
            "state",
            "refunded",
            "quote",
            "approver",
            "renew",
            "renew_error",
            "replaces",
            "replaced_as",
            "key",
            "note",
            "placed_by",
            "decided_by",
            "decided_at",
            "reason",
            "ended_at",
        )


class OrderNoteSerializer(serializers.Serializer[Any]):
    note = serializers.CharField(max_length=500, required=False, allow_blank=True)
    key = serializers.CharField(
        max_length=64, required=False, help_text="A key that you choose. Requests with the same key order only once."
    )


class NewOrderSerializer(OrderNoteSerializer, NewQuoteSerializer):
    """A new order: the fields of a quote, and the fields that only an order has."""

    quote = serializers.IntegerField(
        min_value=1, max_value=_MOST, required=False, help_text="Order at the price of this quote."
    )
    renew = serializers.BooleanField(required=False)


class OrderReasonSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=500, required=False, allow_blank=True)


class OrderRejectionSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=500)


class OrderChangeSerializer(OrderNoteSerializer):
    amounts = serializers.DictField(child=serializers.JSONField(), required=False)
    starts_at = serializers.DateTimeField(required=False, help_text="Only for an order that has not begun.")
    ends_at = serializers.DateTimeField(required=False)


class OrderTransferSerializer(OrderNoteSerializer):
    tenant = serializers.CharField(max_length=63)


class OrderRenewalSerializer(serializers.Serializer[Any]):
    renew = serializers.BooleanField()


class OrderQuerySerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(required=False, help_text="Return only orders of this tenant.")
    cell = serializers.CharField(required=False, help_text="Return only orders of this cell.")
    state = serializers.ChoiceField([state.value for state in OrderState], required=False)


class OneOrderView(QuotaView):
    def order(self, pk: int) -> Order:
        """Return the order. Raises `NotFound` if the order does not exist, or if the principal may not see it."""
        row = _visible(self.principal).filter(pk=pk).first() if pk <= _MOST else None
        if row is None or not may(self.principal, Action.QUOTA_VIEW, tenant=row.tenant.name):
            raise NotFound("order", str(pk))
        return row


@extend_schema_view(get=extend_schema(parameters=[OrderQuerySerializer]))
class OrdersView(ListView):
    """List the orders of the tenants that you may see."""

    serializer_class = OrderSerializer

    def get_queryset(self) -> QuerySet[Order]:
        given = self.query(OrderQuerySerializer)
        if "tenant" in given:
            given["tenant"] = selectors.tenant_named(self.principal, given["tenant"])
        return _visible(self.principal).filter(**given)

    @extend_schema(request=NewOrderSerializer, responses={201: OrderSerializer})
    def post(self, request: Request) -> Response:
        """Order quota.

        With `?dry_run=1`, no order is placed. The answer contains the price, whether the quota is available, and who
        would approve the order.
        """
        given = self.body(NewOrderSerializer)
        tenant = selectors.tenant_named(self.principal, given.pop("tenant"))
        return _answer(order_place(principal=self.principal, tenant=tenant, **given), status=201)


class OrderView(OneOrderView):
    @extend_schema(responses=OrderSerializer)
    def get(self, request: Request, order: int) -> Response:
        """Return an order."""
        return _answer(self.order(order))


class OrderApproveView(OneOrderView):
    @extend_schema(request=OrderReasonSerializer, responses=OrderSerializer)
    def post(self, request: Request, order: int) -> Response:
        """Approve a pending order. SREs may also approve orders that they placed themselves; other users may not."""
        row = self.order(order)
        return _answer(order_approve(principal=self.principal, order=row, **self.body(OrderReasonSerializer)))


class OrderRejectView(OneOrderView):
    @extend_schema(request=OrderRejectionSerializer, responses=OrderSerializer)
    def post(self, request: Request, order: int) -> Response:
        """Reject a pending order, with a reason."""
        row = self.order(order)
        return _answer(order_reject(principal=self.principal, order=row, **self.body(OrderRejectionSerializer)))


class OrderCancelView(OneOrderView):
    @extend_schema(request=OrderReasonSerializer, responses=OrderSerializer)
    def post(self, request: Request, order: int) -> Response:
        """Cancel an order. If it has begun, the remaining whole days are refunded."""
        row = self.order(order)
        return _answer(order_cancel(principal=self.principal, order=row, **self.body(OrderReasonSerializer)))


class OrderChangeView(OneOrderView):
    @extend_schema(request=OrderChangeSerializer, responses={201: OrderSerializer})
    def post(self, request: Request, order: int) -> Response:
        """Change the amounts or the period of an order. Returns the new order, which replaces the old one."""
        row = self.order(order)
        given = self.body(OrderChangeSerializer)
        return _answer(order_change(principal=self.principal, order=row, **given), status=201)


class OrderTransferView(OneOrderView):
    @extend_schema(request=OrderTransferSerializer, responses={201: OrderSerializer})
    def post(self, request: Request, order: int) -> Response:
        """Transfer the remaining period of an order to another team, which pays for it.

        Returns the team's new order.
        """
        row = self.order(order)
        given = self.body(OrderTransferSerializer)
        tenant = selectors.tenant_named(self.principal, given.pop("tenant"))
        return _answer(order_transfer(principal=self.principal, order=row, tenant=tenant, **given), status=201)


class OrderRenewView(OneOrderView):
    @extend_schema(request=OrderRenewalSerializer, responses=OrderSerializer)
    def post(self, request: Request, order: int) -> Response:
        """Switch the automatic renewal of an order on or off."""
        row = self.order(order)
        return _answer(order_renewal_set(principal=self.principal, order=row, **self.body(OrderRenewalSerializer)))


def _visible(principal: Principal) -> QuerySet[Order]:
    tenants = selectors.tenants_visible(principal)
    return Order.objects.filter(tenant__in=tenants).select_related("tenant", "band", "prices").order_by("id")


def _answer(order: Order, *, status: int = 200) -> Response:
    return Response(OrderSerializer(order).data, status=status)
