"""Serializers for suggested limits of tasks. Tasks with these limits use the machines of a cell more fully (§2.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rest_framework import serializers

from scheduling.core.explaining.wording import format_fit
from scheduling.jobs.fit_guidance import Guidance, shapes_document


class ShapeSerializer(serializers.Serializer[Any]):
    """A limit of a task, and how many tasks with this limit fit on one machine. The machine is of the most common kind
    that can hold at least one such task.
    """

    limit = serializers.DictField(child=serializers.IntegerField())
    per_machine = serializers.IntegerField()
    machines = serializers.IntegerField(help_text="Number of machines of this kind.")
    in_all = serializers.IntegerField(help_text="Tasks that the cell could hold if it were empty.")


class ConformingSerializer(serializers.Serializer[Any]):
    """The requested limit of a task, and suggested limits with which tasks are more likely to be placed (§2.6).

    `asked`: the requested limit. `one_more`: a smaller limit, with which one more task fits on each machine. `fuller`:
    a larger limit, with which the same number of tasks fits on each machine.
    """

    wanted = serializers.DictField(child=serializers.IntegerField())
    machines = serializers.IntegerField(help_text="Machines that could hold a task if they were empty.")
    now = serializers.IntegerField(help_text="Machines that can hold a task now.")
    room = serializers.IntegerField(help_text="Number of tasks that fit now.")
    asked = ShapeSerializer(allow_null=True)
    one_more = ShapeSerializer(allow_null=True)
    fuller = ShapeSerializer(allow_null=True)


class FitSerializer(serializers.Serializer[Any]):
    """Guidance for a plan of `tasks` equal tasks. `shapes`: how many such tasks fit into the cell, and other limits
    that use the machines more fully. `told`: the same information as sentences.
    """

    tasks = serializers.IntegerField()
    shapes = ConformingSerializer()
    told = serializers.ListField(child=serializers.CharField())


def fit_document(fit: Guidance, *, extra: Sequence[str] = ()) -> dict[str, Any]:
    """Return the guidance `fit` as `FitSerializer` describes it. `extra`: names of the resources that the cell defines
    itself.
    """
    return {
        "tasks": fit.tasks,
        "shapes": shapes_document(fit.shapes, extra=extra),
        "told": format_fit(fit.shapes, tasks=fit.tasks, extra=extra),
    }
