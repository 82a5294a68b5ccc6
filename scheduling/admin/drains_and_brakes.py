"""Admin pages of drains, with their progress, of re-packings, and of brakes. A brake limits how many tasks a cell moves
or stops automatically. If a brake holds tasks back, an SRE decides how the cell continues.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.decorators import display
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from quota.admin import CreateOnlyAdmin, FactsAdmin, principal_of
from quota.admin.reason_forms import act_together
from quota.vocabulary.errors import Rejected, invalid
from scheduling.access.selectors import job_named
from scheduling.admin.actions import row_action
from scheduling.brakes.stored_brakes import RELEASED_S, brake_keep, brake_release
from scheduling.core.explaining.wording import Words
from scheduling.machines import drain_progress
from scheduling.machines.machines import machine_undrain
from scheduling.models import Brake, Drain, Repacking
from scheduling.policy.brake_rules import BrakeKind, BrakeState
from scheduling.repacking import repackings
from scheduling.tasks.budget_sentences import rate_sentence

_STEPS_SHOWN = 200
WHAT = {
    BrakeKind.LOST.value: gettext_lazy("placing the tasks of lost machines elsewhere"),
    BrakeKind.STOPS.value: gettext_lazy("automatic stops of tasks"),
}


class _DrainList(ChangeList):
    """A list of drains that reads the progress of all drains on the page at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(self.result_list)
        for cell in {drain.machine.cell for drain in rows}:
            here = [drain for drain in rows if drain.machine.cell_id == cell.pk]
            for drain, one in zip(here, drain_progress.progress_of(principal_of(request), cell, here), strict=True):
                drain.progress = one
        self.result_list = rows


class DrainAdmin(FactsAdmin):
    list_display = [
        "machine",
        "cell_shown",
        "state_shown",
        "left_shown",
        "waiting_shown",
        "deadline_shown",
        "asked_by",
        "reason",
    ]
    list_select_related = ["machine__cell"]
    list_filter = ["machine__cell"]
    search_fields = ["machine__hostname", "=machine__rack", "=machine__power_domain"]
    fields = ["machine", "reason", "asked_by", "began_at", "deadline", "break_budgets", "tasks"]
    actions = ["undrain"]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return _DrainList

    @display(description=gettext_lazy("cell"), ordering="machine__cell")
    def cell_shown(self, drain: Drain) -> str:
        return str(drain.machine.cell.name)

    @display(
        description=gettext_lazy("state"),
        label={
            "empty": "success",
            "overdue": "danger",
            "waiting": "warning",
            "leaving": "info",
            "stopping": "info",
            "down": "danger",
            "held": "info",
        },
    )
    def state_shown(self, drain: Any) -> tuple[str, str]:
        progress = drain.progress
        if progress.done:
            return "empty", _("no task left")
        if not progress.left:
            return "stopping", _("tasks stopping")
        if progress.overdue:
            return "overdue", _("deadline passed")
        if drain.machine.state == "down":
            return "down", _("machine down")
        if progress.left == progress.staying and drain.window_id is not None:
            return "held", _("tasks end before maintenance window %(number)s") % {"number": drain.window_id}
        if progress.left == progress.staying:
            return "held", _("held for re-packing %(number)s") % {"number": drain.repacking_id}
        return (
            ("leaving", _("evicting tasks")) if progress.leaving else ("waiting", _("waiting for disruption budgets"))
        )

    @display(description=gettext_lazy("tasks left"))
    def left_shown(self, drain: Any) -> SafeString:
        progress = drain.progress
        most = max(drain.tasks, progress.left, 1)
        detail = _("%(left)d of %(all)d tasks") % {"left": progress.left, "all": max(drain.tasks, progress.left)}
        return format_html(
            '<div class="flex items-center gap-2 whitespace-nowrap"><progress class="w-24" max="{}" value="{}"'
            ' aria-label="{}"></progress>{}</div>',
            most,
            progress.left,
            detail,
            detail,
        )

    @display(description=gettext_lazy("disruption budgets that delay the drain"))
    def waiting_shown(self, drain: Any) -> SafeString | str:
        rows = [
            (
                one.job,
                (
                    _("%(down)d tasks down, %(may)d may be down; %(tasks)d tasks on this machine")
                    % {"down": one.down, "may": one.may, "tasks": one.tasks}
                    if one.rate is None or not one.waits_for_rate
                    else rate_sentence(one.rate, Words(_, ngettext), needs=one.needs)
                ),
            )
            for one in drain.progress.waiting
        ]
        return format_html_join("", "<div>{}: {}</div>", rows) if rows else "–"

    @display(description=gettext_lazy("deadline"), ordering="deadline")
    def deadline_shown(self, drain: Drain) -> SafeString | str:
        if drain.deadline is None:
            return "–"
        then = _("after the deadline, tasks are evicted despite disruption budgets") if drain.break_budgets else ""
        return format_html(
            '<div class="whitespace-nowrap">{} UTC</div><div class="whitespace-nowrap">{}</div>',
            f"{drain.deadline:%F %H:%M}",
            then,
        )

    undrain = row_action(
        "undrain",
        label=gettext_lazy("Undrain"),
        title=gettext_lazy("Undrain machines"),
        warning=gettext_lazy("These machines receive tasks again."),
        service=lambda drain, **given: machine_undrain(machine=drain.machine, **given),
        row_as="drain",
    )


class RepackingAdmin(CreateOnlyAdmin):
    """Re-packings: the form asks the master for a plan. The page of a plan shows who moves, before it is started."""

    list_display = [
        "id",
        "cell",
        "state_shown",
        "goal_shown",
        "moves",
        "reason",
        "asked_by",
        "started_by",
        "created_at",
    ]
    list_select_related = ["cell"]
    list_filter = ["cell", "state"]
    ordering = ["-id"]
    fields = ["cell", "number", "job_name", "reason"]
    fields_shown = (
        "cell",
        "state",
        "detail",
        "goal_shown",
        "reason",
        "moves",
        "most_moves",
        "jobs_shown",
        "steps_shown",
        "asked_by",
        "started_by",
        "planned_at",
        "started_at",
        "ended_at",
    )
    actions = ["start", "stop", "release"]

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Repacking:
        principal, cell, name = principal_of(request), given["cell"], given["job_name"]
        job = None
        if name:
            tenant, _slash, own = name.partition("/")
            try:
                job = job_named(principal, cell, tenant, own)
            except Rejected as problem:
                raise invalid("job_name", f"{problem.detail}; write tenant/job") from problem
        number = given["number"] or (None if job is not None else 0)
        return repackings.repacking_plan(
            principal=principal, cell=cell, reason=given["reason"], machines=number, job=job
        )

    @display(
        description=gettext_lazy("state"),
        ordering="state",
        label={
            Repacking.PLANNING: "info",
            Repacking.PLANNED: "warning",
            Repacking.RUNNING: "info",
            Repacking.DONE: "success",
            Repacking.STOPPED: "danger",
            Repacking.FAILED: "danger",
        },
    )
    def state_shown(self, row: Repacking) -> str:
        return row.state

    @display(description=gettext_lazy("goal"))
    def goal_shown(self, row: Repacking) -> str:
        if row.goal == Repacking.JOB:
            return _("a task of %(job)s fits") % {"job": row.job_name}
        return _("free machines: %(number)d") % {"number": row.number}

    @display(description=gettext_lazy("jobs that lose tasks"))
    def jobs_shown(self, row: Repacking) -> SafeString | str:
        return format_html_join("", "<div>{}</div>", ((text,) for text in _jobs_of([row]))) or "–"

    @display(description=gettext_lazy("machines"))
    def steps_shown(self, row: Repacking) -> SafeString | str:
        steps = row.steps.select_related("machine").order_by("position")[:_STEPS_SHOWN]
        lines = [
            (step.machine.hostname, step.state, _("%(number)d tasks") % {"number": step.moves}, step.detail)
            for step in steps
        ]
        return format_html_join("", "<div>{}: {}, {} {}</div>", lines) or "–"

    @admin.action(description=gettext_lazy("Start"))
    def start(self, request: HttpRequest, rows: QuerySet[Repacking]) -> HttpResponse | None:
        principal = principal_of(request)
        chosen = list(rows[: _STEPS_SHOWN + 1])

        def act(started: list[Repacking], _reason: str, given: dict[str, Any]) -> int:
            for row in started:
                repackings.repacking_start(principal=principal, cell=row.cell, number=row.pk, confirm=given["confirm"])
            return len(started)

        return act_together(
            self,
            request,
            rows,
            action="start",
            title=_("Start re-packings"),
            warning=_("No new tasks start on the machines of the plan. These tasks move: %(jobs)s.")
            % {"jobs": "; ".join(_jobs_of(chosen)) or _("none")},
            act=act,
            more=ConfirmForm,
        )

    stop = row_action(
        "stop",
        label=gettext_lazy("Stop, or discard the plan"),
        title=gettext_lazy("Stop re-packings"),
        warning=gettext_lazy("Machines that are not free yet receive tasks again."),
        service=lambda row, **given: repackings.repacking_stop(cell=row.cell, number=row.pk, **given),
        row_as="row",
    )
    release = row_action(
        "release",
        label=gettext_lazy("Return the free machines"),
        title=gettext_lazy("Return free machines"),
        warning=gettext_lazy("New tasks may start on the free machines of these re-packings."),
        service=lambda row, **given: repackings.repacking_release(cell=row.cell, number=row.pk, **given),
        row_as="row",
    )


class ConfirmForm(forms.Form):
    confirm = forms.IntegerField(
        label=gettext_lazy("Number of tasks that move, with spare machines; needed only if it is very large"),
        required=False,
        min_value=0,
        widget=UnfoldAdminIntegerFieldWidget(),
    )


def _jobs_of(rows: list[Repacking]) -> list[str]:
    """Return a text with the number of tasks that the plans move, then one for each job that loses tasks, at most
    `_STEPS_SHOWN`, and at the end how many jobs are left out.
    """
    jobs = [job for row in rows for job in row.jobs]
    if not jobs:
        return []
    moves = {"moves": sum(row.moves for row in rows), "spare": sum(job["spare"] for job in jobs)}
    texts = [_("total: %(moves)d tasks, and up to %(spare)d more from spare machines") % moves]
    for job in jobs[:_STEPS_SHOWN]:
        text = _("%(moves)d of %(tasks)d tasks of %(name)s (%(may)d may be down at once)") % job
        texts.append(text + (_(", %(spare)d more from spare machines") % job if job["spare"] else ""))
    if len(jobs) > _STEPS_SHOWN:
        texts.append(_("and %(number)d more jobs") % {"number": len(jobs) - _STEPS_SHOWN})
    return texts


class ReleaseForm(forms.Form):
    minutes = forms.IntegerField(
        label=gettext_lazy("Minutes in which stops of tasks have no limit"),
        initial=int(RELEASED_S // 60),
        min_value=1,
        max_value=1440,
        widget=UnfoldAdminIntegerFieldWidget(),
    )


class BrakeAdmin(FactsAdmin):
    list_display = ["what_shown", "cell", "state_shown", "wanted", "detail", "since", "until", "decided_by"]
    list_select_related = ["cell"]
    list_filter = ["cell", "state"]
    fields = ["cell", "kind", "state", "wanted", "detail", "since", "pulled_at", "until", "decided_by"]
    actions = ["release", "keep"]

    @display(description=gettext_lazy("brake"), ordering="kind")
    def what_shown(self, brake: Brake) -> str:
        return f"{brake.kind}: {WHAT[brake.kind]}"

    @display(
        description=gettext_lazy("state"),
        ordering="state",
        label={
            BrakeState.OPEN.value: "success",
            BrakeState.BOUNDED.value: "warning",
            BrakeState.HELD.value: "danger",
            BrakeState.RELEASED.value: "info",
            BrakeState.KEPT.value: "warning",
        },
    )
    def state_shown(self, brake: Brake) -> str:
        return brake.state

    @admin.action(description=gettext_lazy("Release the brake"))
    def release(self, request: HttpRequest, rows: QuerySet[Brake]) -> HttpResponse | None:
        principal = principal_of(request)

        def act(chosen: list[Brake], reason: str, given: dict[str, Any]) -> int:
            for brake in chosen:
                brake_release(
                    principal=principal,
                    cell=brake.cell,
                    kind=brake.kind,
                    reason=reason,
                    seconds=60.0 * given["minutes"],
                )
            return len(chosen)

        return act_together(
            self,
            request,
            rows,
            action="release",
            title=_("Release brakes"),
            warning=_(
                "The cell continues: it places the tasks of lost machines elsewhere at its rate, and for the given"
                " minutes it stops tasks without a limit."
            ),
            act=act,
            more=ReleaseForm,
        )

    keep = row_action(
        "keep",
        label=gettext_lazy("Keep the brake on"),
        title=gettext_lazy("Keep the brakes on"),
        warning=gettext_lazy("These brakes hold tasks back until their cause has ended. They raise no more alerts."),
        service=lambda brake, **given: brake_keep(cell=brake.cell, kind=brake.kind, **given),
        row_as="brake",
    )
