"""The user that runs PostgreSQL and Redis. It is the caller, or an unprivileged user if the caller is root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PATH_CAPABILITIES = ("dac_override", "dac_read_search")
# `postgres` is preferred, because other programs may also run as `nobody`.
_NAMES = ("postgres", "nobody")


class AccountError(RuntimeError):
    """The error if this host has no suitable user for PostgreSQL and Redis. The message says what to do."""


@dataclass(frozen=True, slots=True)
class SystemUser:
    """An unprivileged user that runs a process. `capabilities`: the Linux capabilities that the process gets."""

    uid: int
    gid: int
    capabilities: tuple[str, ...] = ()

    def command(self, argv: Sequence[str], *, death_signal: signal.Signals | None = None) -> list[str]:
        """Return a command that runs `argv` as this user. It uses the program `setpriv`, and does not change the pid.

        `death_signal`: the signal that the kernel sends to the process when its parent ends.
        """
        wrapped = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.gid), "--clear-groups"]
        if self.capabilities:
            kept = ",".join(f"+{name}" for name in self.capabilities)
            wrapped += ["--inh-caps", kept, "--ambient-caps", kept]
        if death_signal is not None:
            wrapped += ["--pdeathsig", death_signal.name.removeprefix("SIG")]
        return [*wrapped, "--", *argv]


def engine_account(*paths: Path) -> SystemUser | None:
    """Return the user that must run PostgreSQL and Redis, or None if it is the user of this process.

    If this process runs as root, return the user in BORG_ENGINE_USER, or else `postgres` or `nobody`. If this user
    may not enter a directory of `paths`, it also gets Linux capabilities that allow this. Raises `AccountError` if
    the user does not exist or the program `setpriv` is missing.
    """
    if os.geteuid() != 0:
        return None
    if shutil.which("setpriv") is None:
        raise AccountError("PostgreSQL refuses to run as root, and setpriv is missing; install util-linux")
    wanted = os.environ.get("BORG_ENGINE_USER")
    for name in (wanted,) if wanted else _NAMES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            closed = any(not passable(path, entry.pw_uid, entry.pw_gid) for path in paths)
            return SystemUser(entry.pw_uid, entry.pw_gid, _PATH_CAPABILITIES if closed else ())
    tried = f"BORG_ENGINE_USER={wanted}" if wanted else f"`{'` or `'.join(_NAMES)}`"
    raise AccountError(
        f"PostgreSQL refuses to run as root, and {tried} is not an unprivileged user of this host; "
        "create one and name it in BORG_ENGINE_USER"
    )


def passable(path: Path, uid: int, gid: int) -> bool:
    """Return whether a user may enter the folder `path` and every folder above it."""
    for folder in (path, *path.parents):
        if not folder.is_dir():
            continue
        found = folder.stat()
        if found.st_uid == uid:
            needed = stat.S_IXUSR
        elif found.st_gid == gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not found.st_mode & needed:
            return False
    return True
