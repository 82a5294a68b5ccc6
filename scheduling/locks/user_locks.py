"""Locks for users and programs outside of tasks: the permission checks, and then `locks` and `sessions`."""

from __future__ import annotations

import uuid

import structlog

from quota.models import Tenant
from quota.vocabulary.errors import Conflict, invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.locks import locks, selectors, sessions
from scheduling.locks.lock_rules import check_lease
from scheduling.locks.locks import Lock
from scheduling.locks.sessions import Seeker, Space
from scheduling.models import Cell

log = structlog.get_logger(__name__)


def space_of(principal: Principal, action: Action, cell: Cell, tenant: Tenant) -> Space:
    """Return the locks of a tenant in a cell. Raises `Rejected` if the caller may not do `action`, or for a study
    cell, in which nothing runs.
    """
    require_tenant(principal, action, tenant.name, cell.name)
    if not Cell.operated.filter(pk=cell.pk).exists():
        raise invalid("cell", f"nothing runs in cell {cell.name}, so it has no locks; name another cell")
    return Space(cell.id, tenant.id)


def lock_page(
    principal: Principal, cell: Cell, tenant: Tenant, *, prefix: str, after: str, limit: int
) -> tuple[list[Lock], bool]:
    space = space_of(principal, Action.LOCK_VIEW, cell, tenant)
    return selectors.page(space, prefix=prefix, after=after, limit=limit)


def lock_shown(principal: Principal, cell: Cell, tenant: Tenant, name: str) -> Lock:
    return locks.lock_named(space_of(principal, Action.LOCK_VIEW, cell, tenant), name)


def lock_acquire(
    *,
    principal: Principal,
    cell: Cell,
    tenant: Tenant,
    name: str,
    session: uuid.UUID | None,
    lease_s: float,
    content: str | None,
    key: str = "",
) -> tuple[Lock, bool]:
    """Acquire a lock for a session of the caller, or for a new session with a lease of `lease_s` seconds. Return as
    `locks.acquire`.

    `key`: an idempotency key. A repeated request with this key acquires the lock for the session that the first one
    began.
    """
    space = space_of(principal, Action.LOCK_WRITE, cell, tenant)
    check_lease(lease_s)
    seeker = Seeker(principal.name, lease_s, uid=session, key=key if session is None else "")
    return locks.acquire(space, name, seeker, content=content)


def lock_release(*, principal: Principal, cell: Cell, tenant: Tenant, name: str, session: uuid.UUID) -> bool:
    """Release a lock of a session of the caller. Return whether the session still holds other locks."""
    space = space_of(principal, Action.LOCK_WRITE, cell, tenant)
    return locks.release(space, name, Seeker(principal.name, uid=session)) is not None


def lock_write(
    *,
    principal: Principal,
    cell: Cell,
    tenant: Tenant,
    name: str,
    content: str,
    if_sequence: int | None,
    token: int | None,
) -> Lock:
    space = space_of(principal, Action.LOCK_WRITE, cell, tenant)
    return locks.write(space, name, content, actor=principal.name, if_sequence=if_sequence, token=token)


def lock_delete(*, principal: Principal, cell: Cell, tenant: Tenant, name: str, if_sequence: int | None) -> None:
    locks.delete(space_of(principal, Action.LOCK_WRITE, cell, tenant), name, if_sequence=if_sequence)


def lock_evict(*, principal: Principal, cell: Cell, tenant: Tenant, name: str) -> Lock:
    """End the session that holds a lock, so that others can acquire all its locks at once. Only for owners. Return the
    lock. Raises `Conflict` if it is free.
    """
    space = space_of(principal, Action.LOCK_EVICT, cell, tenant)
    ended = locks.evict(space, name)
    if ended is None:
        raise Conflict("lock-free", f"no session holds lock {name}, so there is none to end")
    log.info("the session of a lock was ended", lock=name, holder=ended.owner, actor=principal.name)
    return locks.lock_named(space, name)


def session_renew(*, principal: Principal, cell: Cell, tenant: Tenant, session: uuid.UUID) -> float:
    """Renew a session of the caller. Return its lease in seconds."""
    return sessions.renew(space_of(principal, Action.LOCK_WRITE, cell, tenant), principal.name, session)


def session_end(*, principal: Principal, cell: Cell, tenant: Tenant, session: uuid.UUID) -> None:
    """End a session of the caller, and so release all its locks. Idempotent."""
    sessions.end(space_of(principal, Action.LOCK_WRITE, cell, tenant), principal.name, session)
