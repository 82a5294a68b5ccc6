"""REST view of the limits, reservations and usage of the jobs of a cell."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from numpy.typing import NDArray
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.paging import MAX_PAGE
from quota.vocabulary.errors import invalid
from quota.vocabulary.resources import NAMES
from scheduling.access import selectors
from scheduling.api.base import CellView, whole
from scheduling.api.fields import Quantities
from scheduling.api.list_filters import TENANT
from scheduling.usage import job_usage

_SORTS = ("cpu", "ram", "disk")
_SUMS = ("limit", "reservation", "usage")


class SumsSerializer(serializers.Serializer[Any]):
    """Sums over running tasks: CPU in millicores, RAM and disk in bytes. `measured`: the number of running tasks with a
    recent measurement; `usage` is the sum over these.
    """

    running = serializers.IntegerField()
    measured = serializers.IntegerField()
    limit = Quantities()
    reservation = Quantities()
    usage = Quantities()


class JobUsageSerializer(SumsSerializer):
    tenant = serializers.CharField(source="job.tenant.name")
    name = serializers.CharField(source="job.name")
    band = serializers.CharField(source="job.band")
    tasks_total = serializers.IntegerField(source="job.tasks_total")
    tasks_up = serializers.IntegerField(source="job.tasks_up")


class JobUsagesSerializer(serializers.Serializer[Any]):
    """The jobs with the highest usage. `at`: the time of the measurements; null if no master measures the cell. `jobs`:
    the number of jobs with running tasks that you may see. `total`: the sums over all of these; its limit and
    reservation leave out jobs inside alloc sets, because they use the resources of their sets.
    """

    at = serializers.DateTimeField(allow_null=True)
    jobs = serializers.IntegerField()
    total = SumsSerializer()
    results = JobUsageSerializer(many=True)


class JobUsagesView(CellView):
    @extend_schema(
        operation_id="jobs_usage",
        parameters=[
            TENANT,
            OpenApiParameter(
                "sort",
                OpenApiTypes.STR,
                enum=_SORTS,
                description="The resource by whose usage the jobs are sorted. Default: cpu.",
            ),
            OpenApiParameter("limit", OpenApiTypes.INT, description="Number of jobs in the answer. Default: 50."),
        ],
        responses=JobUsagesSerializer,
    )
    def get(self, request: Request, cell: str) -> Response:
        """Return the limits, reservations and usage of the jobs that use most, as of the last reclamation cycle."""
        found, limit = self.cell(cell), whole(request, "limit", 50, low=1, high=MAX_PAGE)
        sort = request.query_params.get("sort", "") or _SORTS[0]
        if sort not in _SORTS:
            raise invalid("sort", f"the value {sort[:20]!r} is not accepted; give one of {', '.join(_SORTS)}")
        sums = job_usage.read(found.pk)
        rows = np.zeros(0, job_usage.SUMS) if sums is None else sums.rows
        seen = selectors.jobs_of_tenants(self.principal, found).filter(pk__in=rows["job_id"].tolist())
        if tenant := request.query_params.get("tenant", ""):
            seen = seen.filter(tenant__name=tenant)
        sets = dict(seen.values_list("pk", "alloc_set"))
        rows = rows[np.isin(rows["job_id"], list(sets))]
        outer = rows[[sets[job_id] is None for job_id in rows["job_id"].tolist()]]
        most = rows[np.argsort(-rows["usage"][:, NAMES.index(sort)], kind="stable")[:limit]]
        named = seen.filter(pk__in=most["job_id"].tolist()).select_related("tenant")
        jobs = {job.pk: job for job in named.only("tenant__name", "name", "band", "tasks_total", "tasks_up")}
        answer = {
            "at": dt.datetime.fromtimestamp(sums.at, dt.UTC) if sums is not None else None,
            "jobs": len(rows),
            "total": _document(rows) | {name: outer[name].sum(axis=0).tolist() for name in ("limit", "reservation")},
            "results": [
                _document(most[n : n + 1]) | {"job": jobs[job_id]}
                for n, job_id in enumerate(most["job_id"].tolist())
                if job_id in jobs  # not if it was deleted between the two queries
            ],
        }
        return Response(JobUsagesSerializer(answer).data)


def _document(rows: NDArray[np.void]) -> dict[str, Any]:
    """Return the sums of the rows for `SumsSerializer`."""
    counts = {name: int(rows[name].sum()) for name in ("running", "measured")}
    return counts | {name: rows[name].sum(axis=0).tolist() for name in _SUMS}
