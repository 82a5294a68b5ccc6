"""The REST view of the cures of a pending job: changes with which its tasks would start, the cheapest first."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.vocabulary.money import format_credits
from scheduling.access import selectors
from scheduling.api.base import CellView, whole
from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.cures.cure_list import Cure, CureKind
from scheduling.cures.cure_texts import effect_of
from scheduling.cures.cures import cures_of


class CureSerializer(serializers.Serializer[Any]):
    """A way in which the pending tasks would start. Nothing has been changed or reserved."""

    key = serializers.CharField()
    kind = serializers.ChoiceField([kind.value for kind in CureKind])
    cell = serializers.CharField(help_text="The cell in which the tasks would run.")
    change = serializers.CharField(help_text="What changes, as a sentence.")
    patch = serializers.DictField(allow_null=True, help_text="A JSON merge patch of the job file, for an update.")
    tasks = serializers.IntegerField(help_text="Number of tasks that were tried.")
    places = serializers.IntegerField(help_text="Number of tasks that would be placed at once.")
    preempts = serializers.IntegerField(help_text="Number of tasks of lower priority that they would preempt.")
    restarts = serializers.IntegerField(help_text="Number of running tasks of the job that would restart.")
    effect = serializers.SerializerMethodField(help_text="These numbers as a sentence; empty if nothing is placed.")
    verified = serializers.BooleanField(help_text="Whether the scheduler of the cell has tried this.")
    revision = serializers.IntegerField(allow_null=True, help_text="The revision of the cell that it was tried on.")
    price_difference = serializers.IntegerField(
        allow_null=True,
        help_text="By how much the list price of the job's quota for 30 days changes, in micro-credits. Null if you may"
        " not see prices.",
    )
    price_difference_text = serializers.SerializerMethodField(help_text="The same in credits, with its sign.")
    order = serializers.DictField(
        allow_null=True, help_text="An order of quota that is necessary first, with its price and its command."
    )
    order_path = serializers.CharField(help_text="The page of the portal on which this order can be placed, or empty.")
    approver = serializers.CharField(
        help_text="The approver of the order: owner or sre. Empty if it needs no approval."
    )
    starts_at = serializers.DateTimeField(allow_null=True, help_text="The expected start. Null if it is not known.")
    start = serializers.CharField(help_text="The expected start as a sentence.")
    commands = serializers.ListField(child=serializers.CharField(), help_text="The commands that apply it, in order.")
    path = serializers.CharField(help_text="The page of the portal with the filled form, or empty.")

    def get_effect(self, cure: Cure) -> str:
        return effect_of(cure)

    def get_price_difference_text(self, cure: Cure) -> str | None:
        if cure.price_difference is None:
            return None
        return f"{'+' if cure.price_difference > 0 else ''}{format_credits(cure.price_difference, places=2)}"


class CuresSerializer(serializers.Serializer[Any]):
    cures = CureSerializer(many=True, help_text="The cheapest first; equally cheap ones by their expected start.")
    notes = serializers.ListField(
        child=serializers.CharField(), help_text="What was not tried, and why. It is empty if everything was tried."
    )


class CuresView(CellView):
    @extend_schema(
        operation_id="jobs_cures",
        parameters=[OpenApiParameter("index", OpenApiTypes.INT, description="Only for the task of this index.")],
        responses=CuresSerializer,
    )
    def get(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Return the changes with which the pending tasks of the job would start, the cheapest first: a smaller
        request, another cell, another band, more quota, or waiting. The schedulers of the cells try them on their
        present state, which takes up to a second. Changes nothing.
        """
        found = self.job(cell, tenant, job)
        index = whole(request, "index", -1, low=0, high=MAX_TASKS - 1)
        if index >= 0:
            selectors.task_at(found, index)
        cures = cures_of(self.principal, found, index=index if index >= 0 else None)
        return Response(CuresSerializer(cures).data)
