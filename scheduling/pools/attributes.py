"""Writes attributes that SREs set on machines, and assigns machines to pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from django.db.models import Q

from quota.vocabulary.errors import Conflict, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.brakes import confirmation
from scheduling.journal import journal
from scheduling.models import Cell, Machine, Pool
from scheduling.models.machines import REMOVED
from scheduling.pools import rules
from scheduling.pools.foreign_tasks import tasks_leaving
from scheduling.pools.membership import Membership, machines_store


def attributes_set(
    *,
    principal: Principal,
    cell: Cell,
    machines: Sequence[Machine],
    values: Mapping[str, str],
    removed: Sequence[str] = (),
    reason: str = "",
    confirm: int | None = None,
) -> list[Machine]:
    """Set attributes of machines (`values`), and remove attributes that SREs have set (`removed`). Return the machines
    that changed. A machine that lacks a removed attribute stays as it is.

    An attribute that an SRE sets replaces a reported one of the same name, which comes back when the SRE's is removed.
    `confirm`: the number of tasks that stop because a machine changes its pool; required if it is above the share
    `confirm_share` of the cell's tasks. Raises `Rejected` if a name or a value is wrong. Locks: the cell's row, then
    the machines' in order of id.
    """
    if problems := rules.wrong_attributes(values, removed):
        detail = "; ".join(f"{field}: {what}" for field, what in list(problems.items())[:3])
        raise Rejected("invalid", detail, fields=problems)

    gone = set(removed)

    def change(machine: Machine) -> None:
        own = {**machine.set_attributes, **values}
        machine.set_attributes = {name: value for name, value in own.items() if name not in gone}
        if len(machine.set_attributes) > rules.MOST_SET:
            what = f"{machine.hostname} would have {len(machine.set_attributes)} attributes that SREs set"
            raise invalid("set", f"{what}; {rules.MOST_SET} are allowed, so remove some first")

    return _change(principal, cell, machines, change, reason, confirm)


def machines_assign(
    *,
    principal: Principal,
    cell: Cell,
    machines: Sequence[Machine],
    pool: str,
    reason: str = "",
    confirm: int | None = None,
) -> list[Machine]:
    """Put machines into a pool, whatever its selector says. With "" as `pool`, selectors decide again. Return the
    machines that changed. `confirm`: as in `attributes_set`. Raises `NotFound` if the cell has no such pool. Locks: the
    cell's row, then the machines' in order of id.
    """

    def check() -> None:
        names = list(Pool.objects.filter(cell=cell).order_by("name").values_list("name", flat=True))
        if pool and pool not in names:
            raise NotFound("machine pool", pool, known=names[:10])

    def change(machine: Machine) -> None:
        machine.assigned_pool = pool

    return _change(principal, cell, machines, change, reason, confirm, check)


def _change(
    principal: Principal,
    cell: Cell,
    machines: Sequence[Machine],
    change: Callable[[Machine], None],
    reason: str,
    confirm: int | None,
    check: Callable[[], None] = lambda: None,
) -> list[Machine]:
    """Change each machine, and store those that differ afterwards. `reason`: for the journal. `check`: runs first,
    under the cell's lock.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    changed = []
    with journal.write(cell.pk, principal) as entry:
        check()
        rows = Machine.objects.select_for_update().filter(cell=cell, pk__in=[one.pk for one in machines]).order_by("id")
        rows, membership = rows.defer("packages", "quarantined"), Membership(cell.pk)
        for row in rows:
            if row.state == REMOVED:
                detail = f"{row.hostname} was removed from the cell; name other machines"
                raise Conflict("machine-removed", detail, fields={"machines": detail})
            old = (row.attributes, row.set_attributes, row.assigned_pool)
            found = rules.reported(row.attributes, row.set_attributes, row.hidden_attributes)
            change(row)
            membership.apply(row, found)
            if old != (row.attributes, row.set_attributes, row.assigned_pool):
                changed.append(row)
        if changed:
            machines_store(entry, changed, reason[:300])
            here = Q(machine__in=[row.pk for row in changed])
            confirm_leaving(cell, here, confirm, f"change {len(changed)} machines")
    return changed


def confirm_leaving(cell: Cell, among: Q, confirm: int | None, what: str) -> None:
    """Raise `Conflict` if after a change so many tasks have to leave dedicated pools that it needs a confirmation, and
    `confirm` is too low. `among`: the condition for the tasks that the change concerns.
    """
    confirmation.require(cell, tasks_leaving(cell, among), confirm, what=what)
