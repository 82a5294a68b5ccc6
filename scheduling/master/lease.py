"""The lease of a scheduler of a cell (§3.1): a database row with the holder, the epoch and the time of expiry.

The lease only avoids double work. If two masters work at once, the check in `scheduling.master.commit` keeps the cell
correct. Each message with a desired state contains the epoch of the lease, so a Borglet can reject messages of an
older master.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from django.db import DatabaseError, connection

from quota.vocabulary.permissions import system
from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.journal.sql import execute, query

log = structlog.get_logger(__name__)

TTL_S = 6.0
# A master that does not finish a load or a pass within this time loses its lease, so that another one can try.
STUCK_AFTER_S = 300.0


def _is_missing(pid: int) -> bool:
    """Return whether a process does not exist. `/proc` may hide the processes of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it exists, and belongs to another user
        pass
    return False


def _stat(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text()


def _started(pid: int) -> str:
    """Return the start time of a process on this host, in clock ticks since the host started, "" if the process has
    ended, or "hidden" if this process may not know.
    """
    try:
        state, *fields = _stat(pid).rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "" if _is_missing(pid) else "hidden"
    except OSError:
        return "hidden"
    return "" if state in "ZX" else fields[18]


# The boot and the namespace in which a process id means the same process.
_SPACE = hashlib.sha256(
    (Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/pid").readlink())).encode()
).hexdigest()[:8]


def own_holder() -> str:
    """Return the name with which this process holds leases. After a restart, the process has another name."""
    return f"{socket.gethostname()}:{os.getpid()}:{_SPACE}-{_started(os.getpid())}"


def is_gone(holder: str) -> bool:
    """Return whether `holder` names a process of this host that has ended. In this case the next master takes the
    lease at once.

    Return False for processes of other hosts.
    """
    host, pid, which = (["", "", "", *holder.split(":")])[-3:]
    space, _, began = which.partition("-")
    if host != socket.gethostname() or space != _SPACE or not pid.isdecimal():
        return False
    return _started(int(pid)) not in (began, "hidden")


def renew(cell_id: int, *, scheduler: str, holder: str, ttl_s: float = TTL_S) -> int | None:
    """Extend the lease of `holder`, so that it expires in `ttl_s` seconds. Return the lease's epoch, or None if
    `holder` no longer has the lease.
    """
    rows = query(
        "UPDATE scheduling_lease SET expires_at = clock_timestamp() + make_interval(secs => %s)"
        " WHERE cell_id = %s AND scheduler = %s AND holder = %s AND expires_at > clock_timestamp()"
        " RETURNING epoch",
        [ttl_s, cell_id, scheduler, holder],
    )
    return rows[0][0] if rows else None


@contextmanager
def renewed(
    cell_id: int, *, scheduler: str, needed: Callable[[], bool], holder: str, ttl_s: float = TTL_S
) -> Iterator[None]:
    """While the `with` block runs, renew the lease regularly in a thread. A renewal is left out if `needed` returns
    false.

    The thread has its own database connection. It never takes a lease: if `holder` does not have the lease, the thread
    changes nothing.
    """
    done = threading.Event()

    def renew_until_done() -> None:
        while not done.wait(ttl_s / 3):
            if not needed():
                continue
            try:
                renew(cell_id, scheduler=scheduler, holder=holder, ttl_s=ttl_s)
            except DatabaseError as error:
                log.warning(
                    "the master cannot renew its lease of the cell; it tries again",
                    cell_id=cell_id,
                    scheduler=scheduler,
                    error=str(error).strip(),
                )
            finally:
                connection.close()

    thread = threading.Thread(target=renew_until_done, name="lease renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def take(cell_id: int, *, scheduler: str, holder: str, ttl_s: float = TTL_S, instead_of: str = "") -> int | None:
    """Take the lease if it is free or expired. Return the new epoch, or None if another holder has the lease.

    `instead_of`: a holder whose process has ended (`is_gone`); its lease may be taken before it expires. Appends an
    event to the journal. Locks: the cell's row, then the row of the lease.
    """
    epoch = None
    with journal.write(cell_id, system("master")) as entry:
        rows = query(
            "INSERT INTO scheduling_lease AS l (cell_id, scheduler, holder, epoch, expires_at)"
            " VALUES (%s, %s, %s, 1, clock_timestamp() + make_interval(secs => %s))"
            " ON CONFLICT (cell_id, scheduler) DO UPDATE SET holder = excluded.holder,"
            " epoch = l.epoch + 1, expires_at = excluded.expires_at"
            " WHERE l.expires_at <= clock_timestamp() OR l.holder = excluded.holder OR l.holder = %s"
            " RETURNING epoch",
            [cell_id, scheduler, holder, ttl_s, instead_of],
        )
        if rows:
            epoch = rows[0][0]
            entry.append(events.LeaseTaken(scheduler=scheduler, holder=holder, epoch=epoch))
    return epoch


def release(cell_id: int, *, scheduler: str, holder: str) -> None:
    """Release the lease, so that the next master can take it at once."""
    execute(
        "UPDATE scheduling_lease SET expires_at = clock_timestamp()"
        " WHERE cell_id = %s AND scheduler = %s AND holder = %s",
        [cell_id, scheduler, holder],
    )


def release_ended(cell: str) -> list[str]:
    """Release the leases of a cell whose holders were processes of this host that have ended (`is_gone`). Return the
    names of their schedulers. `cell`: the name of the cell.
    """
    released = []
    held = query(
        "SELECT l.cell_id, l.scheduler, l.holder FROM scheduling_lease AS l JOIN scheduling_cell AS c"
        " ON c.id = l.cell_id WHERE c.name = %s AND l.expires_at > clock_timestamp()",
        [cell],
    )
    for cell_id, scheduler, holder in held:
        if is_gone(holder):
            release(cell_id, scheduler=scheduler, holder=holder)
            released.append(scheduler)
    return released


def held() -> set[tuple[int, str]]:
    """Return (cell id, name of the scheduler) for each lease that has not expired."""
    rows = query("SELECT cell_id, scheduler FROM scheduling_lease WHERE expires_at > clock_timestamp()")
    return set(rows)


def in_force(cell_id: int) -> dict[str, tuple[str, int]]:
    """Return (holder, epoch) of each lease of a cell that has not expired, by name of the scheduler."""
    rows = query(
        "SELECT scheduler, holder, epoch FROM scheduling_lease WHERE cell_id = %s AND expires_at > clock_timestamp()",
        [cell_id],
    )
    return {scheduler: (holder, epoch) for scheduler, holder, epoch in rows}
