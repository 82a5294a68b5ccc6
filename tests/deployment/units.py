"""The parts of systemd units that a test needs to run or to compare them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BORG, ENGINES = ROOT / "deploy" / "systemd", ROOT / "deploy" / "ha" / "systemd"


@dataclass(frozen=True)
class Unit:
    """A unit of a service. `values`: all values of each key of its section `Service`."""

    name: str
    values: Mapping[str, tuple[str, ...]]

    @property
    def command(self) -> list[str]:
        """Return the program and its arguments, with `%%` as systemd reads it."""
        return [part.replace("%%", "%") for part in shlex.split(self.values["ExecStart"][-1])]

    def one(self, key: str, default: str = "") -> str:
        return self.values.get(key, (default,))[-1]


def read(path: Path) -> Unit:
    """Return the unit in a file. A key may occur several times."""
    values: dict[str, list[str]] = {}
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
    return Unit(path.stem, {key: tuple(found) for key, found in values.items()})


def all_units() -> Iterator[Unit]:
    """Yield the units of all processes of a control host."""
    for folder in (BORG, ENGINES):
        for path in sorted(folder.glob("*.service")):
            if path.stem != "borg-borglet":
                yield read(path)


def environment_file(path: Path) -> dict[str, str]:
    """Return the variables in a file, as systemd and Docker read them."""
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)
