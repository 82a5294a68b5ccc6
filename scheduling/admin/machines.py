"""Machines: watched, drained and brought back."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.decorators import display

from quota.admin import FactsAdmin, principal_of, vector_text
from quota.resources import PORTS
from scheduling.admin.acting import act_with_reason
from scheduling.core.states import MachineStatus
from scheduling.models import Machine
from scheduling.services.credentials import machine_revoke, machine_rotate
from scheduling.services.machines import machine_drain, machine_remove, machine_undrain, quarantine_release


class MachineAdmin(FactsAdmin):
    list_display = [
        "hostname", "cell", "state_shown", "reason", "rack", "power_domain", "platform", "capacity_shown",
        "tasks_shown", "software", "in_quarantine",
    ]  # fmt: skip
    list_filter = ["state", "cell", "platform"]
    list_select_related = ["cell"]
    search_fields = ["hostname", "=rack", "=power_domain", "=address"]
    fields = [
        "cell", "hostname", "address", "state_shown", "reason", "capacity_shown", "platform", "rack",
        "power_domain", "attributes", "port_low", "port_high", "session", "boot_id", "software", "quarantined",
        "joined_at", "secret_at", "rotation_asked",
    ]  # fmt: skip
    actions = ["drain", "undrain", "quarantine_stop", "quarantine_keep", "rotate", "revoke", "remove"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Machine]:
        return super().get_queryset(request).annotate(tasks_there=Count("tasks"))

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
        held = [
            0 if r == PORTS else amount for r, amount in enumerate(machine.capacity)
        ]  # ports have their own fields
        return vector_text(held, extra=machine.cell.extra_resources)

    @display(description=gettext_lazy("tasks"))
    def tasks_shown(self, machine: Any) -> int:
        return int(machine.tasks_there)

    @display(description=gettext_lazy("in quarantine"))
    def in_quarantine(self, machine: Machine) -> int:
        return len(machine.quarantined)

    def drain(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="drain",
            title=_("Drain machines"),
            warning=_("They take no new tasks, and their tasks leave at the cell's rate."),
            act=lambda row, reason: machine_drain(principal=principal, machine=row, reason=reason),
        )

    def undrain(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="undrain",
            title=_("Undrain machines"),
            warning=_("They take tasks again."),
            act=lambda row, reason: machine_undrain(principal=principal, machine=row, reason=reason),
        )

    def quarantine_stop(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        warning = _("What they run and this cell's history does not know is stopped, with its notice.")
        return self._release(request, rows, "stop", _("Stop what is in quarantine"), warning)

    def quarantine_keep(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        warning = _("What they run and this cell's history does not know goes on, unmanaged.")
        return self._release(request, rows, "keep", _("Keep what is in quarantine"), warning)

    def _release(
        self, request: HttpRequest, rows: QuerySet[Machine], action: str, title: str, warning: str
    ) -> HttpResponse | None:
        principal = principal_of(request)

        def act(row: Machine, reason: str) -> None:
            undecided = [item["key"] for item in row.quarantined if not item.get("release")]
            quarantine_release(principal=principal, machine=row, keys=undecided, action=action)

        return act_with_reason(
            self, request, rows, action=f"quarantine_{action}", title=title, warning=warning, act=act
        )

    def rotate(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="rotate",
            title=_("New secrets for machines"),
            warning=_("Each gets one at its next poll; the old one is void once the new one was used."),
            act=lambda row, reason: machine_rotate(principal=principal, machine=row, reason=reason),
        )

    def revoke(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="revoke",
            title=_("Cut machines off"),
            warning=_(
                "Their secrets are void at once and their tasks are placed elsewhere; they may join again."
            ),
            act=lambda row, reason: machine_revoke(principal=principal, machine=row, reason=reason),
        )

    def remove(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="remove",
            title=_("Remove machines"),
            warning=_("They are forgotten for good and their secrets are void. Drain them first."),
            act=lambda row, reason: machine_remove(principal=principal, machine=row, reason=reason),
        )

    drain.short_description = gettext_lazy("Drain")
    undrain.short_description = gettext_lazy("Undrain")
    quarantine_stop.short_description = gettext_lazy("Quarantine: stop")
    quarantine_keep.short_description = gettext_lazy("Quarantine: keep")
    rotate.short_description = gettext_lazy("New secret")
    revoke.short_description = gettext_lazy("Revoke secret")
    remove.short_description = gettext_lazy("Remove for good")
