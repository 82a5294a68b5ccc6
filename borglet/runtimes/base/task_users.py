"""The user accounts of tasks. If the Borglet is root, tasks must have other users, so that they cannot read its files.

the job file names a user ────────────────────────► this user and its groups, if the operator allows the user
no user, runtime oci ─────────────────────────────► a number reserved for the task (`own_uid`)
no user, runtime process: BORGLET_TASK_USER set ──► the user BORGLET_TASK_USER, for all these tasks
                          `may_become_any` true ──► a number reserved for the tenant of the task (`tenantusers`)
                          otherwise ──────────────► one user for all these tasks, the result of `task_user`
"""

from __future__ import annotations

import os
import pwd
import stat
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path

from borglet.runtimes.base.runtime import StartFailed

# No user of Debian and similar systems has this number (65000-65533 are reserved).
TASK_UID = 65533
_SETGID, _SETUID = 6, 7  # numbers of capabilities

Account = tuple[int, int, list[int]]  # uid, gid, supplementary groups


def task_user(home: Path) -> str:
    """Return the user number, as a text, for tasks whose job file names no user. "" means the Borglet's own user.

    The result is "" if the Borglet is not root, cannot switch to another user, or other users cannot enter the
    Borglet's folder `home`.
    """
    if os.geteuid() != 0 or not _may_become(TASK_UID) or not _reachable(home):
        return ""
    return str(TASK_UID)


def may_become_any(home: Path, first: int, count: int) -> bool:
    """Return whether tasks can run as all of the `count` user numbers from `first` on, and whether these users can
    enter the Borglet's folder `home`. Both must be true.
    """
    return os.geteuid() == 0 and _may_become(first) and _may_become(first + count - 1) and _reachable(home)


def account_of(wanted: str, *, default: str, allowed: Collection[str]) -> Account | None:
    """Return the account of a task; None means the Borglet's own. `wanted`: the user that the job file names, or empty
    for the user `default`.

    Raises `StartFailed` if the user does not exist, is not in `allowed`, or the Borglet cannot switch to this user.
    """
    name = wanted or default
    if not name:
        return None
    account = _account(name)
    if wanted and wanted != default and os.geteuid() == 0 and wanted not in allowed:
        known = ", ".join(sorted(allowed)) or "no user"
        raise StartFailed(
            f"user: tasks may not run as {wanted!r} on this machine, which allows {known}; leave the user out, or ask"
            " an SRE to add it to BORGLET_TASK_USERS"
        )
    if account[0] == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise StartFailed(
            f"user: cannot run as {name!r}, because the Borglet of this machine is not root; leave the user out"
        )
    return account


def _account(name: str) -> Account:
    if name.isdecimal():
        return int(name), int(name), []
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise StartFailed(
            f"user: {name!r} does not exist on this machine; give another one, or leave the user out"
        ) from error
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
    """Return whether every user may enter `folder` and all folders above it. Missing folders do not matter."""
    return all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.parents) if path.exists())


def own_uid(name: str, taken: Mapping[str, int], *, first: int, count: int) -> int:
    """Return the user number of `name`: its number in `taken`, or a free one of the `count` numbers from `first` on.

    `name`: a task or incarnation for containers, a tenant for the process runtime. `taken`: the numbers in use, by
    name. Raises `StartFailed` if all numbers are in use.
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
