"""The first steps of a newcomer: from a first sign-in to a running job and its log. What exists decides which steps are
done: quota, jobs, running tasks, and an opened log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.urls import reverse
from django.utils.translation import gettext as _

from portal.sigma.reads.jobs import operated_jobs_visible
from quota.models import Preferences, Tenant
from quota.personal.preferences import HIDDEN, SHOWN, steps_done
from quota.selectors import QuotaStanding
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.core.vocabulary.states import JobState
from scheduling.models import Cell, Job

# The newest jobs of the user that the steps look at.
_JOBS = 20


@dataclass(frozen=True, slots=True)
class Step:
    """A step. `title`: what to do. `text`: why, or how far it is. `action`, `link`: the action and the address of the
    page on which the user takes it; the link is empty if the step before is not done. `map_link`: the address of the
    map of the cell, or "".
    """

    title: str
    text: str
    done: bool
    action: str
    link: str
    map_link: str = ""


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """The steps of a user. `next`: the number of the first step that is not done, counted from 1; 0 if all are done."""

    steps: tuple[Step, ...]

    @property
    def next(self) -> int:
        return next((number for number, step in enumerate(self.steps, 1) if not step.done), 0)

    @property
    def done(self) -> int:
        return sum(step.done for step in self.steps)


def first_steps(
    principal: Principal,
    preferences: Preferences,
    *,
    tenants: Sequence[Tenant],
    quota: Sequence[QuotaStanding],
    cells: Sequence[Cell],
) -> FirstSteps | None:
    """Return the first steps, or None if the home page does not show them: the user has hidden them or did all of them
    before, or may submit no job. Makes one query, or none if the steps are hidden. Stores once that all are done.

    `quota`: the quota of the user's tenants. `cells`: the cells that the user may see.
    """
    mine = [tenant for tenant in tenants if may(principal, Action.JOB_WRITE, tenant=tenant.name)]
    if preferences.first_steps == HIDDEN or not mine or not cells:
        return None
    if preferences.steps_done_at is not None and preferences.first_steps != SHOWN:
        return None
    own = operated_jobs_visible(principal).filter(submitted_by=principal.name, tenant__in=mine)
    jobs = list(own.order_by("-id")[:_JOBS])
    granted = next((one for one in quota if any(one.granted) and _named(mine, one.tenant)), None)
    tenant = granted.tenant if granted is not None else mine[0].name
    cell = granted.cell if granted is not None else cells[0].name
    run = next((job for job in jobs if _has_run(job)), None)
    shown = run or next(iter(jobs), None)
    found = FirstSteps(
        (
            _quota(granted, tenant, cell, run),
            _submit(shown, tenant, cell),
            _see(shown, run),
            _log(run, opened=preferences.log_opened_at is not None),
        )
    )
    if not found.next and preferences.steps_done_at is None:
        steps_done(principal)
    return found


def _named(tenants: Sequence[Tenant], name: str) -> bool:
    return any(tenant.name == name for tenant in tenants)


def _has_run(job: Job) -> bool:
    """Return whether the job runs or has ended."""
    return job.tasks_up > 0 or job.state == JobState.DEAD


def _quota(granted: QuotaStanding | None, tenant: str, cell: str, run: Job | None) -> Step:
    if granted is None:
        text = _("Quota lets a tenant run jobs above priority 0. Choose amounts and a period, and pay with credits.")
    else:
        text = _("Tenant %(tenant)s has quota in band %(band)s of cell %(cell)s.") % {
            "tenant": granted.tenant,
            "band": granted.band,
            "cell": granted.cell,
        }
    if granted is None and run is not None:
        text = _("Your job needs no quota. Jobs with a priority above 0 need some.")
    link = reverse("sigma:shop", query={"tenant": tenant, "cell": cell})
    return Step(_("Get quota"), text, granted is not None or run is not None, _("Buy quota"), link)


def _submit(job: Job | None, tenant: str, cell: str) -> Step:
    link = reverse("sigma:submit", query={"example": "web", "tenant": tenant, "cell": cell})
    text = _("The example is a web server with three tasks. The form is filled in, and you can change it.")
    if job is not None:
        text = _("You submitted job %s.") % job.name
    return Step(_("Submit an example job"), text, job is not None, _("Open the filled-in form"), link)


def _see(job: Job | None, run: Job | None) -> Step:
    title, action = _("See the job run"), _("Show the job")
    if job is None:
        return Step(
            title, _("The scheduler places the tasks on machines, which takes some seconds."), False, action, ""
        )
    text = _("Job %s has not run yet. Its page shows why.") % job.name
    if run is not None and run.state == JobState.DEAD:
        text = _("Job %s has ended.") % run.name
    elif run is not None:
        text = _("Job %(job)s: %(up)d of %(all)d tasks run.") % {
            "job": job.name,
            "up": job.tasks_up,
            "all": job.tasks_total,
        }
    link = reverse("sigma:job", args=[job.cell.name, job.tenant.name, job.name])
    return Step(title, text, run is not None, action, link, reverse("sigma:cell-map", args=[job.cell.name]))


def _log(run: Job | None, *, opened: bool) -> Step:
    text = _("The page of a task shows what its program writes.")
    link = "" if run is None else reverse("sigma:task", args=[run.cell.name, run.tenant.name, run.name, 0])
    return Step(_("Open the log of a task"), text, opened, _("Show task 0 with its log"), link)
