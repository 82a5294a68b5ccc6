"""Creating, changing and moving tenants: organisations and their teams. Every change is recorded."""

from __future__ import annotations

import zoneinfo
from functools import cache
from typing import Any

from django.core.exceptions import ValidationError

from quota import records
from quota.models import Tenant
from quota.vocabulary.errors import Conflict, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, may, require

# DNS labels that a cell itself uses: `<host>.machine.<cell>.<zone>`.
RESERVED_NAMES = frozenset({"machine"})


def tenant_create(
    *,
    principal: Principal,
    name: str,
    title: str = "",
    contact: str = "",
    parent: str | None = None,
    time_zone: str | None = None,
) -> Tenant:
    """Create a tenant.

    `parent`: the organisation of which the new tenant is a team; the team gets the organisation's limits and by default
    its time zone. SREs may create any tenant, and owners of an organisation may create up to `max_teams` teams. Raises
    `Rejected` if a value is not valid, and `Conflict` if the name is taken or there are too many teams. Locks: the
    organisation's row.
    """
    if parent is None:
        require(principal, Action.PLATFORM_ADMIN)
    elif not (may(principal, Action.TENANT_VIEW, tenant=parent) and Tenant.objects.filter(name=parent).exists()):
        raise NotFound("parent", parent)
    else:
        require(principal, Action.TENANT_ADMIN, tenant=parent)
    tenant = Tenant(name=name, title=title, contact=contact, time_zone=time_zone_checked(time_zone or "UTC"))
    validated(tenant, exclude=["created_at"])
    if name in RESERVED_NAMES:
        raise invalid("name", f"{name!r} is reserved for the DNS zone; choose another name", "reserved-name")
    with records.write(principal) as entry:
        if parent is not None:
            above = tenants_locked(parent)[parent]
            _check_parent(above)
            _check_max_teams(principal, above)
            tenant.parent, tenant.max_jobs, tenant.task_api = above, above.max_jobs, above.task_api
            tenant.time_zone = time_zone or above.time_zone
        if Tenant.objects.filter(name=name).exists():
            raise Conflict(
                "tenant-exists", f"tenant {name} already exists; choose another name", fields={"name": "taken"}
            )
        tenant.save()
        entry.append("tenant.created", tenant=name, title=title, parent=parent or "")
        if parent is not None:
            entry.append("team.created", tenant=parent, team=name, title=title)
    return tenant


def tenant_set(
    *,
    principal: Principal,
    tenant: Tenant,
    title: str,
    contact: str,
    max_jobs: int | None = None,
    task_api: str | None = None,
    time_zone: str | None = None,
    max_teams: int | None = None,
) -> Tenant:
    """Change the settings of a tenant. Its name cannot change, because DNS names and invoices contain it.

    Only an SRE may change `max_jobs` and `max_teams`. None leaves a setting unchanged. Raises `Rejected` if a value is
    not valid.
    """
    require(principal, Action.TENANT_ADMIN, tenant=tenant.name)
    limits = {"max_jobs": max_jobs, "max_teams": max_teams}
    given: dict[str, Any] = {"title": title, "contact": contact, "task_api": task_api}
    # Only the given settings are written, because another request may have changed the others meanwhile.
    changed = {name: value for name, value in given.items() if value is not None}
    changed |= {name: value for name, value in limits.items() if value not in (None, getattr(tenant, name))}
    if changed.keys() & limits.keys():
        require(principal, Action.PLATFORM_ADMIN)
    if time_zone not in (None, tenant.time_zone):
        changed["time_zone"] = time_zone_checked(time_zone)
    for name, value in changed.items():
        setattr(tenant, name, value)
    validated(tenant)
    with records.write(principal) as entry:
        tenant.save(update_fields=list(changed))
        entry.append(
            "tenant.changed",
            tenant=tenant.name,
            title=title,
            max_jobs=tenant.max_jobs,
            max_teams=tenant.max_teams,
            task_api=tenant.task_api,
            time_zone=tenant.time_zone,
        )
    return tenant


def tenant_move(*, principal: Principal, tenant: Tenant, parent: str | None) -> Tenant:
    """Make a tenant a team of the organisation `parent`. None: the tenant leaves its organisation. Only SREs may do
    this, because roles and the payer change.

    Idempotent. Raises `Conflict` if a team would have teams of its own. Locks: the rows of the tenant and of the
    organisation, in order of id.
    """
    require(principal, Action.PLATFORM_ADMIN)
    if parent is not None and not Tenant.objects.filter(name=parent).exists():
        raise NotFound("parent", parent)
    with records.write(principal) as entry:
        rows = tenants_locked(*{tenant.name, parent or tenant.name})
        row, above = rows[tenant.name], rows[parent] if parent is not None else None
        before = Tenant.objects.get(pk=row.parent_id).name if row.parent_id else ""
        if before == (parent or ""):
            return row
        if above is not None:
            if above.pk == row.pk:
                detail = f"{row.name} cannot be a team of itself; choose another organisation"
                raise Conflict("own-parent", detail, fields={"parent": detail})
            _check_parent(above)
            if row.teams.exists():
                raise Conflict(
                    "has-teams",
                    f"{row.name} has teams, and a team cannot contain teams; move its teams first",
                    fields={"parent": f"{row.name} has teams"},
                )
        row.parent = above
        row.save(update_fields=["parent"])
        entry.append("tenant.moved", tenant=row.name, parent=parent or "", before=before)
        for name, kind in ((before, "team.left"), (parent, "team.joined")):
            if name:
                entry.append(kind, tenant=name, team=row.name)
    return row


def tenants_locked(*names: str) -> dict[str, Tenant]:
    """Lock tenants in order of id until the transaction ends, and return them by name. Raises `NotFound` if a tenant
    does not exist.
    """
    found = Tenant.objects.select_for_update(no_key=True).filter(name__in=names).order_by("id")
    rows = {row.name: row for row in found}
    for name in names:
        if name not in rows:
            raise NotFound("tenant", name)
    return rows


def validated(instance: Tenant, *, exclude: list[str] | None = None) -> None:
    """Check the fields of a tenant, except those in `exclude`. Raises `Rejected`, which names the fields that are not
    valid.
    """
    try:
        instance.clean_fields(exclude=exclude)
    except ValidationError as error:
        fields = {name: " ".join(messages) for name, messages in error.message_dict.items()}
        raise Rejected(
            "invalid", "; ".join(f"{name}: {what}" for name, what in fields.items()), fields=fields
        ) from error


@cache
def time_zones() -> tuple[str, ...]:
    """Return the sorted names of all time zones that a tenant or a person may choose."""
    return tuple(sorted(zoneinfo.available_timezones()))


def time_zone_checked(name: str) -> str:
    """Return the name of a time zone. Raises `Rejected` if the IANA database does not have it."""
    if name not in time_zones():
        raise invalid(
            "time_zone", f"{name[:64]!r} is not a time zone of the IANA database; give one such as Europe/Zurich or UTC"
        )
    return name


def _check_parent(above: Tenant) -> None:
    if above.parent_id is not None:
        raise Conflict(
            "one-level",
            f"{above.name} is a team, and a team cannot contain teams; choose its organisation",
            fields={"parent": f"{above.name} is a team"},
        )


def _check_max_teams(principal: Principal, above: Tenant) -> None:
    teams = above.teams.count()
    if teams >= above.max_teams and not may(principal, Action.PLATFORM_ADMIN):
        raise Conflict(
            "too-many-teams",
            f"{above.name} has {teams} teams, and its owners may create at most {above.max_teams}; "
            "ask an SRE to raise the limit",
            fields={"parent": f"{above.name} already has {teams} teams; ask an SRE to raise the limit"},
        )
