"""How a request chooses machines: by name, rack, power domain, or a selector over their attributes."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from quota.vocabulary.errors import Rejected, invalid
from scheduling.access.label_filters import machines_selected
from scheduling.models import Cell, Machine
from scheduling.models.machines import REMOVED

# A request changes at most so many machines, because one transaction does it.
MOST = 5_000
CHOICES = ("machines", "rack", "power_domain", "selector")


class MachineChoiceSerializer(serializers.Serializer[Any]):
    machines = serializers.ListField(child=serializers.CharField(), required=False, help_text="Names of machines.")
    rack = serializers.CharField(max_length=63, required=False)
    power_domain = serializers.CharField(max_length=63, required=False)
    selector = serializers.CharField(
        max_length=2000, required=False, help_text="Label selector over attributes of machines, as in their list."
    )


def machines_chosen(cell: Cell, given: dict[str, Any]) -> list[Machine]:
    """Remove the choice of machines from the checked request `given`, and return these machines.

    Exactly one of `CHOICES` must be given, and it must match a machine. Otherwise raises `Rejected`.
    """
    wanted = {name: given.pop(name) for name in CHOICES if name in given}
    wanted = {name: value for name, value in wanted.items() if (value.strip() if isinstance(value, str) else value)}
    if len(wanted) != 1:
        what = "give exactly one of machines, rack, power_domain and selector"
        raise Rejected("invalid", what, fields=dict.fromkeys(CHOICES, what))
    ((field, value),) = wanted.items()
    if field == "machines":
        return _named(cell, value)
    rows = Machine.objects.filter(cell=cell).exclude(state=REMOVED)
    rows = machines_selected(rows, value) if field == "selector" else rows.filter(**{field: value})
    found = list(rows.order_by("id")[: MOST + 1])
    if not 1 <= len(found) <= MOST:
        number = f"more than {MOST}" if found else "no"
        kind = f"{field.replace('_', ' ')} {value[:80]!r}"
        raise invalid(field, f"the {kind} has {number} machines; choose one with 1 to {MOST} machines")
    return found


def _named(cell: Cell, hostnames: list[str]) -> list[Machine]:
    if len(hostnames) > MOST:
        raise invalid("machines", f"the request names {len(hostnames)} machines; name at most {MOST}")
    found = list(Machine.objects.filter(cell=cell, hostname__in=hostnames).order_by("id"))
    if unknown := sorted(set(hostnames) - {machine.hostname for machine in found}):
        what = f"this cell has no machine {', '.join(unknown[:5])}; check the host names"
        raise Rejected("not-found", what, fields={"machines": what}, status=404)
    return found
