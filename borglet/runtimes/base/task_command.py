"""Return the command and the environment of a task, with values for variables such as `$(port.http)`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

from borglet.messages import RunTask
from borglet.runtimes.base.runtime import StartFailed
from borglet.variables import PACKAGES, REFERENCE

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")

# The directory of our own interpreter comes last, for machines that have no other `python3`.
DEFAULT_PATH = ":".join(
    ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", f"{sys.base_prefix}/bin")
)

# The default shell in a task: bash, if it is installed.
LOGIN_SHELL = ["/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi"]


def variables(task: RunTask, *, packages: str = "") -> dict[str, str]:
    """Return the values of all variables that commands and environment values may contain as `$(…)`. `packages`: the
    folder of the task's packages.
    """
    cell, _, _ = task.name.partition("/")
    parts = task.name.split("/")
    known = {
        "cell": cell,
        "job": parts[-2] if len(parts) > 1 else task.name,
        "index": str(task.key.index),
        "name": task.name,
    }
    if packages:
        known[PACKAGES] = packages
    return known | {f"port.{name}": str(number) for name, number in task.ports.items()}


def expand(text: str, known: Mapping[str, str], *, where: str) -> str:
    """Replace each `$(variable)` in `text` with its value in `known`. `where`: the name of the field, for errors.
    Raises `StartFailed` if a variable is unknown or the result contains a NUL character.
    """

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "$("
        if name not in known:
            raise StartFailed(
                f"{where}: unknown variable $({name}). Use one of {', '.join(sorted(known))}, declare the port if it"
                " names a port, or write $$( for a literal $(."
            )
        return known[name]

    expanded = REFERENCE.sub(replace, text)
    if "\0" in expanded:
        raise StartFailed(f"{where}: it contains a NUL character, which is not allowed; remove it")
    return expanded


def command(task: RunTask, *, packages: str = "") -> list[str]:
    """Return the program of a task and its arguments. Raises `StartFailed` if the command is empty or a variable in it
    is unknown.
    """
    if not task.command or not task.command[0]:
        raise StartFailed("command: it is empty; give the program and its arguments as a list")
    known = variables(task, packages=packages)
    return [expand(text, known, where=f"command[{i}]") for i, text in enumerate(task.command)]


def environment(
    task: RunTask,
    *,
    run: int,
    home: str,
    tmp: str,
    path: str = DEFAULT_PATH,
    packages: str = "",
    alloc: str = "",
    identity: str = "",
    secrets: str = "",
    configs: str = "",
    locks: str = "",
) -> dict[str, str]:
    """Return the task's environment. Values of the job file replace defaults, and `BORG_*` variables replace defaults
    and values of the job file.

    `alloc`: path of the alloc's folder for the task, empty without an alloc. `identity`: path of the file with the
    task's signed identity. `secrets`: path of the folder with the task's secrets, empty without such files. `configs`:
    the same for its config files. `locks`: path of the task's socket for locks, empty if it uses none. Raises
    `StartFailed` if a name or a value is not valid.
    """
    known = variables(task, packages=packages)
    own = {}
    for name, value in task.env.items():
        if not _ENVIRONMENT_NAME.match(name):
            raise StartFailed(f"env: {name!r} is not the name of an environment variable; use letters, digits and _")
        own[name] = expand(value, known, where=f"env.{name}")
    base = {"PATH": path, "HOME": home, "TMPDIR": tmp, "LANG": "C.UTF-8"}
    parts = task.name.split("/")
    borg = {
        "BORG_TASK": task.name,
        "BORG_KEY": str(task.key),
        "BORG_CELL": known["cell"],
        "BORG_JOB": known["job"],
        "BORG_INDEX": known["index"],
        "BORG_INCARNATION": str(task.key.incarnation),
        "BORG_RUN": str(run),
    }
    if len(parts) == 4:
        borg["BORG_TENANT"] = parts[1]
    if packages:
        borg["BORG_PACKAGES"] = packages
    if alloc:
        borg["BORG_ALLOC_DIR"] = alloc
    if identity:
        borg["BORG_IDENTITY_FILE"] = identity
    if secrets:
        borg["BORG_SECRETS"] = secrets
    if configs:
        borg["BORG_CONFIGS"] = configs
    if locks:
        borg["BORG_LOCKS"] = locks
    if api_url := own.get("BORG_API_URL"):
        borg["BORG_API_URL"] = api_url
    borg |= {f"BORG_PORT_{_upper(name)}": str(number) for name, number in task.ports.items()}
    borg |= {f"BORG_LIMIT_{_upper(name)}": str(number) for name, number in task.limit.items()}
    return base | own | borg


def working_directory(task: RunTask, work: str) -> str:
    """Return the task's working directory: an absolute path unchanged, a relative one below `work`.

    Raises `StartFailed` for a path with `..`."""
    if ".." in task.working_dir.split("/"):
        raise StartFailed(f"working_dir: {task.working_dir!r} contains '..'; give a path without it")
    return os.path.join(work, task.working_dir) if task.working_dir else work


def _upper(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", name.upper())
