"""REST views of actions on jobs that need no job file."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.dry_run import DRY_RUN, dry_run
from quota.vocabulary.permissions import Action
from scheduling.access.tenant_permission import require_tenant
from scheduling.api.base import CellView, valid
from scheduling.api.change_serializers import ChangeSerializer, change_response
from scheduling.api.job_serializers import UpdateSerializer
from scheduling.api.preconditions import IF_REVISION, if_revision
from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.jobs import plans
from scheduling.jobs.actions.pause import update_pause, update_resume
from scheduling.jobs.actions.restart import job_restart
from scheduling.jobs.actions.retry import job_retry
from scheduling.jobs.actions.scale import job_scale, scaled_spec
from scheduling.jobs.actions.task_selection import parse_ranges


class ScaleSerializer(serializers.Serializer[Any]):
    tasks = serializers.IntegerField(min_value=1, max_value=MAX_TASKS, help_text="New number of tasks.")


class ScaleView(CellView):
    rehearses_itself = True

    @extend_schema(
        operation_id="jobs_scale",
        parameters=[DRY_RUN, IF_REVISION],
        request=ScaleSerializer,
        responses=ChangeSerializer,
    )
    def post(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Change the number of the job's tasks. This is an update to the current spec with another number of tasks: the
        last tasks end, or further tasks are added.
        """
        found, rehearsed = self.job(cell, tenant, job), dry_run(request)
        require_tenant(self.principal, Action.JOB_WRITE, tenant, cell)
        tasks = valid(ScaleSerializer, request.data)["tasks"]
        job_spec = scaled_spec(found, tasks)
        plan = plans.plan_between(found, job_spec)
        done = job_scale(
            principal=self.principal, job=found, tasks=tasks, if_revision=if_revision(request), dry_run=rehearsed
        )
        return change_response(found.cell, job_spec, plan, done.outcome, rehearsed, job=done.job)


class RestartSerializer(serializers.Serializer[Any]):
    tasks = serializers.CharField(
        default="", max_length=2000, help_text="Indexes of the tasks, such as `3,5-9`. Default: all running tasks."
    )


RestartedSerializer = inline_serializer(
    "Restarted",
    {
        "restarted": serializers.IntegerField(help_text="Number of tasks that are restarted, a few at a time."),
        "max_down": serializers.IntegerField(help_text="Largest number of tasks that are down at once."),
        "dry_run": serializers.BooleanField(),
    },
)


class RestartView(CellView):
    rehearses_itself = True

    @extend_schema(
        operation_id="jobs_restart", parameters=[DRY_RUN], request=RestartSerializer, responses=RestartedSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Restart the running tasks of the job, or some of them, a few at a time. No spec changes. The limits of the
        job's updates and its disruption budget apply.
        """
        found, rehearsed = self.job(cell, tenant, job), dry_run(request)
        require_tenant(self.principal, Action.JOB_WRITE, tenant, cell)
        given = valid(RestartSerializer, request.data)["tasks"]
        ranges = parse_ranges(given)
        done = job_restart(principal=self.principal, job=found, ranges=ranges, dry_run=rehearsed)
        return Response({"restarted": done.tasks, "max_down": done.max_down, "dry_run": rehearsed})


class RetrySerializer(serializers.Serializer[Any]):
    tasks = serializers.CharField(
        default="",
        max_length=2000,
        help_text="Indexes of dead tasks, such as `3,5-9`, whatever their outcome. Default: all failed tasks.",
    )


RetriedSerializer = inline_serializer(
    "Retried",
    {
        "retried": serializers.IntegerField(help_text="Number of tasks that run again."),
        "uid": serializers.UUIDField(help_text="The job whose tasks run again: a new job if the old one has ended."),
        "dry_run": serializers.BooleanField(),
    },
)


class RetryView(CellView):
    rehearses_itself = True

    @extend_schema(
        operation_id="jobs_retry", parameters=[DRY_RUN], request=RetrySerializer, responses=RetriedSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Run the failed tasks of the job again, or the given dead tasks. If the job has ended, it is submitted again
        under its name, which needs quota, and only these tasks run.
        """
        found, rehearsed = self.job(cell, tenant, job), dry_run(request)
        require_tenant(self.principal, Action.JOB_WRITE, tenant, cell)
        given = valid(RetrySerializer, request.data)["tasks"]
        ranges = parse_ranges(given)
        done = job_retry(principal=self.principal, job=found, ranges=ranges, dry_run=rehearsed)
        return Response({"retried": done.tasks, "uid": done.job.uid, "dry_run": rehearsed})


class PauseView(CellView):
    rehearses_itself = True

    @extend_schema(operation_id="jobs_pause", parameters=[DRY_RUN], request=None, responses=UpdateSerializer)
    def post(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Pause the update or the restart of the job: no further task changes until it is resumed. Idempotent."""
        found = self.job(cell, tenant, job)
        update = update_pause(principal=self.principal, job=found, dry_run=dry_run(request))
        return Response(UpdateSerializer(update).data)


class ResumeView(CellView):
    rehearses_itself = True

    @extend_schema(operation_id="jobs_resume", parameters=[DRY_RUN], request=None, responses=UpdateSerializer)
    def post(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Continue the paused update or restart of the job. Idempotent."""
        found = self.job(cell, tenant, job)
        update = update_resume(principal=self.principal, job=found, dry_run=dry_run(request))
        return Response(UpdateSerializer(update).data)
