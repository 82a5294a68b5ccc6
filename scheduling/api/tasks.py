"""REST views of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import prefetch_related_objects
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quota.paging import IdPaging, paged
from scheduling.access import selectors
from scheduling.api.base import CellView
from scheduling.api.cells import STATE
from scheduling.api.list_filters import LABEL, OF_JOBS, TENANT
from scheduling.api.task_serializers import CellTaskSerializer, TaskSerializer
from scheduling.maintenance.selectors import windows_of_machines
from scheduling.models import Job, MaintenanceWindow, Task


class CellTasksView(CellView):
    pagination_class = IdPaging

    @extend_schema(
        operation_id="cell_tasks_list",
        parameters=[TENANT, STATE, LABEL, OF_JOBS],
        responses=CellTaskSerializer(many=True),
    )
    def get(self, request: Request, cell: str) -> Response:
        """List the tasks of all live jobs that you may see. The labels of a task are those of its job."""
        found, query = self.cell(cell), request.query_params
        rows = selectors.tasks_visible(
            self.principal,
            found,
            tenant=query.get("tenant", ""),
            state=query.get("state", ""),
            labels=query.getlist("label"),
            selector=query.get("selector", ""),
        )

        def shown(tasks: list[Task]) -> Iterable[Any]:
            context = {
                "port_names": selectors.port_names_of_tasks(tasks),
                "allocs": selectors.alloc_names(tasks),
                "extra": found.extra_resources,
                "maintenance": _maintenance(found.id, tasks),
            }
            return CellTaskSerializer(tasks, many=True, context=context).data

        return paged(self, rows, shown)


class TasksView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="tasks_list", parameters=[STATE], responses=TaskSerializer(many=True))
    def get(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """List the tasks of a job, by index."""
        found = self.job(cell, tenant, job)
        rows = selectors.tasks_of(found, state=request.query_params.get("state", ""))
        return paged(self, rows, lambda tasks: TaskSerializer(tasks, many=True, context=_context(found, tasks)).data)


class TaskView(CellView):
    @extend_schema(operation_id="tasks_get", responses=TaskSerializer)
    def get(self, request: Request, cell: str, tenant: str, job: str, index: int) -> Response:
        """Return one task."""
        found = self.job(cell, tenant, job)
        task = selectors.task_at(found, index)
        prefetch_related_objects([task], selectors.STILL_STOPPING)
        return Response(TaskSerializer(task, context=_context(found, [task])).data)


def _context(job: Job, tasks: list[Task]) -> dict[str, object]:
    return {
        "port_names": selectors.port_names(job, tasks),
        "allocs": selectors.alloc_names(tasks),
        "extra": job.cell.extra_resources,
        "maintenance": _maintenance(job.cell_id, tasks),
    }


def _maintenance(cell_id: int, tasks: list[Task]) -> dict[int, MaintenanceWindow]:
    return windows_of_machines(cell_id, {task.machine_id for task in tasks if task.machine_id})
