"""The REST view that tells in which cells the tasks of a job file would fit."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.base import BodyParser, CellView
from scheduling.api.job_file_schema import JobFileSerializer
from scheduling.api.suggested_limits import FitSerializer, fit_document
from scheduling.jobs.cell_fits import CellFit, cell_fits


class CellFitSerializer(serializers.Serializer[Any]):
    cell = serializers.CharField()
    tasks = serializers.IntegerField(help_text="Number of tasks in the job file.")
    room = serializers.IntegerField(
        help_text="Number of tasks that fit now without preemption. If tasks differ, that of the kind of which fewest"
        " fit."
    )
    fits = FitSerializer(many=True, help_text="One entry per kind of equal tasks, for the first three kinds.")
    problem = serializers.CharField(help_text="Why there is no result for this cell, or an empty text.")


class CellFitsSerializer(serializers.Serializer[Any]):
    cells = CellFitSerializer(many=True)
    left_out = serializers.IntegerField(help_text="Number of further cells that were not looked at.")


class CellFitsView(CellView):
    rehearses_itself = True  # it changes nothing
    parser_classes = (BodyParser,)

    @extend_schema(operation_id="cells_fit", request=JobFileSerializer, responses=CellFitsSerializer)
    def post(self, request: Request) -> Response:
        """Return for each cell how many tasks of the job file would fit on its machines now, best cell first. Submits
        nothing, and checks neither quota nor packages.
        """
        found = cell_fits(self.principal, request.data)  # type: ignore[arg-type]
        return Response({"cells": [_document(fit) for fit in found.cells], "left_out": found.left_out})


def _document(found: CellFit) -> dict[str, Any]:
    return {
        "cell": found.cell.name,
        "tasks": found.tasks,
        "room": found.room,
        "fits": [fit_document(fit, extra=found.cell.extra_resources) for fit in found.fits],
        "problem": found.problem,
    }
