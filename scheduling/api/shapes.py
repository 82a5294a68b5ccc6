"""How REST tells which shapes of requests fit the machines (§2.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rest_framework import serializers

from scheduling.core.explaining.wording import format_fit
from scheduling.jobs.guidance import Guidance, shapes_document


class ShapeSerializer(serializers.Serializer):
    """A limit of which one machine of the commonest fitting kind holds `per_machine`."""

    limit = serializers.DictField(child=serializers.IntegerField())
    per_machine = serializers.IntegerField()
    machines = serializers.IntegerField(help_text="Of that kind.")
    in_all = serializers.IntegerField(help_text="Tasks the cell could hold at once, were it empty.")


class ConformingSerializer(serializers.Serializer):
    """Shapes that are likely to schedule (§2.6): as asked, one more per machine, and as large as fits as often."""

    wanted = serializers.DictField(child=serializers.IntegerField())
    machines = serializers.IntegerField(help_text="That could hold one if they were empty.")
    now = serializers.IntegerField(help_text="That can hold one at present.")
    room = serializers.IntegerField(help_text="How many fit at present.")
    asked = ShapeSerializer(allow_null=True)
    one_more = ShapeSerializer(allow_null=True)
    fuller = ShapeSerializer(allow_null=True)


class FitSerializer(serializers.Serializer):
    """Whether `tasks` of a plan would fit, and which shapes would fit better; `told` in words."""

    tasks = serializers.IntegerField()
    shapes = ConformingSerializer()
    told = serializers.ListField(child=serializers.CharField())


def fit_document(fit: Guidance, *, extra: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "tasks": fit.tasks,
        "shapes": shapes_document(fit.shapes, extra=extra),
        "told": format_fit(fit.shapes, tasks=fit.tasks, extra=extra),
    }
