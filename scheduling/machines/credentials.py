"""The secrets of machines: rotation, renewal and revocation. The cell stores only the digests of the secrets.

machine_rotate, or age ─► Poll.rotate ─► secrets_offered: the old and the new secret are valid
                                                 │ the machine uses the new secret
machine_revoke ─► no secret is valid             ▼
                  until it joins again     secrets_renewed: only the new secret is valid
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence

from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import execute, query
from scheduling.machines import last_contact
from scheduling.models import Machine
from scheduling.models.machines import REMOVED

DIGEST_LENGTH = 64
# The columns of a machine that change with its secret.
SECRET = ("secret_digest", "next_digest", "secret_at", "rotation_asked")


def secret_digest(secret: str) -> str:
    """Return the SHA-256 of a secret in `DIGEST_LENGTH` hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_hex(text: str, length: int) -> bool:
    """Return whether `text` consists of exactly `length` lower-case hexadecimal digits."""
    return len(text) == length and all(digit in "0123456789abcdef" for digit in text)


def void(machine: Machine) -> None:
    """Make all secrets and the present session of a machine invalid. The caller must save `machine`."""
    machine.secret_digest, machine.next_digest = "", ""
    machine.secret_at, machine.rotation_asked = None, False
    machine.session += 1


def must_be_there(machine: Machine) -> None:
    """Raise `Conflict` if the machine was removed."""
    if machine.state == REMOVED:
        detail = f"machine {machine.hostname} was removed from the cell; join it again first"
        raise Conflict("machine-removed", detail, fields={"machine": detail})


@contextlib.contextmanager
def locked_machine(principal: Principal, machine: Machine) -> Iterator[tuple[JournalEntry, Machine]]:
    """Yield a journal entry and the machine's locked row. At the end, `machine` gets the new values of the row.

    Raises `Forbidden` if the caller may not administer machines, and `Conflict` if the machine was removed. Locks: the
    cell's row, then the machine's.
    """
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    with journal.write(machine.cell_id, principal) as entry:
        row = Machine.objects.select_for_update().get(pk=machine.pk)
        must_be_there(row)
        yield entry, row
    machine.refresh_from_db()


def machine_rotate(*, principal: Principal, machine: Machine, reason: str = "") -> Machine:
    """Ask the machine, in the next poll, to make a new secret. The old secret is valid until the machine uses the new
    one.

    Locks: the cell's row, then the machine's.
    """
    with locked_machine(principal, machine) as (entry, row):
        if not row.secret_digest:
            detail = f"the secret of {row.hostname} was revoked; join the machine again with a new token"
            raise Conflict("secret-revoked", detail, fields={"machine": detail})
        if not row.rotation_asked:
            row.rotation_asked = True
            row.save(update_fields=["rotation_asked"])
            entry.append(events.MachineCredential(machine_id=row.id, step="asked", reason=reason))
    return machine


def machine_revoke(*, principal: Principal, machine: Machine, reason: str) -> Machine:
    """Revoke a machine: make its secrets invalid, close its connection, and mark it as down.

    The machine's tasks are then placed on other machines, at a limited rate. If the machine joins again with a new
    token, it stops its own processes of these tasks. Locks: the cell's row, then the machine's.
    """
    with locked_machine(principal, machine) as (entry, row):
        if row.secret_digest:
            void(row)
            entry.append(events.MachineCredential(machine_id=row.id, step="revoked", reason=reason))
            if row.state != MachineStatus.DOWN.value:
                row.state, row.reason = MachineStatus.DOWN.value, f"its secret was revoked: {reason}"[:300]
                row.state_since = entry.time
                entry.append(events.MachineState(machine_id=row.id, state=row.state, reason=row.reason))
            row.save(update_fields=[*SECRET, "session", "state", "state_since", "reason"])
    last_contact.forget(machine.cell_id, [machine.id])
    return machine


def secrets_offered(cell_id: int, offers: Mapping[int, tuple[int, str]], *, principal: Principal) -> dict[int, str]:
    """Accept the new secrets that machines offer. Their present secrets stay valid too. Return the accepted digests by
    machine id.

    `offers`: machine id -> (session, digest of the new secret). An offer is ignored if its session is not the
    machine's newest session. Locks: the row of the cell, then the rows of the machines.
    """
    taken: dict[int, str] = {}
    with journal.write(cell_id, principal) as entry:
        rows = (
            Machine.objects.select_for_update()
            .filter(cell_id=cell_id, pk__in=offers)
            .exclude(state=REMOVED)
            .exclude(secret_digest="")
            .order_by("id")
        )
        changed = []
        for row in rows:
            session, digest = offers[row.id]
            if session != row.session or not is_hex(digest, DIGEST_LENGTH) or digest == row.secret_digest:
                continue
            taken[row.id] = digest
            if row.next_digest != digest:
                row.next_digest = digest
                changed.append(row)
                entry.append(events.MachineCredential(machine_id=row.id, step="offered"))
        Machine.objects.bulk_update(changed, ["next_digest"], batch_size=500)
    return taken


def secrets_renewed(cell_id: int, used: Sequence[tuple[int, str]], *, principal: Principal) -> set[tuple[int, str]]:
    """Make the old secrets of machines invalid, because these machines have used their new secrets.

    `used`: (machine id, digest of the new secret). Return the elements of `used` whose new secret is valid. Locks: the
    row of the cell, then the rows of the machines.
    """
    with journal.write(cell_id, principal) as entry:
        execute(
            "SELECT id FROM scheduling_machine WHERE id = ANY(%s) ORDER BY id FOR UPDATE",
            [[machine for machine, _ in used]],
        )
        rows = query(
            "UPDATE scheduling_machine AS m SET secret_digest = m.next_digest, next_digest = '', secret_at = %s,"
            " rotation_asked = false FROM unnest(%s::bigint[], %s::text[]) AS u(id, digest)"
            " WHERE m.id = u.id AND m.next_digest = u.digest AND m.cell_id = %s AND m.state <> %s"
            " RETURNING m.id, m.secret_digest",
            [entry.time, [m for m, _ in used], [digest for _, digest in used], cell_id, REMOVED],
        )
        renewed = set(rows)
        entry.extend(events.MachineCredential(machine_id=m, step="renewed") for m, _ in sorted(renewed))
    return renewed
