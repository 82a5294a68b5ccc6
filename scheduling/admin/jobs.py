"""Pages of jobs, their specs, their updates, and the reasons why their tasks are pending. SREs can kill jobs on these
pages.
"""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.paginator import InfinitePaginator
from unfold.views import ChangeList

from quota.admin import FactsAdmin, vector_text
from scheduling.admin.actions import row_action
from scheduling.admin.filters import BandFilter, OutcomeFilter
from scheduling.core.vocabulary.job_health import JobHealth
from scheduling.jobs.health import health_of, with_health
from scheduling.jobs.submit_and_kill import job_kill
from scheduling.models import Job, PendingVerdict


class _JobList(ChangeList):
    """A list of jobs that reads the health of all jobs on the page at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = with_health(self.result_list)


class JobAdmin(FactsAdmin):
    list_display = [
        "name",
        "cell",
        "tenant",
        "health_shown",
        "outcome",
        "priority",
        "band",
        "tasks_up",
        "tasks_running",
        "tasks_pending",
        "tasks_dead",
        "tasks_total",
        "requested_shown",
        "submitted_by",
        "created_at",
    ]
    list_filter = ["state", "cell", BandFilter, "latency_sensitive", OutcomeFilter]
    list_select_related = ["cell", "tenant"]
    search_fields = ["name", "tenant__name", "=uid"]
    ordering = ["-id"]
    exclude = ["state", "requested", "key"]
    readonly_fields = ["health_shown", "requested_shown", "uid", "created_at"]
    actions = ["kill"]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return _JobList

    @display(
        description=_("health"),
        ordering="state",
        label={
            JobHealth.HEALTHY.value: "success",
            JobHealth.PENDING.value: "warning",
            JobHealth.STARTING.value: "warning",
            JobHealth.UPDATING.value: "warning",
            JobHealth.DEGRADED.value: "warning",
            JobHealth.FAILING.value: "danger",
        },
    )
    def health_shown(self, job: Job) -> str:
        return health_of(job).state.value

    @display(description=_("requested resources"))
    def requested_shown(self, job: Job) -> SafeString:
        return vector_text(job.requested, extra=job.cell.extra_resources)

    kill = row_action(
        "kill",
        label=_("Kill"),
        title=_("Kill jobs"),
        warning=_("All tasks of these jobs are stopped permanently."),
        service=job_kill,
        row_as="job",
    )


class SpecAdmin(FactsAdmin):
    list_display = ["job", "version", "actor", "created_at"]
    list_select_related = ["job"]
    search_fields = ["job__name"]
    ordering = ["-id"]
    paginator = InfinitePaginator

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        lists = request.resolver_match is not None and request.resolver_match.url_name.endswith("_changelist")  # type: ignore[union-attr]
        return rows.defer("spec") if lists else rows


class UpdateAdmin(FactsAdmin):
    list_display = [
        "job",
        "from_version",
        "to_version",
        "state",
        "undo",
        "paused_at",
        "canary",
        "rollback",
        "deadline_at",
        "max_down",
        "disruptions",
        "detail",
        "actor",
        "created_at",
        "ended_at",
    ]
    list_filter = ["state", "undo"]
    list_select_related = ["job"]
    search_fields = ["job__name"]
    ordering = ["-id"]


class VerdictAdmin(FactsAdmin):
    list_display = ["job", "revision", "at", "classes"]
    list_select_related = ["job"]
    search_fields = ["job__name"]
    ordering = ["-at"]

    @display(description=_("groups of equal tasks"))
    def classes(self, verdict: PendingVerdict) -> int:
        return len(verdict.whys)
