"""Serializers for the request shapes that fit the machines (§2.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rest_framework import serializers

from scheduling.core.explaining.wording import format_fit
from scheduling.jobs.guidance import Guidance, shapes_document


class ShapeSerializer(serializers.Serializer[Any]):
    """A limit, and how many tasks with this limit fit on a machine of the most common kind that can hold one."""

    limit = serializers.DictField(child=serializers.IntegerField())
    per_machine = serializers.IntegerField()
    machines = serializers.IntegerField(help_text="Machines of that kind.")
    in_all = serializers.IntegerField(help_text="Tasks that the cell could hold if it were empty.")


class ConformingSerializer(serializers.Serializer[Any]):
    """Shapes that are likely to schedule (§2.6).

    `asked`: as requested. `one_more`: smaller, so that one more fits per machine. `fuller`: larger, with as many per
    machine.
    """

    wanted = serializers.DictField(child=serializers.IntegerField())
    machines = serializers.IntegerField(help_text="Machines that could hold a task if they were empty.")
    now = serializers.IntegerField(help_text="Machines that can hold a task now.")
    room = serializers.IntegerField(help_text="Number of tasks that fit now.")
    asked = ShapeSerializer(allow_null=True)
    one_more = ShapeSerializer(allow_null=True)
    fuller = ShapeSerializer(allow_null=True)


class FitSerializer(serializers.Serializer[Any]):
    """Whether `tasks` of a plan would fit, and which shapes would fit better. `told` has the same as sentences."""

    tasks = serializers.IntegerField()
    shapes = ConformingSerializer()
    told = serializers.ListField(child=serializers.CharField())


def fit_document(fit: Guidance, *, extra: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "tasks": fit.tasks,
        "shapes": shapes_document(fit.shapes, extra=extra),
        "told": format_fit(fit.shapes, tasks=fit.tasks, extra=extra),
    }
