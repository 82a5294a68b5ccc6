"""Links from lists of the console to the page of a machine, which all users share."""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.admin import ModelAdmin
from unfold.decorators import display

from scheduling.admin.machines import MachineAdmin
from scheduling.models import Machine


def _link(machine: Machine | None) -> SafeString | str:
    if machine is None:
        return "–"
    address = reverse("sigma:machine", args=[machine.cell.name, machine.hostname])
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', address, machine.hostname)


class LinkedMachineAdmin(MachineAdmin):
    """The pages of machines. The hostname in the list leads to the page of the machine."""

    list_display = ["hostname_link", *MachineAdmin.list_display[1:]]
    list_display_links = None

    @display(description=_("hostname"), ordering="hostname")
    def hostname_link(self, machine: Machine) -> SafeString | str:
        return _link(machine)


def with_machine_links(page: type[ModelAdmin]) -> type[ModelAdmin]:
    """Return an admin page like `page`, in whose list the column `machine` is a link. Pages without this column are
    returned as they are.
    """
    if page is MachineAdmin:
        return LinkedMachineAdmin
    columns = list(page.list_display)
    if "machine" not in columns:
        return page

    @display(description=_("machine"), ordering="machine")
    def machine_link(self: Any, row: Any) -> SafeString | str:
        return _link(row.machine)

    replaced = ["machine_link" if column == "machine" else column for column in columns]
    related = [*(page.list_select_related or ()), "machine__cell"]  # type: ignore[misc]
    # The first column leads to the page of the row. If it is the machine, the next column does.
    links = [replaced[1]] if columns[0] == "machine" else page.list_display_links
    members = {
        "__doc__": page.__doc__,
        "list_display": replaced,
        "list_select_related": related,
        "list_display_links": links,
        "machine_link": machine_link,
    }
    return type(page.__name__, (page,), members)
