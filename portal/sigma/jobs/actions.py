"""Forms of a job's page that change the job without a job file."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from portal.sigma.frame.page import page, whole_number
from portal.sigma.jobs.job import back_to
from portal.sigma.reads.jobs import job_named
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.autoscaling.accepting import accepted_spec, recommendation_accept
from scheduling.jobs.actions.pause import update_pause, update_resume
from scheduling.jobs.actions.restart import job_restart
from scheduling.jobs.actions.retry import job_retry
from scheduling.jobs.actions.scale import job_scale
from scheduling.jobs.actions.task_selection import parse_ranges


@page
@require_POST
def scale(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Change the number of the job's tasks. The form sends the revision of the job that the page showed."""
    row = job_named(principal, cell, tenant, name, uid=request.POST.get("uid", ""))
    tasks = whole_number(request.POST.get("tasks", ""))
    if tasks is None:
        given = request.POST.get("tasks", "")[:20]
        raise invalid("tasks", _("%r is not a number of tasks; give a whole number such as 3") % given)
    done = job_scale(principal=principal, job=row, tasks=tasks, if_revision=request.POST.get("revision", ""))
    if done.outcome == "unchanged":
        messages.info(request, _("Nothing was changed, because job %s already has this number of tasks.") % row.name)
    else:
        text = ngettext("The job is being changed to %d task.", "The job is being changed to %d tasks.", tasks) % tasks
        messages.success(request, text)
    return back_to(row)


@page
@require_POST
def accept(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Set the values that the autoscaler recommends. The form sends the revision of the job that the page showed."""
    row = job_named(principal, cell, tenant, name, uid=request.POST.get("uid", ""))
    require_tenant(principal, Action.JOB_WRITE, tenant, cell)
    revision = request.POST.get("revision", "")
    recommendation_accept(principal=principal, job=row, job_spec=accepted_spec(row), if_revision=revision)
    messages.success(request, _("The recommended values are being set."))
    return back_to(row)


@page
@require_POST
def restart(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Restart the running tasks of the job, or those whose indexes are in the field `tasks`."""
    row = job_named(principal, cell, tenant, name, uid=request.POST.get("uid", ""))
    given = request.POST.get("tasks", "").strip()
    done = job_restart(principal=principal, job=row, ranges=parse_ranges(given))
    text = ngettext(
        "%(tasks)d task is being restarted.",
        "%(tasks)d tasks are being restarted, at most %(down)d at the same time.",
        done.tasks,
    )
    messages.success(request, text % {"tasks": done.tasks, "down": done.max_down})
    return back_to(row)


@page
@require_POST
def retry(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Run the failed tasks of the job again, or the dead tasks whose indexes are in the field `tasks`."""
    row = job_named(principal, cell, tenant, name, uid=request.POST.get("uid", ""))
    given = request.POST.get("tasks", "").strip()
    done = job_retry(principal=principal, job=row, ranges=parse_ranges(given))
    messages.success(request, ngettext("%d task runs again.", "%d tasks run again.", done.tasks) % done.tasks)
    return back_to(done.job)


@page
@require_POST
def pause(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    row = job_named(principal, cell, tenant, name, uid=request.POST.get("uid", ""))
    update_pause(principal=principal, job=row)
    messages.success(request, _("Paused. No further task changes until you resume."))
    return back_to(row)


@page
@require_POST
def resume(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    row = job_named(principal, cell, tenant, name, uid=request.POST.get("uid", ""))
    update = update_resume(principal=principal, job=row)
    if update.canary and update.by_hand:
        messages.warning(request, _("Resumed. The canary tasks are not up yet, so resume again when they are."))
    else:
        messages.success(request, _("Resumed. The remaining tasks change a few at a time."))
    return back_to(row)
