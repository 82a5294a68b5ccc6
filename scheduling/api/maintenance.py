"""REST views of the maintenance calendar: windows in which machines, racks or power domains have to be empty."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.paging import IdPaging, paged
from scheduling.api.base import CellView, valid
from scheduling.machines.drain_progress import drains_of, progress_of
from scheduling.maintenance import selectors, windows
from scheduling.maintenance.preview import preview_of
from scheduling.models import Cell, MaintenanceWindow


class WindowSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(source="window.pk")
    state = serializers.CharField(
        source="window.state",
        help_text="`planned`, `draining` (the machines are being drained, or are empty), `ended` or `cancelled`.",
    )
    machines = serializers.ListField(
        source="window.machines", child=serializers.CharField(), help_text="Host names; empty for a rack or domain."
    )
    rack = serializers.CharField(source="window.rack")
    power_domain = serializers.CharField(source="window.power_domain")
    starts_at = serializers.DateTimeField(source="window.starts_at")
    ends_at = serializers.DateTimeField(source="window.ends_at")
    drains_at = serializers.DateTimeField(
        source="window.drains_at", allow_null=True, help_text="When the drains began. Null before."
    )
    lead_s = serializers.FloatField(
        source="window.lead_s",
        allow_null=True,
        help_text="The machines are drained this many seconds before the start. Null: the master estimates it.",
    )
    break_budgets = serializers.BooleanField(
        source="window.break_budgets",
        help_text="At the start, the remaining tasks are evicted even if this exceeds disruption budgets.",
    )
    reason = serializers.CharField(source="window.reason")
    detail = serializers.CharField(
        source="window.detail", help_text="The person who cancelled the window, and the reason."
    )
    asked_by = serializers.CharField(source="window.asked_by")
    changed_by = serializers.CharField(source="window.changed_by")
    created_at = serializers.DateTimeField(source="window.created_at")
    ended_at = serializers.DateTimeField(source="window.ended_at", allow_null=True)
    covered = serializers.IntegerField(help_text="Machines that the window covers now; 0 after its end.")
    busy = serializers.IntegerField(help_text="Machines of the window with tasks, or with tasks that are stopping.")
    tasks = serializers.IntegerField(help_text="Tasks on the machines of the window.")
    overdue = serializers.BooleanField(help_text="The window has started, and not all of its machines are empty.")


class WindowJobSerializer(serializers.Serializer[Any]):
    job = serializers.CharField(help_text="The job, as `tenant/job`.")
    tasks = serializers.IntegerField(help_text="Tasks of the job that have to leave the machines.")
    may = serializers.IntegerField(help_text="Number of the job's tasks that may be down at once.")
    down = serializers.IntegerField(help_text="Number of the job's tasks that are down now.")
    needs_s = serializers.FloatField(help_text="How long its tasks need to leave within its budget, in seconds.")


class WindowPreviewSerializer(serializers.Serializer[Any]):
    tasks = serializers.IntegerField(help_text="Tasks on the machines of the window.")
    leaving = serializers.IntegerField(
        help_text="Tasks of `tasks` that have to move. The others end by their time limits before the window starts."
    )
    drains_at = serializers.DateTimeField(help_text="When the drains are expected to begin, or when they began.")
    jobs = WindowJobSerializer(many=True, help_text="The jobs that lose tasks, those that need longest first.")


class WindowDetailSerializer(WindowSerializer):
    preview = WindowPreviewSerializer(
        allow_null=True, help_text="What the window will move. Null after the window has ended."
    )
    waiting = serializers.ListField(
        child=serializers.CharField(), help_text="Jobs whose disruption budgets delay the drains now, as `tenant/job`."
    )


class _WindowFieldsSerializer(serializers.Serializer[Any]):
    machines = serializers.ListField(
        child=serializers.CharField(max_length=63),
        required=False,
        max_length=windows.MOST_NAMES,
        help_text="Host names.",
    )
    rack = serializers.CharField(max_length=63, required=False)
    power_domain = serializers.CharField(max_length=63, required=False)
    starts_at = serializers.DateTimeField(required=False, help_text="UTC if it has no offset. Default: now.")
    lead_s = serializers.FloatField(
        required=False,
        allow_null=True,
        help_text="Drain the machines this many seconds before the start. Null or missing: the master estimates it from"
        " the disruption budgets of the jobs there, and uses at least the cell's `maintenance_lead_s`.",
    )
    break_budgets = serializers.BooleanField(
        required=False, help_text="At the start, evict the remaining tasks even if this exceeds disruption budgets."
    )
    confirm = serializers.IntegerField(
        required=False,
        allow_null=True,
        help_text="The number of tasks that stop, with other windows and drains; needed if it is very large.",
    )


class WindowWriteSerializer(_WindowFieldsSerializer):
    ends_at = serializers.DateTimeField()
    reason = serializers.CharField(max_length=300)


class WindowChangeSerializer(_WindowFieldsSerializer):
    ends_at = serializers.DateTimeField(required=False)
    reason = serializers.CharField(max_length=300, required=False)


class WindowCancelSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)


class MaintenanceWindowsView(CellView):
    pagination_class = IdPaging

    @extend_schema(
        operation_id="maintenance_list",
        parameters=[OpenApiParameter("state", str, description="Only windows in these states, separated by commas.")],
        responses=WindowSerializer(many=True),
    )
    def get(self, request: Request, cell: str) -> Response:
        """List the maintenance windows of the cell: past, running and coming ones, the oldest first."""
        states = [one for one in request.query_params.get("state", "").split(",") if one]
        found = selectors.windows_of(self.principal, self.cell(cell), states=states)
        return paged(
            self, found, lambda rows: WindowSerializer(selectors.progress_of(rows, now=timezone.now()), many=True).data
        )

    @extend_schema(
        operation_id="maintenance_create", request=WindowWriteSerializer, responses={201: WindowDetailSerializer}
    )
    def post(self, request: Request, cell: str) -> Response:
        """Write a maintenance window for machines, a rack or a power domain. The scheduler keeps them free of tasks
        that the window would interrupt, drains them before its start, and returns them at its end. With `dry_run`, the
        answer shows what would have to move.
        """
        found = self.cell(cell)
        given = valid(WindowWriteSerializer, request.data)
        return Response(_detail(self, found, windows.window_write(principal=self.principal, cell=found, **given)), 201)


class MaintenanceWindowView(CellView):
    @extend_schema(operation_id="maintenance_retrieve", responses=WindowDetailSerializer)
    def get(self, request: Request, cell: str, window: int) -> Response:
        """Show a maintenance window: its machines, what has to move, and which disruption budgets bind."""
        found = self.cell(cell)
        return Response(_detail(self, found, selectors.window_named(self.principal, found, window)))

    @extend_schema(operation_id="maintenance_change", request=WindowChangeSerializer, responses=WindowDetailSerializer)
    def patch(self, request: Request, cell: str, window: int) -> Response:
        """Change a maintenance window. When its drains have begun, only its end and its reason can be changed."""
        found = self.cell(cell)
        given = valid(WindowChangeSerializer, request.data)
        changed = windows.window_change(principal=self.principal, cell=found, number=window, **given)
        return Response(_detail(self, found, changed))


class MaintenanceCancelView(CellView):
    @extend_schema(operation_id="maintenance_cancel", request=WindowCancelSerializer, responses=WindowDetailSerializer)
    def post(self, request: Request, cell: str, window: int) -> Response:
        """Cancel a maintenance window, also while it runs. Its machines receive tasks again, except those that a person
        drains.
        """
        found = self.cell(cell)
        given = valid(WindowCancelSerializer, request.data)
        cancelled = windows.window_cancel(principal=self.principal, cell=found, number=window, **given)
        return Response(_detail(self, found, cancelled))


def _detail(view: CellView, cell: Cell, row: MaintenanceWindow) -> Any:
    (progress,) = selectors.progress_of([row], now=timezone.now())
    document = dict(WindowSerializer(progress).data)
    is_open = row.state in MaintenanceWindow.OPEN
    drains = list(drains_of(cell).filter(window=row)) if row.state == MaintenanceWindow.DRAINING else []
    waiting = {one.job for drain in progress_of(view.principal, cell, drains) for one in drain.waiting}
    document["preview"] = WindowPreviewSerializer(preview_of(view.principal, row)).data if is_open else None
    document["waiting"] = sorted(waiting)
    return document
