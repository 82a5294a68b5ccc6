"""REST of the priority bands."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.admission.bands import band_set
from quota.api.base import QuotaView, page, principal_of, valid
from quota.models import PriorityBand
from quota.paging import IdPaging
from quota.pricing.band_preview import band_preview
from quota.vocabulary.bands import Band
from quota.vocabulary.permissions import Action, require


class BandSerializer(serializers.ModelSerializer[Any]):
    """The factors of a band in thousandths: of the base price, and of a cell's capacity."""

    class Meta:
        model = PriorityBand
        fields = ["name", "low", "high", "prod", "preempts_within", "price_milli", "oversell_milli"]


class BandChangeSerializer(serializers.Serializer[Any]):
    low = serializers.IntegerField()
    high = serializers.IntegerField()
    prod = serializers.BooleanField(help_text="Tasks are placed by limits, never in reclaimed resources.")
    preempts_within = serializers.BooleanField()
    price_milli = serializers.IntegerField(required=False, help_text="Unchanged if left out.")
    oversell_milli = serializers.IntegerField(required=False, help_text="Unchanged if left out.")


class OverSerializer(serializers.Serializer[Any]):
    """A period in which more would be sold than allowed."""

    begins_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField(allow_null=True)
    short = serializers.DictField(child=serializers.IntegerField())
    orders = serializers.ListField(child=serializers.IntegerField())
    grants = serializers.ListField(child=serializers.IntegerField())
    tenants = serializers.ListField(child=serializers.CharField())


class CellEffectSerializer(serializers.Serializer[Any]):
    cell = serializers.CharField()
    sold = serializers.DictField(child=serializers.IntegerField())
    sold_with_others = serializers.DictField(child=serializers.IntegerField())
    sellable_before = serializers.DictField(child=serializers.IntegerField())
    sellable_after = serializers.DictField(child=serializers.IntegerField())
    over = OverSerializer(many=True)


class LeavingSerializer(serializers.Serializer[Any]):
    cell = serializers.CharField()
    tenant = serializers.CharField()
    in_use = serializers.DictField(child=serializers.IntegerField())


class BandEffectSerializer(serializers.Serializer[Any]):
    band = serializers.CharField()
    changes = serializers.DictField(child=serializers.ListField(), help_text="By field: the value before and after.")
    cells = CellEffectSerializer(many=True)
    leaving = LeavingSerializer(many=True)


class BandChangedSerializer(serializers.Serializer[Any]):
    band = BandSerializer()
    effect = BandEffectSerializer()


class BandsView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(responses=BandSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the priority bands (§2.5)."""
        return page(self, request, PriorityBand.objects.all(), BandSerializer)


class BandView(QuotaView):
    @extend_schema(request=BandChangeSerializer, responses=BandChangedSerializer)
    def put(self, request: Request, band: str) -> Response:
        """Create or change a band, and return the effect on sold quota. `?dry_run=1` changes nothing."""
        principal = principal_of(request)
        require(principal, Action.PLATFORM_ADMIN)
        given: dict[str, Any] = valid(BandChangeSerializer, request.data)
        factors = {name: given.pop(name, None) for name in ("price_milli", "oversell_milli")}
        wanted = Band(name=band, **given)
        with transaction.atomic():
            effect = band_preview(principal=principal, band=wanted, **factors)
            row = band_set(principal=principal, band=wanted, **factors)
        return Response({"band": BandSerializer(row).data, "effect": effect})
