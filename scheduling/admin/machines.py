"""Pages of machines, with actions to drain them and to end drains."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, cast

from django import forms
from django.contrib import admin
from django.contrib.admin import AllValuesFieldListFilter
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.decorators import display
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldBooleanSwitchWidget

from quota.admin import FactsAdmin, principal_of, vector_text
from quota.admin.acting import act_together, act_with_reason
from quota.vocabulary.resources import PORTS
from scheduling.access.selectors import tasks_there
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.machines.credentials import machine_revoke, machine_rotate
from scheduling.machines.machines import (
    MAX_DEADLINE_S,
    machine_remove,
    machine_undrain,
    machines_drain,
    quarantine_release,
)
from scheduling.models import Machine


class DrainForm(forms.Form):
    minutes = forms.IntegerField(
        label=gettext_lazy("Deadline in minutes from now (empty: no deadline)"),
        required=False,
        min_value=0,
        max_value=int(MAX_DEADLINE_S // 60),
        widget=UnfoldAdminIntegerFieldWidget(),
    )
    break_budgets = forms.BooleanField(
        label=gettext_lazy("At the deadline, evict tasks despite their disruption budgets"),
        required=False,
        widget=UnfoldBooleanSwitchWidget(),
    )
    confirm = forms.IntegerField(
        label=gettext_lazy("Confirm the number of tasks to evict, if it is a large part of the cell"),
        required=False,
        min_value=0,
        widget=UnfoldAdminIntegerFieldWidget(),
    )


def _cell_of(machine: Machine) -> int:
    return machine.cell_id


class PlatformFilter(AllValuesFieldListFilter):
    """Platforms by name. It is shown once a machine has one: simulated machines and old Borglets have none."""

    def has_output(self) -> bool:
        return any(self.lookup_choices)

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        for choice in super().choices(changelist):
            yield {**choice, "display": choice["display"] or gettext_lazy("none")}


class MachineAdmin(FactsAdmin):
    list_display = [
        "hostname",
        "cell",
        "state_shown",
        "reason",
        "rack",
        "power_domain",
        "platform",
        "capacity_shown",
        "tasks_shown",
        "software",
        "in_quarantine",
    ]
    list_filter = ["state", "cell", ("platform", PlatformFilter)]
    list_select_related = ["cell"]
    search_fields = ["hostname", "=rack", "=power_domain", "=address"]
    fields = [
        "cell",
        "hostname",
        "address",
        "state_shown",
        "reason",
        "capacity_shown",
        "platform",
        "rack",
        "power_domain",
        "attributes",
        "port_low",
        "port_high",
        "session",
        "boot_id",
        "software",
        "quarantined",
        "joined_at",
        "secret_at",
        "rotation_asked",
    ]
    actions = ["drain", "undrain", "quarantine_stop", "quarantine_keep", "rotate", "revoke", "remove"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Machine]:
        return cast("QuerySet[Machine]", super().get_queryset(request).annotate(tasks_there=tasks_there()))

    @display(
        description=gettext_lazy("state"),
        ordering="state",
        label={
            MachineStatus.UP.value: "success",
            MachineStatus.DRAINING.value: "warning",
            MachineStatus.DOWN.value: "danger",
        },
    )
    def state_shown(self, machine: Machine) -> str:
        return machine.state

    @display(description=gettext_lazy("capacity"))
    def capacity_shown(self, machine: Machine) -> SafeString:
        held = [0 if r == PORTS else amount for r, amount in enumerate(machine.capacity)]  # ports have their own fields
        return vector_text(held, extra=machine.cell.extra_resources)

    @display(description=gettext_lazy("tasks"))
    def tasks_shown(self, machine: Any) -> int:
        return int(machine.tasks_there)

    @display(description=gettext_lazy("in quarantine"))
    def in_quarantine(self, machine: Machine) -> int:
        return len(machine.quarantined)

    @admin.action(description=gettext_lazy("Drain"))
    def drain(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        principal = principal_of(request)

        def act(chosen: list[Machine], reason: str, given: dict[str, Any]) -> int:
            minutes = given["minutes"]
            for _cell_id, group in groupby(sorted(chosen, key=_cell_of), key=_cell_of):
                many = list(group)
                machines_drain(
                    principal=principal,
                    cell=many[0].cell,
                    machines=many,
                    reason=reason,
                    confirm=given["confirm"],
                    deadline_s=None if minutes is None else 60.0 * minutes,
                    break_budgets=given["break_budgets"],
                )
            return len(chosen)

        return act_together(
            self,
            request,
            rows,
            action="drain",
            title=_("Drain machines"),
            warning=_("They get no new tasks. Their tasks are evicted at the cell's rate, within disruption budgets."),
            act=act,
            more=DrainForm,
        )

    @admin.action(description=gettext_lazy("Undrain"))
    def undrain(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="undrain",
            title=_("Undrain machines"),
            warning=_("They can get tasks again."),
            act=lambda row, reason: machine_undrain(principal=principal, machine=row, reason=reason),  # type: ignore[arg-type]
        )

    @admin.action(description=gettext_lazy("Quarantine: stop"))
    def quarantine_stop(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        warning = _(
            "Tasks that run on these machines but are not in this cell's history are stopped: SIGTERM first, SIGKILL"
            " after their notice."
        )
        return self._release(request, rows, "stop", _("Stop the tasks in quarantine"), warning)

    @admin.action(description=gettext_lazy("Quarantine: keep"))
    def quarantine_keep(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        warning = _("Tasks that run on these machines but are not in this cell's history keep running, unmanaged.")
        return self._release(request, rows, "keep", _("Keep the tasks in quarantine"), warning)

    def _release(
        self, request: HttpRequest, rows: QuerySet[Machine], action: str, title: str, warning: str
    ) -> HttpResponse | None:
        principal = principal_of(request)

        def act(row: Machine, reason: str) -> None:
            quarantine_release(principal=principal, machine=row, keys=None, action=action, reason=reason)

        return act_with_reason(
            self,
            request,
            rows,
            action=f"quarantine_{action}",
            title=title,
            warning=warning,
            act=act,  # type: ignore[arg-type]
        )

    @admin.action(description=gettext_lazy("New secret"))
    def rotate(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="rotate",
            title=_("New secrets for machines"),
            warning=_("Each machine gets a new secret at its next poll. The old one ends once the new one was used."),
            act=lambda row, reason: machine_rotate(principal=principal, machine=row, reason=reason),  # type: ignore[arg-type]
        )

    @admin.action(description=gettext_lazy("Revoke secret"))
    def revoke(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="revoke",
            title=_("Disconnect machines"),
            warning=_("Their secrets end at once and their tasks are placed elsewhere. The machines can join again."),
            act=lambda row, reason: machine_revoke(principal=principal, machine=row, reason=reason),  # type: ignore[arg-type]
        )

    @admin.action(description=gettext_lazy("Remove permanently"))
    def remove(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="remove",
            title=_("Remove machines"),
            warning=_("They are removed permanently and their secrets end. Drain them first."),
            act=lambda row, reason: machine_remove(principal=principal, machine=row, reason=reason),  # type: ignore[arg-type]
        )
