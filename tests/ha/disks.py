"""The disks of control hosts: file systems in memory that hold the data of the engines, and that a fault can fill."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.ha.network import Host

_SIZE_MIB = 1_536


class Disks:
    """A disk per host, at the folder `disk` below the folder of the host. Only processes of the host see it."""

    def __init__(self, hosts: Sequence[Host], folder: Path) -> None:
        self._of: Mapping[str, Path] = {host.name: folder / host.name / "disk" for host in hosts}
        for host in hosts:
            self._of[host.name].mkdir()
            options = f"size={_SIZE_MIB}m,mode=1777"
            host.inside.run("mount", "-t", "tmpfs", "-o", options, "disk", str(self._of[host.name]))

    def fill(self, host: Host) -> None:
        """Leave no byte free."""
        try:
            host.inside.run("dd", "if=/dev/zero", f"of={self._of[host.name] / 'filler'}", "bs=1M")
        except subprocess.CalledProcessError as error:
            if "No space left" not in error.output:
                raise

    def free(self, host: Host) -> None:
        """Free the space that `fill` has used."""
        host.inside.run("rm", "-f", str(self._of[host.name] / "filler"))
