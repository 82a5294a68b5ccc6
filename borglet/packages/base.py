"""The interface through which the Borglet's agent installs packages, and an implementation for simulated machines.

agent ── install(packages) ──► Packages ──► one read-only tree per package, which all tasks share
agent ── trees(packages) ───►           ──► the directories of the trees, for the runtime
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

from borglet.messages import MAX_REPORTED_PACKAGES, PackageRef

InUse = Callable[[], Set[str]]


class PackageMissing(Exception):
    """The error if a package cannot be installed. The message has its name and the reason, for the owner of the job."""


class Packages(Protocol):
    """The packages of one machine. Call all methods from the same asyncio loop. No method blocks the loop."""

    def bind(self, in_use: InUse) -> None:
        """Set the function that returns the digests of packages in use. These packages are never deleted. Call `bind`
        before all other methods.
        """

    async def install(self, packages: Sequence[PackageRef]) -> None:
        """Install packages. If the call is cancelled, installations that no other caller waits for are stopped. Raises
        `PackageMissing` if a package cannot be installed.
        """

    def trees(self, packages: Sequence[PackageRef]) -> Mapping[str, Path]:
        """Return the directory of each package by mount name, in the order of `packages`. Raises `PackageMissing` if a
        package is not installed.
        """

    def installed(self) -> list[str]:
        """Return the digests of at most `MAX_REPORTED_PACKAGES` installed packages, the most recently used first."""

    async def close(self) -> None:
        """Release all resources. Installed packages stay."""


def mount_name(package: PackageRef) -> str:
    """Return the name of the directory in which a task finds a package: the package's name without tag or digest.
    Raises `PackageMissing` if this name cannot be the name of a directory.
    """
    name = package.name.partition("@")[0]
    if name in ("", ".", "..") or "/" in name or "\0" in name or len(name.encode()) > 255:
        raise PackageMissing(
            f"package {package.name!r}: {name!r} is not the name of a directory; use only letters, digits, '-', '_'"
            " and '.'"
        )
    return name


def mounts(packages: Sequence[PackageRef], tree: Callable[[PackageRef], Path]) -> dict[str, Path]:
    """Return the directory of each package, by mount name. `tree`: returns the directory of one package. Raises
    `PackageMissing` if two packages have the same mount name.
    """
    found: dict[str, Path] = {}
    for package in packages:
        name = mount_name(package)
        if name in found:
            raise PackageMissing(
                f"package {package.name!r}: the task has two packages with the name {name!r}; rename one"
            )
        found[name] = tree(package)
    return found


class SimulatedPackages:
    """The packages of a simulated machine. An installation takes about `delay_s` seconds and writes no file."""

    def __init__(self, delay_s: float, rng: random.Random) -> None:
        self._delay_s, self._rng = delay_s, rng
        self._installed: dict[str, None] = {}

    def bind(self, in_use: InUse) -> None:
        pass

    async def install(self, packages: Sequence[PackageRef]) -> None:
        if any(package.digest not in self._installed for package in packages):
            await asyncio.sleep(self._delay_s * self._rng.uniform(0.5, 1.5))
        for package in packages:
            self._installed.pop(package.digest, None)
            self._installed[package.digest] = None
        while len(self._installed) > MAX_REPORTED_PACKAGES:
            del self._installed[next(iter(self._installed))]

    def trees(self, packages: Sequence[PackageRef]) -> Mapping[str, Path]:
        return mounts(packages, lambda package: Path("/", "packages", package.digest))

    def installed(self) -> list[str]:
        return list(reversed(self._installed))

    async def close(self) -> None:
        pass
