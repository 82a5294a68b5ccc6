"""The live page of a job with its tasks and events, and two forms: kill and undo."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET, require_POST

from portal.sigma.frame.page import page, page_of, whole_number
from portal.sigma.jobs.charts.job_timeline import job_timeline
from portal.sigma.jobs.charts.job_usage import PERIODS, job_usage_plots, period_of, usage_meters
from portal.sigma.jobs.specs.prices import cost_of
from portal.sigma.jobs.specs.submit_links import submit_link
from portal.sigma.jobs.why import WORDS, explain
from portal.sigma.reads import jobs as reads
from portal.sigma.reads.folded_events import folded
from portal.sigma.reads.journal import events_of
from portal.sigma.reads.names import leave_of, names_of_job
from portal.sigma.reads.task_states import LEAST as LEAST_IN_GRID
from portal.sigma.reads.task_states import task_grid
from quota.vocabulary.errors import Conflict, invalid
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.selectors import specs_of
from scheduling.autoscaling.selectors import recommendation_of
from scheduling.core.explaining.health_wording import format_troubles
from scheduling.core.vocabulary.job_health import Troubles
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.dependencies.explanations import dependencies_of
from scheduling.jobs.health import SETTLED_S, crashing_tasks, with_health
from scheduling.jobs.submission.revisions import revision_of
from scheduling.jobs.submit_and_kill import job_kill
from scheduling.jobs.updates import job_undo
from scheduling.jobs.why import crash_sentences, held_sentences, is_held, rate_sentences, waits_until
from scheduling.maintenance.selectors import maintenance_of
from scheduling.models import Job, JobAutoscaling, PendingVerdict
from scheduling.tasks import pending_verdicts

PAGE_SIZE, PAGE_SIZE_BESIDE_GRID = 100, 25
# The timeline shows so many events, and the list below so many lines.
TIMELINE_EVENTS, LISTED_EVENTS = 100, 25
# The grid of a job with more tasks is not a part of live messages.
MOST_IN_LIVE_GRID = 1_000
STATES = ["pending", "placed", "up", "dead"]


@page
@require_GET
def job(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    row = reads.job_named(principal, cell, tenant, name, uid=request.GET.get("uid", ""))
    state = request.GET.get("state", "")
    state = state if state in STATES else ""
    known = {
        "": row.tasks_total,
        "pending": row.tasks_pending,
        "up": row.tasks_up,
        "dead": row.tasks_dead,
        "placed": row.tasks_running - row.tasks_up,
    }
    size = PAGE_SIZE if row.tasks_total < LEAST_IN_GRID else PAGE_SIZE_BESIDE_GRID
    tasks = page_of(request, reads.tasks_of(row, state=state), size, count=known[state])
    may_write = may(principal, Action.JOB_WRITE, tenant=tenant, cell=cell)
    status = status_context(row)
    newest = events_of(row, limit=TIMELINE_EVENTS)
    namesakes = reads.namesakes(row)
    has_live_namesake = any(other.state != JobState.DEAD for other in namesakes)
    context = {
        **status,
        "timeline": job_timeline(row, newest),
        "folds": folded(newest)[:LISTED_EVENTS],
        "grid": task_grid(row, status["progress"].update if status["progress"] else None),
        "names": names_of_job(row),
        "leave_s": leave_of(row) if row.state != JobState.DEAD else 0.0,
        # The row of the cell is read before the other rows, so the live page receives every later change.
        "revision": row.cell.revision,
        "rows": list(tasks),
        "page_obj": tasks,
        "states": STATES,
        "state": state,
        "specs": list(specs_of(row).defer("spec").order_by("-version")[:20]),
        "namesakes": namesakes,
        "may_write": may_write,
        "submit_again": submit_link(row, again=True) if may_write and not has_live_namesake else "",
        "edit_as_new": submit_link(row) if may_write else "",
        "usage": job_usage_plots(row, period_of(request.GET.get("usage", "")), now=timezone.now()),
        "usage_periods": PERIODS,
        "meters": usage_meters([row]).get(row.id, []),
        "cost": cost_of(principal, row),
        "living": row.tasks_total - row.tasks_dead,
        "job_revision": revision_of(row),
        "scaling": recommendation_of(row) if _is_scaled(row) else None,
    }
    return render(request, "sigma/job.html", context)


def _is_scaled(row: Job) -> bool:
    return row.state != JobState.DEAD and JobAutoscaling.objects.filter(job=row).exists()


def status_context(row: Job) -> dict[str, Any]:
    """Return the template context of the live parts of a job's page. The number of queries is fixed."""
    verdict = PendingVerdict.objects.filter(job=row).first() if row.tasks_pending else None
    (row,) = with_health([row])
    progress = reads.update_progress(row)
    troubles: Troubles = row.health.troubles  # type: ignore[attr-defined]
    crashes = crashing_tasks(row) if troubles.crashing else []
    return {
        "job": row,
        "troubles": format_troubles(troubles, living=row.tasks_total - row.tasks_dead, words=WORDS),
        "crashes": crash_sentences(crashes, WORDS),
        # No event reports that a crashing task has become healthy, so the browser reads the page again after a while.
        "again_s": SETTLED_S if troubles.crashing else None,
        "progress": progress,
        "whys": explain(row, pending_verdicts.read(verdict.whys)) if verdict else [],
        "verdict": verdict,
        "waiting": " ".join(held_sentences(row, WORDS)) if is_held(row) else "",
        "beyond": held_sentences(row, WORDS),
        "starts_later": waits_until(row) is not None,
        "rates": rate_sentences(row, WORDS),
        "maintenance": maintenance_of(row) if row.tasks_running else [],
        "dependencies": dependencies_of(row) if row.waiting or row.may_start_since else [],
    }


def live_context(row: Job) -> dict[str, Any]:
    """Return the template context of the parts of a job's page that live messages replace. A live message has no
    timeline, whose times are in the time zone of the user, and no grid of a large job: the page reads them again.
    """
    status = status_context(row)
    progress = status["progress"]
    small = row.tasks_total <= MOST_IN_LIVE_GRID
    return {
        **status,
        "folds": folded(events_of(row, limit=LISTED_EVENTS)),
        "grid": task_grid(row, progress.update if progress else None) if small else None,
    }


@page
@require_POST
def kill(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Kill the job that has the UID in the form, or only one task if the form has the field `index`."""
    row = reads.job_named(principal, cell, tenant, name, uid=request.POST.get("uid", ""))
    index = whole_number(request.POST.get("index", ""))
    if index is None and request.POST.get("index"):
        raise invalid("index", _("%r is not the index of a task; give a number such as 0") % request.POST["index"][:20])
    killed = job_kill(
        principal=principal,
        job=row,
        indexes=None if index is None else [index],
        reason=request.POST.get("reason", "").strip()[:300],
        confirm=whole_number(request.POST.get("confirm", "")),  # the number of tasks that the page showed
    )
    if killed:
        text = ngettext("%d task is being killed.", "%d tasks are being killed.", killed) % killed
        messages.success(request, text)
    else:
        messages.info(request, _("No task was killed, because every task has already ended."))
    return back_to(row)


@page
@require_POST
def undo(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Roll the job back to its previous spec. Raises `Conflict` if the spec changed after the page was shown."""
    row = reads.job_named(principal, cell, tenant, name, uid=request.POST.get("uid", ""))
    if request.POST.get("version", "") != str(row.spec_version):
        raise Conflict(
            "job-changed",
            _("Cannot undo: the spec changed to version %d after this page was shown. Check the job, then undo again.")
            % row.spec_version,
        )
    done = job_undo(principal=principal, job=row)
    messages.success(
        request,
        _("The undo started. Version %d, which is a copy of the previous spec, is being rolled out.") % done.version,
    )
    return back_to(row)


def back_to(row: Job) -> HttpResponseRedirect:
    """Return a redirect to the page of a job. A link to a job that has ended needs its UID."""
    row.refresh_from_db(fields=["state"])
    url = reverse("sigma:job", args=[row.cell.name, row.tenant.name, row.name])
    return redirect(f"{url}?uid={row.uid}" if row.state == JobState.DEAD else url)
