"""`/bns/`: where a job's tasks are, as JSON."""

from __future__ import annotations

from dataclasses import asdict

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from naming import selectors
from naming.lookup import published_revision
from naming.names import InvalidName, JobName, check_label, parse_index
from quota.errors import Refused


class TaskEndpointSerializer(serializers.Serializer):
    name = serializers.CharField(help_text="/bns/<cell>/<tenant>/<job>/<index>")
    dns = serializers.CharField()
    index = serializers.IntegerField()
    state = serializers.CharField()
    phase = serializers.CharField(allow_blank=True)
    health = serializers.CharField()
    serving = serializers.BooleanField(help_text="Up, and healthy where a check is declared.")
    machine = serializers.CharField(allow_blank=True)
    address = serializers.CharField(allow_blank=True)
    ports = serializers.DictField(child=serializers.IntegerField())
    revision = serializers.IntegerField(help_text="Of the cell when this was read.")


class JobEndpointsSerializer(serializers.Serializer):
    name = serializers.CharField(help_text="/bns/<cell>/<tenant>/<job>")
    dns = serializers.CharField()
    tasks = serializers.IntegerField()
    placed = serializers.IntegerField()
    serving = serializers.IntegerField()
    fail_open = serializers.BooleanField(help_text="No placed task serves: use all of them.")
    revision = serializers.IntegerField()
    endpoints = TaskEndpointSerializer(many=True)


def _job_name(cell: str, tenant: str, job: str) -> JobName:
    return JobName(check_label(cell, "cell"), check_label(tenant, "tenant"), check_label(job, "job"))


def _refused(error: InvalidName) -> Refused:
    return Refused("invalid-name", str(error), fields={error.field: error.detail})


class CellNamesSerializer(serializers.Serializer):
    zone = serializers.CharField()
    revision = serializers.IntegerField(help_text="Of the cell that the resolver's answers have followed to.")


class CellNamesView(APIView):
    @extend_schema(operation_id="bns_cell", responses=CellNamesSerializer, tags=["names"])
    def get(self, request: Request, cell: str) -> Response:
        """How far the resolver has followed a cell: what `borgctl wait --for visible` asks."""
        try:
            check_label(cell, "cell")
        except InvalidName as error:
            raise _refused(error) from error
        zone = f"{cell}.{settings.BORG_ZONE}"
        return Response({"zone": zone, "revision": published_revision(zone)})


class JobEndpointsView(APIView):
    @extend_schema(operation_id="bns_job", responses=JobEndpointsSerializer, tags=["names"])
    def get(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """All placed tasks of a job with address, ports and health."""
        try:
            name = _job_name(cell, tenant, job)
        except InvalidName as error:
            raise _refused(error) from error
        return Response(asdict(selectors.job_endpoints(request.auth, name, zone=settings.BORG_ZONE)))


class TaskEndpointView(APIView):
    @extend_schema(operation_id="bns_task", responses=TaskEndpointSerializer, tags=["names"])
    def get(self, request: Request, cell: str, tenant: str, job: str, index: str) -> Response:
        """Where one task is: address, ports, health, machine, state."""
        try:
            name = _job_name(cell, tenant, job).task(parse_index(index))
        except InvalidName as error:
            raise _refused(error) from error
        return Response(asdict(selectors.task_endpoint(request.auth, name, zone=settings.BORG_ZONE)))
