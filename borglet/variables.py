"""Variables such as `$(port.http)` in commands, flags and environment values. Pure.

The server rejects a job file that names an undefined variable, and the Borglet fills in the values. Both use this
module, so that they agree on what a reference is and which variables exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# `$$(` is a literal `$(`; a lone `$$` belongs to the shell and stays.
REFERENCE = re.compile(r"\$\$\(|\$\(([^()]*)\)")
PACKAGES = "packages"
_ALWAYS = ("cell", "index", "job", "name")


def defined(ports: Iterable[str], *, packages: bool) -> list[str]:
    """Names of the variables of a task with these ports, in order. `packages`: whether it has any package."""
    return sorted((*_ALWAYS, *(f"port.{name}" for name in ports), *([PACKAGES] if packages else [])))


def referenced(text: str) -> Iterator[str]:
    """Names of the variables that `text` refers to, in order."""
    for match in REFERENCE.finditer(text):
        if match.group(1) is not None:
            yield match.group(1)
