"""Pages of machines, with actions to drain them and to end drains."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter
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
from quota.admin.reason_forms import act_together
from quota.vocabulary.resources import CPU, PORTS, describe, format_number
from scheduling.access.selectors import tasks_there
from scheduling.admin.actions import row_action
from scheduling.admin.filters import QuarantineFilter
from scheduling.admin.pools.machine_actions import assign_pool, set_attributes
from scheduling.core.vocabulary.requirement import POOL
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
from scheduling.policy.cpu_factors import ONE


class DrainForm(forms.Form):
    minutes = forms.IntegerField(
        label=gettext_lazy("Minutes until the deadline (empty: no deadline)"),
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
        label=gettext_lazy("Number of tasks to evict, as a confirmation if it is a large part of the cell's tasks"),
        required=False,
        min_value=0,
        widget=UnfoldAdminIntegerFieldWidget(),
    )


class PlatformFilter(AllValuesFieldListFilter):
    """A filter by platform. It is hidden while no machine has a platform. Simulated machines and machines with an old
    Borglet have no platform.
    """

    def has_output(self) -> bool:
        return any(self.lookup_choices)

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        for choice in super().choices(changelist):
            yield {**choice, "display": choice["display"] or gettext_lazy("no platform")}


class MachineAdmin(FactsAdmin):
    list_display = [
        "hostname",
        "cell",
        "state_shown",
        "reason",
        "rack",
        "power_domain",
        "platform",
        "pool_shown",
        "capacity_shown",
        "tasks_shown",
        "software",
        "in_quarantine",
    ]
    list_filter = ["state", "cell", QuarantineFilter, ("platform", PlatformFilter)]
    list_select_related = ["cell"]
    search_fields = ["hostname", "=rack", "=power_domain", "=address"]
    fields = [
        "cell",
        "hostname",
        "address",
        "state_shown",
        "reason",
        "capacity_shown",
        "machine_cpu_shown",
        "platform",
        "rack",
        "power_domain",
        "attributes",
        "set_attributes",
        "assigned_pool",
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
    actions = [
        "drain",
        "undrain",
        set_attributes,
        assign_pool,
        "quarantine_stop",
        "quarantine_keep",
        "rotate",
        "revoke",
        "remove",
    ]

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

    @display(description=gettext_lazy("CPU of the machine, and its factor"))
    def machine_cpu_shown(self, machine: Machine) -> str:
        return f"{describe(CPU, machine.machine_capacity[CPU])} × {format_number(machine.cpu_factor / ONE)}"

    @display(description=gettext_lazy("pool"))
    def pool_shown(self, machine: Machine) -> str:
        return str(machine.attributes.get(POOL, "")) or "–"

    @display(description=gettext_lazy("tasks"))
    def tasks_shown(self, machine: Any) -> int:
        return int(machine.tasks_there)

    @display(description=gettext_lazy("unknown tasks in quarantine"))
    def in_quarantine(self, machine: Machine) -> int:
        return len(machine.quarantined)

    @admin.action(description=gettext_lazy("Drain"))
    def drain(self, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
        principal = principal_of(request)

        def act(chosen: list[Machine], reason: str, given: dict[str, Any]) -> int:
            minutes = given["minutes"]
            by_cell = groupby(sorted(chosen, key=attrgetter("cell_id")), key=attrgetter("cell"))
            for cell, machines in by_cell:
                machines_drain(
                    principal=principal,
                    cell=cell,
                    machines=list(machines),
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
            warning=_(
                "These machines get no new tasks. Their tasks are evicted at the cell's eviction rate, within "
                "disruption budgets."
            ),
            act=act,
            more=DrainForm,
        )

    undrain = row_action(
        "undrain",
        label=gettext_lazy("Undrain"),
        title=gettext_lazy("Undrain machines"),
        warning=gettext_lazy("These machines receive tasks again."),
        service=machine_undrain,
        row_as="machine",
    )
    quarantine_stop = row_action(
        "quarantine_stop",
        label=gettext_lazy("Stop quarantined tasks"),
        title=gettext_lazy("Stop quarantined tasks"),
        warning=gettext_lazy(
            "Tasks that run on these machines but are not in this cell's history are stopped: SIGTERM first, SIGKILL"
            " after the notice period of the task."
        ),
        service=partial(quarantine_release, keys=None, action="stop"),
        row_as="machine",
    )
    quarantine_keep = row_action(
        "quarantine_keep",
        label=gettext_lazy("Keep quarantined tasks running"),
        title=gettext_lazy("Keep quarantined tasks running"),
        warning=gettext_lazy(
            "Tasks that run on these machines but are not in this cell's history keep running. The cell does not "
            "manage them."
        ),
        service=partial(quarantine_release, keys=None, action="keep"),
        row_as="machine",
    )
    rotate = row_action(
        "rotate",
        label=gettext_lazy("Issue a new secret"),
        title=gettext_lazy("Issue new secrets for machines"),
        warning=gettext_lazy(
            "Each machine gets a new secret at its next poll. The old secret is invalid as soon as the machine uses the"
            " new one."
        ),
        service=machine_rotate,
        row_as="machine",
    )
    revoke = row_action(
        "revoke",
        label=gettext_lazy("Disconnect (revoke the secret)"),
        title=gettext_lazy("Disconnect machines"),
        warning=gettext_lazy(
            "The secrets of these machines become invalid at once, and their tasks are placed elsewhere. The "
            "machines can"
            " join again."
        ),
        service=machine_revoke,
        row_as="machine",
    )
    remove = row_action(
        "remove",
        label=gettext_lazy("Remove permanently"),
        title=gettext_lazy("Remove machines"),
        warning=gettext_lazy(
            "These machines are removed permanently, and their secrets become invalid. Drain the machines first."
        ),
        service=machine_remove,
        row_as="machine",
    )
