"""Changes of locks: acquire, release, write and delete. PostgreSQL holds the truth.

    acquire ─► row of the lock ─► rows of sessions: has the holder's one ended? ─► token + 1, session ─► notice
    write   ─► row of the lock ─► sequence number and token as expected?        ─► sequence + 1       ─► notice

Locks are advisory, as in Chubby: a write needs no lock. A write with a fencing token is rejected unless the lock is
held and the token is its newest. The caller checks permissions.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, replace
from typing import Any

from quota.vocabulary.errors import Conflict, NotFound, Rejected
from scheduling.journal.sql import execute, query
from scheduling.locks import notices
from scheduling.locks.lock_rules import KEPT_NAMES, MAX_LOCKS, check_content, check_name
from scheduling.locks.sessions import (
    Seeker,
    Session,
    Space,
    end_if_expired,
    end_if_idle,
    extended,
    lock_sessions,
    lock_transaction,
)

# A deleted lock keeps its numbers at least this long, so that a new lock of its name continues them.
KEEP_DELETED = "1 day"
# Tokens of a later history of the cell (after a restore from a backup) are higher than those of an earlier one.
TOKENS_PER_HISTORY = 2**40


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock as it is now. `holder`, `session`, `left_s`: the session that holds it, and its lease; None and 0 if it is
    free. `token`: of the last acquisition.
    """

    name: str
    content: str
    sequence: int
    token: int
    holder: str | None
    session: uuid.UUID | None
    left_s: float
    acquired_at: dt.datetime | None
    changed_at: dt.datetime
    changed_by: str


READ = (
    "SELECT f.name, f.content, f.sequence, f.token, s.owner, s.uid,"
    " coalesce(extract(epoch FROM s.expires_at - clock_timestamp()), 0)::float,"
    " CASE WHEN s.id IS NOT NULL THEN f.acquired_at END, f.changed_at, f.changed_by"
    " FROM scheduling_lockfile AS f LEFT JOIN scheduling_locksession AS s"
    " ON s.id = f.session AND s.expires_at > clock_timestamp()"
    " WHERE f.cell_id = %s AND f.tenant_id = %s AND f.deleted_at IS NULL"
)


def lock_named(space: Space, name: str) -> Lock:
    """Return a lock. Raises `NotFound` if there is none, or it was deleted."""
    check_name(name)
    found = find(space, name)
    if found is None:
        raise NotFound("lock", name)
    return found


def find(space: Space, name: str) -> Lock | None:
    rows = query(f"{READ} AND f.name = %s", [space.cell_id, space.tenant_id, name])
    return Lock(*rows[0]) if rows else None


class Held(Conflict):
    """The rejection of a request for a lock that another session holds. `left_s`: how long its lease lasts."""

    def __init__(self, name: str, holder: str, left_s: float) -> None:
        detail = f"lock {name} is held by {holder}, whose lease lasts {left_s:.0f} s more; wait, or try again later"
        super().__init__("lock-held", detail, figures={"holder": holder, "left_s": round(left_s, 3)})
        self.left_s = left_s


def acquire(space: Space, name: str, seeker: Seeker, *, content: str | None = None) -> tuple[Lock, bool]:
    """Acquire a lock, and create it if it does not exist. Return it, and whether the seeker's session held it before;
    then it keeps its token. `content`: written in the same transaction.

    Raises `Held` if another session holds it, and `Rejected` if
    the name or content is not valid or the tenant has too many locks. Locks: the row of the lock, then sessions.
    """
    check_name(name)
    if content is not None:
        check_content(content)
    with lock_transaction():
        row = _locked(space, name, create=True, actor=seeker.owner)
        holder, own = lock_sessions(space, row.session, seeker)
        if holder is not None and not holder.mine:
            raise Held(name, holder.owner, holder.left_s)
        if holder is None:
            end_if_expired(row.session)
        session = extended(space, seeker, own)
        if holder is None:
            execute(
                "UPDATE scheduling_lockfile SET session = %s, acquired_at = clock_timestamp(),"
                " token = greatest(token + 1, nextval('scheduling_lock_token') + (SELECT history_ordinal - 1"
                " FROM scheduling_cell WHERE id = %s) * %s) WHERE id = %s",
                [session.id, space.cell_id, TOKENS_PER_HISTORY, row.id],
            )
        if content is not None and (content != row.content or not row.sequence):
            _write(space, name, row, content, seeker.owner)
        return lock_named(space, name), holder is not None


def release(space: Space, name: str, seeker: Seeker, *, token: int | None = None) -> Session | None:
    """Release a lock. Return the seeker's session if it still holds other locks; otherwise it has ended. Raises
    `Conflict` if the session does not hold the lock, or not with this fencing token. Locks as `acquire`.
    """
    check_name(name)
    with lock_transaction():
        row = _locked(space, name)
        holder, _ = lock_sessions(space, row.session, seeker)
        if holder is None or not holder.mine or token not in (None, row.token):
            detail = f"this session does not hold lock {name}; its lease may have ended, or it was released before"
            raise Conflict("lock-not-held", detail)
        execute("UPDATE scheduling_lockfile SET session = NULL WHERE id = %s", [row.id])
        notices.publish([(space.cell_id, space.tenant_id, name)])
        return holder if end_if_idle(holder) else None


def evict(space: Space, name: str) -> Session | None:
    """End the session that holds a lock, and so free all its locks. Return the session; None if the lock was free. The
    holder may not know it yet, so only fencing tokens protect from its writes. Locks as `acquire`.
    """
    check_name(name)
    with lock_transaction():
        row = _locked(space, name)
        holder, _ = lock_sessions(space, row.session, None)
        if holder is None:
            return None
        execute("DELETE FROM scheduling_locksession WHERE id = %s", [holder.id])
        notices.publish(
            query("SELECT cell_id, tenant_id, name FROM scheduling_lockfile WHERE session = %s", [holder.id])
        )
        return holder


def write(
    space: Space, name: str, content: str, *, actor: str, if_sequence: int | None = None, token: int | None = None
) -> Lock:
    """Write the content of a lock, and create the lock if it does not exist.

    `if_sequence`: only if this is its sequence number; 0: only if it has never been written. `token`: only while the
    lock is held with this fencing token. Raises `Rejected` otherwise, and changes nothing. Locks as `acquire`.
    """
    check_name(name)
    check_content(content)
    with lock_transaction():
        row = _locked(space, name, create=token is None, actor=actor)
        _check(space, name, row, if_sequence, token)
        _write(space, name, row, content, actor)
        return lock_named(space, name)


def delete(space: Space, name: str, *, if_sequence: int | None = None) -> None:
    """Delete a lock that is free. A new lock of the name continues its numbers for at least a day. Locks as
    `acquire`.
    """
    check_name(name)
    with lock_transaction():
        row = _locked(space, name)
        _check(space, name, row, if_sequence, None)
        holder, _ = lock_sessions(space, row.session, None)
        if holder is not None:
            raise Held(name, holder.owner, holder.left_s)
        execute(
            "UPDATE scheduling_lockfile SET deleted_at = clock_timestamp(), content = '', sequence = sequence + 1,"
            " session = NULL WHERE id = %s",
            [row.id],
        )
        notices.publish([(space.cell_id, space.tenant_id, name)])


@dataclass(frozen=True, slots=True)
class _Row:
    id: int
    content: str
    sequence: int
    token: int
    session: int | None
    new: bool = False  # it did not exist before this transaction


def _locked(space: Space, name: str, *, create: bool = False, actor: str = "") -> _Row:
    """Return the row of a lock, and lock it. Raises `NotFound` if there is none and `create` is false."""
    place: list[Any] = [space.cell_id, space.tenant_id, name]
    select = (
        "SELECT id, content, sequence, token, session FROM scheduling_lockfile WHERE cell_id = %s AND tenant_id = %s"
        " AND name = %s AND deleted_at IS NULL FOR UPDATE"
    )
    live = query(select, place)
    if live:
        return _Row(*live[0])
    if not create:
        raise NotFound("lock", name)
    _check_number(space)
    created = execute(
        "INSERT INTO scheduling_lockfile (cell_id, tenant_id, name, content, sequence, changed_by, changed_at, token)"
        " VALUES (%s, %s, %s, '', 0, %s, clock_timestamp(), 0) ON CONFLICT (cell_id, tenant_id, name) DO UPDATE"
        " SET deleted_at = NULL, changed_by = EXCLUDED.changed_by, changed_at = EXCLUDED.changed_at"
        " WHERE scheduling_lockfile.deleted_at IS NOT NULL",
        [*place, actor],
    )
    return replace(_Row(*query(select, place)[0]), new=bool(created))


def _check_number(space: Space) -> None:
    """Raise `Conflict` if the tenant cannot have one more lock. Other requests that create locks of the tenant wait."""
    ids = [space.cell_id, space.tenant_id]
    query("SELECT pg_advisory_xact_lock(hashtextextended('locks ' || %s || ' ' || %s, 0))", ids)
    ((live, names),) = query(
        "SELECT count(*) FILTER (WHERE deleted_at IS NULL), count(*) FROM scheduling_lockfile"
        " WHERE cell_id = %s AND tenant_id = %s",
        ids,
    )
    if names >= KEPT_NAMES:
        names -= execute(
            "DELETE FROM scheduling_lockfile WHERE id IN (SELECT id FROM scheduling_lockfile WHERE cell_id = %s"
            " AND tenant_id = %s AND deleted_at < clock_timestamp() - %s::interval FOR UPDATE SKIP LOCKED)",
            [*ids, KEEP_DELETED],
        )
    if live >= MAX_LOCKS:
        detail = f"the tenant has {live} locks in this cell, which is the maximum; delete locks that nobody needs"
        raise Conflict("too-many-locks", detail, figures={"locks": live})
    if names >= KEPT_NAMES:
        detail = f"the tenant used {names} names of locks within a day; use the same names again, or wait"
        raise Conflict("too-many-locks", detail, figures={"names": names})


def _check(space: Space, name: str, row: _Row, if_sequence: int | None, token: int | None) -> None:
    """Raise `Rejected` unless a lock has this sequence number, and is held with this token. A new lock has the number
    0 here, also if it continues the numbers of a deleted one.
    """
    sequence = 0 if row.new else row.sequence
    if if_sequence is not None and if_sequence != sequence:
        detail = (
            f"lock {name} has sequence number {sequence}, and the request expects {if_sequence}; read the lock"
            " again, and repeat the change if it is still right"
        )
        raise Rejected("sequence-differs", detail, figures={"sequence": sequence}, status=412)
    if token is None:
        return
    holder, _ = lock_sessions(space, row.session, None)
    if holder is None or token != row.token:
        now = "the lock is free" if holder is None else f"the newest is {row.token}"
        detail = f"the fencing token {token} of lock {name} is not valid any more: {now}; stop, and acquire it again"
        raise Rejected("token-expired", detail, figures={"token": row.token}, status=412)


def _write(space: Space, name: str, row: _Row, content: str, actor: str) -> None:
    execute(
        "UPDATE scheduling_lockfile SET content = %s, sequence = sequence + 1, changed_by = %s,"
        " changed_at = clock_timestamp() WHERE id = %s",
        [content, actor, row.id],
    )
    notices.publish([(space.cell_id, space.tenant_id, name)])
