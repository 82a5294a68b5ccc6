"""REST views of cells and their machines. Each view checks the request, calls a service and serializes the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.dry_run import dry_run
from quota.paging import IdPaging
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.access import selectors
from scheduling.api.base import CellView, EventPaging, flag, valid
from scheduling.api.cell_deletion import CONFIRM, DELETED
from scheduling.api.cell_serializers import (
    CellChangesSerializer,
    CellDetailSerializer,
    CellMoveSerializer,
    CellSerializer,
    CellSettingsSerializer,
    DrainSerializer,
    GrowSerializer,
    JoinTokenSerializer,
    MachineSerializer,
    NewCellSerializer,
    NewJoinTokenSerializer,
    ReasonSerializer,
)
from scheduling.api.list_filters import OF_MACHINES, PREFIX
from scheduling.api.task_serializers import EventSerializer
from scheduling.cells.cells import cell_change, cell_create
from scheduling.cells.deletion import cell_delete
from scheduling.cells.platform_factors import platforms_of
from scheduling.cells.sites import cell_move
from scheduling.history.archive.reading import ArchivedEvents, archived_events_of_cell
from scheduling.machines.credentials import machine_revoke, machine_rotate
from scheduling.machines.joining import join_token_issue
from scheduling.machines.machines import machine_grow, machine_undrain, machines_drain
from scheduling.models import Cell, Event, Machine
from scheduling.policy import cell_settings

STATE = OpenApiParameter("state", OpenApiTypes.STR, description="Return only items in this state.")


class CellsView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="cells_list", parameters=[DELETED], responses=CellSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the cells that you may see."""
        deleted = flag(request, "deleted")
        rows = selectors.cells_deleted(self.principal) if deleted else selectors.cells_visible(self.principal)
        return self.page(rows.select_related("cluster__site"), CellSerializer)

    @extend_schema(operation_id="cells_create", request=NewCellSerializer, responses={201: CellSerializer})
    def post(self, request: Request) -> Response:
        """Create an empty cell. Its tasks are placed once a master for it runs (`borg-master@CELL`)."""
        made = cell_create(principal=self.principal, **valid(NewCellSerializer, request.data))
        return Response(CellSerializer(made).data, status=201)


class CellDetailView(CellView):
    @extend_schema(operation_id="cells_get", responses=CellDetailSerializer)
    def get(self, request: Request, cell: str) -> Response:
        """Return a cell with counts of its machines and of the jobs and tasks that you may see."""
        found = self.cell(cell)
        found.counts = selectors.cell_counts(self.principal, found)  # type: ignore[attr-defined]
        return Response(CellDetailSerializer(found).data)

    @extend_schema(operation_id="cells_move", request=CellMoveSerializer, responses=CellSerializer)
    def patch(self, request: Request, cell: str) -> Response:
        """Record that the cell belongs to another cluster. Its machines and tasks do not change."""
        cluster = valid(CellMoveSerializer, request.data)["cluster"]
        return Response(CellSerializer(cell_move(principal=self.principal, cell=self.cell(cell), cluster=cluster)).data)

    @extend_schema(operation_id="cells_delete", parameters=[CONFIRM], responses=CellSerializer)
    def delete(self, request: Request, cell: str) -> Response:
        """Delete a cell that has no live jobs, no machines that are up, and no sold quota. Only for SREs, who can read
        the history under the name in the answer. `GET cells/{cell}/deletion/` shows what would be lost.
        """
        confirm = request.query_params.get("confirm", "")
        done = cell_delete(principal=self.principal, cell=self.cell(cell), confirm=confirm)
        return Response(CellSerializer(done).data)


class CellSettingsView(CellView):
    @extend_schema(operation_id="cells_settings", responses=CellSettingsSerializer)
    def get(self, request: Request, cell: str) -> Response:
        """Return the settings of a cell."""
        found = self.cell(cell)
        require(self.principal, Action.CELL_ADMIN, cell=found.name)
        return _settings(found)

    @extend_schema(
        operation_id="cells_settings_change", request=CellChangesSerializer, responses=CellSettingsSerializer
    )
    def patch(self, request: Request, cell: str) -> Response:
        """Change some settings of a cell. The others stay as they are."""
        changes = valid(CellChangesSerializer, request.data)["settings"]
        return _settings(cell_change(principal=self.principal, cell=self.cell(cell), changes=changes))


def _settings(cell: Cell) -> Response:
    in_force = msgspec.to_builtins(cell_settings.load(cell.settings))
    content = {"stored": cell.settings, "in_force": in_force, "platforms": platforms_of(cell)}
    return Response(CellSettingsSerializer(content).data)


class CellEventsView(CellView):
    pagination_class = EventPaging

    @extend_schema(operation_id="cells_events", responses=EventSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List events of the cell's machines and of the jobs that you may see, newest first."""
        found = self.cell(cell)
        rows = selectors.events_of_cell(self.principal, found)
        return events_page(self, rows, archived_events_of_cell(self.principal, found))


class JoinTokensView(CellView):
    @extend_schema(
        operation_id="join_tokens_issue", request=NewJoinTokenSerializer, responses={201: JoinTokenSerializer}
    )
    def post(self, request: Request, cell: str) -> Response:
        """Issue a token with which machines join the cell. The token is shown only once."""
        found = self.cell(cell)
        given = valid(NewJoinTokenSerializer, request.data)
        token = join_token_issue(principal=self.principal, cell=found, **given)
        return Response({"token": "" if dry_run(request) else token}, status=201)


class MachinesView(CellView):
    pagination_class = IdPaging

    @extend_schema(
        operation_id="machines_list", parameters=[STATE, PREFIX, OF_MACHINES], responses=MachineSerializer(many=True)
    )
    def get(self, request: Request, cell: str) -> Response:
        """List the machines of a cell."""
        found, query = self.cell(cell), request.query_params
        chosen = {name: query.get(name, "") for name in ("state", "selector", "prefix")}
        rows = selectors.machines_of(found, **chosen)
        return self.page(rows, MachineSerializer, extra=found.extra_resources)


class MachineView(CellView):
    @extend_schema(operation_id="machines_get", responses=MachineSerializer)
    def get(self, request: Request, cell: str, hostname: str) -> Response:
        """Return one machine."""
        return _machine_response(selectors.machine_named(self.cell(cell), hostname))


def machine_action(
    operation_id: str, body: type[serializers.Serializer[Any]], service: Callable[..., object], description: str
) -> type[CellView]:
    """Return a view that changes a machine: it calls `service` with the fields of the request's body. `body`: the
    serializer that checks the body. The response shows the changed machine.
    """

    class MachineActionView(CellView):
        @extend_schema(operation_id=operation_id, request=body, responses=MachineSerializer, description=description)
        def post(self, request: Request, cell: str, hostname: str) -> Response:
            machine = selectors.machine_named(self.cell(cell), hostname)
            service(principal=self.principal, machine=machine, **valid(body, request.data))
            return _machine_response(selectors.machine_named(machine.cell, hostname))

    return MachineActionView


def _drain(*, principal: Principal, machine: Machine, **given: Any) -> None:
    machines_drain(principal=principal, cell=machine.cell, machines=[machine], **given)


MachineDrainView = machine_action(
    "machines_drain", DrainSerializer, _drain, "Drain the machine: evict its tasks and place no new ones on it."
)
MachineUndrainView = machine_action(
    "machines_undrain", ReasonSerializer, machine_undrain, "End the drain, so that the machine receives tasks again."
)
MachineGrowView = machine_action(
    "machines_grow",
    GrowSerializer,
    machine_grow,
    "Raise the capacity that the machine joined with, for example to the amount in its attribute `capacity.claimed`.",
)
MachineRotateView = machine_action(
    "machines_rotate",
    ReasonSerializer,
    machine_rotate,
    "Replace the machine's secret at its next poll. The old secret is valid until the new one is first used.",
)
MachineRevokeView = machine_action(
    "machines_revoke",
    ReasonSerializer,
    machine_revoke,
    "Disconnect the machine, and invalidate its secrets until it joins again. Its tasks are placed elsewhere.",
)


def _machine_response(machine: Machine) -> Response:
    return Response(MachineSerializer(machine, context={"extra": machine.cell.extra_resources}).data)


def events_page(view: CellView, rows: QuerySet[Event], archived: ArchivedEvents) -> Response:
    """Return a page of events with the names of their jobs and machines. Makes two queries for these names. `archived`:
    the selection of archived events, which follow after the last of `rows`.
    """
    pages = EventPaging(archived)
    found = pages.paginate_queryset(rows, view.request)
    return pages.get_paginated_response(EventSerializer(found, many=True, context=event_names(found)).data)  # type: ignore[arg-type]


def event_names(events: list[Event]) -> dict[str, dict[int, str]]:
    jobs = selectors.job_names(event.job_id for event in events if event.job_id)
    # In no order: the model's own order would need a join.
    machines = Machine.objects.filter(pk__in={event.machine_id for event in events if event.machine_id}).order_by()
    return {
        "jobs": {pk: f"{tenant}/{name}" for pk, (tenant, name) in jobs.items()},
        "machines": dict(machines.values_list("id", "hostname")),
    }
