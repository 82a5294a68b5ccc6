"""The REST endpoints below `/bns/`: the addresses of tasks, jobs, services and machines as JSON."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from naming.api import dns_server_status, selectors
from naming.dns.primary import InvalidPeers
from naming.table.names import MACHINE, PREFIX, SERVICE, InvalidName, check_label, parse_path
from quota.vocabulary.errors import Rejected, invalid
from scheduling.access.selectors import cell_named

MOST_WAIT_S = 60
_HISTORY = "Rises when the cell is restored from a backup. Give it to a watch together with `revision`."
_SECONDS = re.compile(r"[0-9]{1,2}(\.[0-9]{1,6})?", re.ASCII)


class TaskEndpointSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(help_text="/bns/<cell>/<tenant>/<job>/<index>")
    dns = serializers.CharField()
    index = serializers.IntegerField()
    state = serializers.CharField()
    phase = serializers.CharField(allow_blank=True)
    health = serializers.CharField()
    serving = serializers.BooleanField(help_text="Whether the task is up, and healthy if its job has a health check.")
    weight = serializers.IntegerField(help_text="Weight; with 0, clients use the task only if no other task serves.")
    load = serializers.FloatField(allow_null=True, help_text="CPU use as a share of the limit; null: unknown.")
    ttl_s = serializers.IntegerField(help_text="Seconds for which clients may cache the task's address.")
    machine = serializers.CharField(allow_blank=True)
    address = serializers.CharField(allow_blank=True)
    ports = serializers.DictField(child=serializers.IntegerField())
    revision = serializers.IntegerField(help_text="The revision of the cell when this was read.")
    history = serializers.IntegerField(help_text=_HISTORY)


class _SummarySerializer(serializers.Serializer[Any]):
    dns = serializers.CharField()
    tasks = serializers.IntegerField()
    placed = serializers.IntegerField()
    serving = serializers.IntegerField()
    fail_open = serializers.BooleanField(help_text="If true, no placed task serves; use all placed tasks.")
    ttl_s = serializers.IntegerField(help_text="Seconds for which clients may cache the answer.")
    revision = serializers.IntegerField(
        help_text="The revision of the cell at this time. Give it to a watch as `after`."
    )
    history = serializers.IntegerField(help_text=_HISTORY)


class JobEndpointsSerializer(_SummarySerializer):
    name = serializers.CharField(help_text="/bns/<cell>/<tenant>/<job>")
    labels = serializers.DictField(child=serializers.CharField())
    endpoints = TaskEndpointSerializer(many=True)


class ServiceEndpointsSerializer(_SummarySerializer):
    name = serializers.CharField(help_text="/bns/<cell>/<tenant>/service/<name>")
    jobs = serializers.ListField(child=serializers.CharField(), help_text="The names of its jobs, as /bns/…")
    weights = serializers.DictField(
        child=serializers.IntegerField(), help_text="Weights of the tracks; empty: only the tasks have weights."
    )
    endpoints = TaskEndpointSerializer(many=True)


class MachineEndpointSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(help_text="/bns/<cell>/machine/<host>")
    dns = serializers.CharField()
    machine = serializers.CharField()
    address = serializers.CharField()
    state = serializers.CharField()
    ttl_s = serializers.IntegerField()
    revision = serializers.IntegerField()
    history = serializers.IntegerField(help_text=_HISTORY)


_AFTER = "The revision of an earlier answer. The server waits until the name has changed since then."
_WAIT = f"Longest wait in seconds, 0 to {MOST_WAIT_S}. After it the server returns the unchanged state."
_GIVEN_HISTORY = (
    "The `history` of the earlier answer. If the cell was restored since then, the server answers at once."
    " If you omit `history`, the server answers at once if the cell's journal does not contain the revision."
)
_WATCH = [
    OpenApiParameter("after", int, description=_AFTER),
    OpenApiParameter("wait_s", float, description=_WAIT),
    OpenApiParameter("history", int, description=_GIVEN_HISTORY),
]


def _check_watch(request: Request) -> None:
    """Check the query parameters with which a client asks the server to wait for a change. Raises `Rejected` if a
    parameter is not valid. This function does not wait: `portal.live.long_polls` has already waited.
    """
    given = request.query_params
    problems = {
        name: "is not a whole number; give the number from an earlier answer"
        for name in ("after", "history")
        if name in given and not (given[name].isascii() and given[name].isdecimal() and len(given[name]) < 19)
    }
    if "wait_s" in given:
        if not _SECONDS.fullmatch(given["wait_s"]) or float(given["wait_s"]) > MOST_WAIT_S:
            problems["wait_s"] = f"is not a time in seconds; give a number from 0 to {MOST_WAIT_S}"
        elif "after" not in given:
            problems["after"] = "is missing; give the revision of an earlier answer"
    if problems:
        detail = "; ".join(f"{name}: {what}" for name, what in problems.items())
        raise Rejected("invalid", detail, fields=problems)


def _rejected(error: InvalidName) -> Rejected:
    return Rejected("invalid-name", str(error), fields={error.field: error.detail})


_WITHIN_S = f"Seconds within which servers must answer. The default and the maximum is {dns_server_status.TIMEOUT_S:g}."


def _within_s(request: Request) -> float:
    """Return the query parameter `within_s`: for how many seconds to wait for the answers of DNS servers. Raises
    `Rejected` if the value is not valid.
    """
    text = request.query_params.get("within_s", str(dns_server_status.TIMEOUT_S))
    if not (_SECONDS.fullmatch(text) and 0 < float(text) <= dns_server_status.TIMEOUT_S):
        wrong = f"is not a time in seconds; give a number above 0, at most {dns_server_status.TIMEOUT_S:g}"
        raise invalid("within_s", wrong)
    return float(text)


class FollowerSerializer(serializers.Serializer[Any]):
    address = serializers.CharField(source="server", help_text="The address with its port.")
    kind = serializers.ChoiceField(source="server.role", choices=[role.value for role in dns_server_status.ServerRole])
    serial = serializers.IntegerField(allow_null=True, help_text="The serial of its zone.")
    revision = serializers.IntegerField(allow_null=True, help_text="The revision of the cell; null for secondaries.")
    reached = serializers.BooleanField()
    caught_up = serializers.BooleanField(
        help_text="Whether a resolver has all changes of the cell, or a secondary has all changes of the resolvers."
    )
    error = serializers.CharField(allow_blank=True, help_text="The reason why the server has not caught up, if known.")


class CellNamesSerializer(serializers.Serializer[Any]):
    zone = serializers.CharField()
    revision = serializers.IntegerField(
        help_text="The revision of the cell that all resolvers have reached; 0 if one does not report it."
    )
    serial = serializers.IntegerField(allow_null=True, help_text="The newest serial among the resolvers.")
    resolvers = FollowerSerializer(many=True)
    secondaries = FollowerSerializer(many=True)


class CellNamesView(APIView):
    @extend_schema(
        operation_id="bns_cell",
        parameters=[OpenApiParameter("within_s", float, description=_WITHIN_S)],
        responses=CellNamesSerializer,
        tags=["names"],
    )
    def get(self, request: Request, cell: str) -> Response:
        """Return the revision and the serial that each resolver and each secondary of a cell has reached."""
        try:
            check_label(cell, "cell")
        except InvalidName as error:
            raise _rejected(error) from error
        timeout_s = _within_s(request)
        wanted = cell_named(request.auth, cell).revision  # type: ignore[arg-type]
        try:
            found = dns_server_status.followers(
                cell, wanted=wanted, asked=dns_server_status.servers(), timeout_s=timeout_s
            )
        except InvalidPeers as error:
            raise Rejected("bad-setting", str(error), status=503) from error
        resolvers = [one for one in found if one.server.role is dns_server_status.ServerRole.RESOLVER]
        return Response(
            {
                "zone": f"{cell}.{settings.BORG_ZONE}",
                "revision": min(one.revision or 0 for one in resolvers),
                "serial": dns_server_status.newest_serial(resolvers),
                "resolvers": FollowerSerializer(resolvers, many=True).data,
                "secondaries": FollowerSerializer([one for one in found if one not in resolvers], many=True).data,
            }
        )


class JobEndpointsView(APIView):
    @extend_schema(operation_id="bns_job", parameters=_WATCH, responses=JobEndpointsSerializer, tags=["names"])
    def get(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """List all placed tasks of a job, with address, ports, health, weight and load."""
        _check_watch(request)
        return _answer(request, f"{cell}/{tenant}/{job}")


class TaskEndpointView(APIView):
    @extend_schema(operation_id="bns_task", parameters=_WATCH, responses=TaskEndpointSerializer, tags=["names"])
    def get(self, request: Request, cell: str, tenant: str, job: str, index: str) -> Response:
        """Return address, ports, health, weight, load, machine and state of one task."""
        _check_watch(request)
        return _answer(request, f"{cell}/{tenant}/{job}/{index}")


class ServiceEndpointsView(APIView):
    @extend_schema(operation_id="bns_service", parameters=_WATCH, responses=ServiceEndpointsSerializer, tags=["names"])
    def get(self, request: Request, cell: str, tenant: str, service: str) -> Response:
        """List all placed tasks of the jobs whose label `service` names this service."""
        _check_watch(request)
        return _answer(request, f"{cell}/{tenant}/{SERVICE}/{service}")


class MachineEndpointView(APIView):
    @extend_schema(operation_id="bns_machine", responses=MachineEndpointSerializer, tags=["names"])
    def get(self, request: Request, cell: str, host: str) -> Response:
        """Return address and state of a machine."""
        return _answer(request, f"{cell}/{MACHINE}/{host}")


def _answer(request: Request, path: str) -> Response:
    """Return a response with the endpoints of the name in `path`, a path below `/bns/`. Raises `Rejected` if the path
    is not a name, and `NotFound` if the name does not exist or the caller may not see it.
    """
    try:
        name = parse_path(f"{PREFIX}{path}")
    except InvalidName as error:
        raise _rejected(error) from error
    found = selectors.endpoints(request.auth, name, zone=settings.BORG_ZONE)  # type: ignore[arg-type]
    return Response(msgspec.to_builtins(found))
