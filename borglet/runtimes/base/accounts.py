"""The user accounts that tasks run as. A Borglet that is root must not make every job root: what it keeps, and what
else this machine holds, is not for tasks to read.

    the job file names a user ──► one of those the operator allows ──► its uid and groups
    it names none, oci ─────────► a number of the task's own (`own_uid`)
    it names none, process ─────► a number of its tenant's own (`tenantusers`), or one user for all that name none:
                                  BORGLET_TASK_USER, `task_user`
"""

from __future__ import annotations

import os
import pwd
import stat
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path

from borglet.runtimes.base.runtime import StartFailed

# Of no user on Debian and its like (65000-65533 are reserved), so what runs as it owns nothing but its own folders.
TASK_UID = 65533
_SETGID, _SETUID = 6, 7  # numbers of capabilities

Account = tuple[int, int, list[int]]  # uid, gid, further groups


def task_user(home: Path) -> str:
    """Return the user of tasks that name none: a number if the Borglet is root, else "", the Borglet's own user.

    Also "" where another user can't be become (a namespace, a missing capability) or can't reach `home`.
    """
    if os.geteuid() != 0 or not _may_become(TASK_UID) or not _reachable(home):
        return ""
    return str(TASK_UID)


def may_become_any(home: Path, first: int, count: int) -> bool:
    """Whether this process can start tasks as each of the `count` users from `first` on, and they can reach `home`."""
    return os.geteuid() == 0 and _may_become(first) and _may_become(first + count - 1) and _reachable(home)


def account_of(wanted: str, *, default: str, allowed: Collection[str]) -> Account | None:
    """The account of a task that asks for user `wanted`, or for none. None: the Borglet's own.

    Raises `StartFailed` for one that the machine doesn't know, doesn't allow, or whose Borglet can't become it.
    """
    name = wanted or default
    if not name:
        return None
    account = _account(name)
    if wanted and wanted != default and os.geteuid() == 0 and wanted not in allowed:
        known = ", ".join(sorted(allowed)) or "no user"
        raise StartFailed(
            f"user: tasks may not run as {wanted!r} on this machine, which allows {known}; leave it out, or ask an"
            " SRE to name it in BORGLET_TASK_USERS"
        )
    if account[0] == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise StartFailed(
            f"user: cannot run as {name!r}, because the Borglet of this machine is not root; leave it out"
        )
    return account


def _account(name: str) -> Account:
    if name.isdecimal():
        return int(name), int(name), []
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise StartFailed(f"user: {name!r} does not exist on this machine") from error
    return entry.pw_uid, entry.pw_gid, os.getgrouplist(name, entry.pw_gid)


def _may_become(uid: int) -> bool:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    effective = int(status["CapEff"], 16)
    mapped = False
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        mapped = mapped or first <= uid < first + count
    return mapped and bool(effective >> _SETUID & effective >> _SETGID & 1)


def _reachable(folder: Path) -> bool:
    """Whether everybody may pass all folders down to `folder`; one that is not there yet is made so."""
    return all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.parents) if path.exists())


def own_uid(name: str, taken: Mapping[str, int], *, first: int, count: int) -> int:
    """A number of `first`, … that no other task of this machine has. `taken`: name -> its number.

    In containers an incarnation (inside an alloc: a task) has one, under the process runtime a tenant. It is kept over
    all runs, because files belong to it. Numbers are spread over the range, so that each comes back late. Raises
    `StartFailed` when all are in use.
    """
    if mine := taken.get(name, 0):
        return mine
    used = set(taken.values())
    begin = zlib.crc32(name.encode())
    for step in range(count):
        uid = first + (begin + step) % count
        if uid not in used:
            return uid
    raise StartFailed(
        f"all {count} user numbers for tasks of this machine, from {first} on, are in use; an SRE can widen the range"
        " in BORGLET_TASK_UIDS"
    )
