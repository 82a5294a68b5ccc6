"""Requests about machine pools: write one, change it, delete it.

pool_write, pool_change ─┬─► row and event of the pool: which tenants may, prefer to or must run there
pool_delete ─────────────┴─► attribute `pool` of the machines that join or leave it, with an event for each of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from quota.models import Tenant
from quota.models.fields import dns_label
from quota.vocabulary.errors import Conflict, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.access.label_selectors import parse_selector
from scheduling.core.vocabulary.requirement import POOL
from scheduling.core.vocabulary.states import PoolUse
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.row_events import pool_event
from scheduling.models import Cell, Machine, Pool
from scheduling.models.machines import REMOVED
from scheduling.pools.attributes import confirm_leaving
from scheduling.pools.foreign_tasks import members
from scheduling.pools.membership import COLUMNS, Membership, machines_store
from scheduling.pools.rules import FACTS

# A cell has at most so many pools, because a task has a constraint for each pool that its tenant may not use.
MOST_POOLS = 100
MOST_TENANTS = 100
# A change of these may let tasks leave.
_RULES = {"selector", "tenants", "dedicated", "others"}
_READ = ("cell_id", "state", "kept", "capacity", *FACTS, *COLUMNS, "address", "port_low", "port_high")


def pool_write(
    *,
    principal: Principal,
    cell: Cell,
    name: str,
    description: str = "",
    selector: str = "",
    tenants: Iterable[str] = (),
    dedicated: bool = False,
    use: str = PoolUse.MAY.value,
    others: str = Pool.STAY,
    confirm: int | None = None,
) -> Pool:
    """Write a new machine pool.

    `selector`: machines that match belong to it, beside those that are assigned to it. `tenants`: the names
    of its tenants. `dedicated`: only their tasks may run there. `use`: their tasks `may`, `prefer` to or `must` run
    there. `others`: running tasks of other tenants `stay` until they end, or `leave` within disruption budgets.
    `confirm`: the number of tasks that leave; required if it is above the share `confirm_share` of the cell's tasks.
    Raises `Rejected` if a value is wrong. Locks the cell's row, then the rows of machines that change.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    row = Pool(
        cell=cell,
        name=name,
        description=description[:300],
        selector=selector.strip(),
        tenants=sorted(set(tenants)),
        dedicated=dedicated,
        use=use,
        others=others,
    )

    def check() -> None:
        names = set(Pool.objects.filter(cell=cell).values_list("name", flat=True))
        if name in names:
            detail = f"cell {cell.name} has a machine pool {name}; change it, or choose another name"
            raise Conflict("pool-exists", detail, fields={"name": detail})
        if len(names) >= MOST_POOLS:
            detail = f"cell {cell.name} has {MOST_POOLS} machine pools; delete those that are not needed"
            raise Conflict("too-many-pools", detail)

    return _store(principal, row, confirm, check, moves=bool(row.selector), rules=True)


def pool_change(*, principal: Principal, cell: Cell, name: str, confirm: int | None = None, **changed: Any) -> Pool:
    """Change the pool `name`. `changed`: the new values, named as in `pool_write`; the others stay. Raises `NotFound`
    if there is no such pool, and `Rejected` if a value is wrong. Locks as `pool_write`.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    with transaction.atomic():
        Cell.objects.select_for_update(no_key=True).only("id").get(pk=cell.pk)  # so that the values do not change
        row = _named(cell, name)
        if "tenants" in changed:
            changed["tenants"] = sorted(set(changed["tenants"]))
        if "selector" in changed:
            changed["selector"] = changed["selector"].strip()
        changed = {field: value for field, value in changed.items() if getattr(row, field) != value}
        if not changed:
            return row
        for field, value in changed.items():
            setattr(row, field, value)
        return _store(
            principal, row, confirm, lambda: None, moves="selector" in changed, rules=bool(changed.keys() & _RULES)
        )


def pool_delete(*, principal: Principal, cell: Cell, name: str) -> None:
    """Delete the pool `name`. Its machines belong to no pool then, or to another one whose selector matches. Raises
    `NotFound` if there is no such pool. Locks the cell's row, then the rows of its machines.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    with transaction.atomic():
        with journal.write(cell.pk, principal) as entry:
            row = _named(cell, name)
            row.delete()
            entry.append(pool_event(row, deleted=True))
        _members_store(principal, cell, Q(**{f"attributes__{POOL}": name}) | Q(assigned_pool=name))


def _store(
    principal: Principal, row: Pool, confirm: int | None, check: Callable[[], None], *, moves: bool, rules: bool
) -> Pool:
    """Write the row of a pool, its event, and the machines that join or leave it. `check`: an additional check under
    the cell's lock. `moves`: machines may join or leave the pool. `rules`: tasks may have to leave.
    """
    cell = row.cell
    _check(row)
    with transaction.atomic():
        with journal.write(cell.pk, principal) as entry:
            check()
            _check_tenants(row)
            row.changed_by, row.changed_at = principal.name, entry.time
            row.save()
            entry.append(pool_event(row))
        if moves:
            _members_store(principal, cell)
        if rules:
            here = members([row.name], "machine__")
            confirm_leaving(cell, here, confirm, f"change the machine pool {row.name}")
    return row


def _members_store(principal: Principal, cell: Cell, among: Q | None = None) -> None:
    """Set the attribute `pool` of those machines of the cell that belong to another pool now. `among`: only machines
    for which this holds can do so; None: all.
    """
    membership, names = Membership(cell.pk), set(Pool.objects.filter(cell=cell).values_list("name", flat=True))
    changed = []
    for machine in Machine.objects.filter(among or Q(), cell=cell).exclude(state=REMOVED).only(*_READ).order_by("id"):
        if machine.assigned_pool not in names:
            machine.assigned_pool = ""
        if membership.apply(machine):
            changed.append(machine)
    Machine.objects.filter(cell=cell).exclude(assigned_pool__in=["", *names]).update(assigned_pool="")
    for first in range(0, len(changed), journal.CHUNK):
        with journal.write(cell.pk, principal) as entry:
            _lock_and_store(entry, changed[first : first + journal.CHUNK])


def _lock_and_store(entry: JournalEntry, machines: list[Machine]) -> None:
    ids = [machine.pk for machine in machines]
    list(Machine.objects.select_for_update().filter(pk__in=ids).order_by("id").values_list("id"))
    machines_store(entry, machines)


def _named(cell: Cell, name: str) -> Pool:
    row = Pool.objects.filter(cell=cell, name=name).first()
    if row is None:
        known = list(Pool.objects.filter(cell=cell).order_by("name").values_list("name", flat=True)[:10])
        raise NotFound("machine pool", name, known=known)
    row.cell = cell
    return row


def _check(row: Pool) -> None:
    """Raise `Rejected` if a value of the pool is wrong by itself."""
    try:
        dns_label(row.name)
    except ValidationError as error:
        raise invalid("name", f"{row.name[:80]!r} is not a name for a pool: {error.messages[0]}") from error
    for field, value, known in (("use", row.use, list(PoolUse)), ("others", row.others, Pool.OTHERS)):
        if value not in known:
            raise invalid(field, f"{value[:40]!r} is unknown; give one of {', '.join(known)}")
    if any(condition.key == POOL for condition in parse_selector(row.selector)):
        raise invalid("selector", "a selector of a pool cannot use the attribute `pool`; use other attributes")
    if row.dedicated and not row.tenants:
        raise invalid("tenants", "a dedicated pool needs a tenant, or nothing could run there; name at least one")
    if row.use != PoolUse.MAY and not row.tenants:
        raise invalid("tenants", f"`use: {row.use}` is for tenants of the pool; name at least one")
    if row.others == Pool.LEAVE and not row.dedicated:
        raise invalid("others", "`leave` is possible only for a dedicated pool; set `dedicated` too, or use `stay`")
    if len(row.tenants) > MOST_TENANTS:
        raise invalid("tenants", f"{len(row.tenants)} tenants are too many; name at most {MOST_TENANTS}")


def _check_tenants(row: Pool) -> None:
    """Raise `Rejected` if a tenant does not exist, or would have to run in two pools at once."""
    known = set(Tenant.objects.filter(name__in=row.tenants).values_list("name", flat=True))
    if unknown := sorted(set(row.tenants) - known):
        what = f"there is no tenant {', '.join(unknown[:5])}; check the names with `borgctl tenant list`"
        raise Rejected("not-found", what, fields={"tenants": what}, status=404)
    if row.use != PoolUse.MUST:
        return
    clash = Pool.objects.filter(cell=row.cell, use=PoolUse.MUST.value, tenants__overlap=row.tenants)
    other = clash.exclude(pk=row.pk).order_by("name").first()
    if other is not None:
        both = ", ".join(sorted(set(other.tenants) & set(row.tenants))[:5])
        what = (
            f"{both} must run in pool {other.name} already, and `must`"
            " is possible for one pool only; use `prefer` or `may`"
        )
        raise invalid("use", what)
