"""Variables such as `$(port.http)` in commands, flags and environment values. Pure.

The server rejects a job file that refers to an undefined variable. The Borglet replaces each variable by its value.
Both use this module to find the variables in a text, and the names of the variables that a task has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# `$$(` stands for a literal `$(`. Any other `$$` stays, because it has a meaning for the shell.
REFERENCE = re.compile(r"\$\$\(|\$\(([^()]*)\)")
PACKAGES = "packages"
_ALWAYS = ("cell", "index", "job", "name")


def defined(ports: Iterable[str], *, packages: bool) -> list[str]:
    """Return the names of a task's variables, sorted. `ports`: the names of the task's ports. `packages`: whether the
    task has packages.
    """
    return sorted((*_ALWAYS, *(f"port.{name}" for name in ports), *([PACKAGES] if packages else [])))


def referenced(text: str) -> Iterator[str]:
    """Yield the names of the variables that `text` refers to, in their order in the text."""
    for match in REFERENCE.finditer(text):
        if match.group(1) is not None:
            yield match.group(1)
