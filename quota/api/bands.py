"""REST API for the priority bands."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.admission.band_changes import band_set
from quota.api.base import ListView, QuotaView
from quota.models import PriorityBand
from quota.pricing.band_preview import band_preview
from quota.vocabulary.bands import Band
from quota.vocabulary.permissions import Action, require


class BandSerializer(serializers.ModelSerializer[Any]):
    """A priority band. `price_milli`: the factor of the base price, in thousandths. `oversell_milli`: the share of a
    cell's capacity that may be sold in the band, in thousandths.
    """

    class Meta:
        model = PriorityBand
        fields = ["name", "low", "high", "prod", "preempts_within", "price_milli", "oversell_milli"]


class BandChangeSerializer(serializers.Serializer[Any]):
    low = serializers.IntegerField()
    high = serializers.IntegerField()
    prod = serializers.BooleanField(help_text="Tasks are placed by their limits, never in reclaimed resources.")
    preempts_within = serializers.BooleanField()
    price_milli = serializers.IntegerField(required=False, help_text="By default unchanged.")
    oversell_milli = serializers.IntegerField(required=False, help_text="By default unchanged.")


class OverSerializer(serializers.Serializer[Any]):
    """A period in which the quota already sold would exceed the new limit of the band."""

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


class BandsView(ListView):
    """List the priority bands (§2.5)."""

    serializer_class = BandSerializer
    queryset = PriorityBand.objects.all()


class BandView(QuotaView):
    @extend_schema(request=BandChangeSerializer, responses=BandChangedSerializer)
    def put(self, request: Request, band: str) -> Response:
        """Create or change a band, and return the effect on sold quota. `?dry_run=1` changes nothing."""
        principal = self.principal
        require(principal, Action.PLATFORM_ADMIN)
        given = self.body(BandChangeSerializer)
        factors = {name: given.pop(name, None) for name in ("price_milli", "oversell_milli")}
        wanted = Band(name=band, **given)
        with transaction.atomic():
            effect = band_preview(principal=principal, band=wanted, **factors)
            row = band_set(principal=principal, band=wanted, **factors)
        return Response({"band": BandSerializer(row).data, "effect": effect})
