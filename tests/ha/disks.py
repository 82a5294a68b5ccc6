"""The disks of control hosts. They hold the data of the engines. A fault can fill a disk, or let its host lose power.

A disk is a file system (ext4) in a file in memory. When a host loses its power, the kernel stops the file system at
once and forgets everything that no program has synchronised (`fsync`). Writes to the disk itself cost no time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from tests.ha.network import Host
from tests.ha.services import wait_until

_SIZE_MIB = 1_536
# The request of `linux/ext4.h` that stops a file system, and its argument: write nothing more, not even the journal.
_EXT4_IOC_SHUTDOWN, _WITHOUT_JOURNAL = 0x8004587D, struct.pack("I", 2)
_BLOCK = 4_096
_END_S = 30.0


class Disks:
    """A disk per host, at the folder `disk` below the folder of the host. Only processes of the host see it."""

    def __init__(self, hosts: Sequence[Host], folder: Path) -> None:
        self._folder = folder
        for host in hosts:
            memory, disk = folder / host.name / "memory", folder / host.name / "disk"
            memory.mkdir()
            disk.mkdir()
            # The file system writes a few blocks more than it holds.
            host.inside.run("mount", "-t", "tmpfs", "-o", f"size={_SIZE_MIB + 64}m", "memory", str(memory))
            host.inside.run("truncate", "-s", f"{_SIZE_MIB}M", str(memory / "image"))
            host.inside.run("mkfs.ext4", "-q", "-m", "0", "-E", "root_owner=0:0,nodiscard", str(memory / "image"))
            self._mount(host)
            host.inside.run("chmod", "1777", str(disk))

    def fill(self, host: Host) -> None:
        """Leave no block free."""
        filler = os.open(self._seen(host) / "filler", os.O_CREAT | os.O_WRONLY)
        try:
            free = os.fstatvfs(filler)
            end, size = 0, free.f_bavail * free.f_frsize
            while size >= _BLOCK:
                try:
                    os.posix_fallocate(filler, end, size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2
                else:
                    end += size
        finally:
            os.close(filler)

    def free(self, host: Host) -> None:
        """Free the space that `fill` has used."""
        (self._seen(host) / "filler").unlink(missing_ok=True)

    def lose_power(self, host: Host) -> None:
        """Forget everything that was not synchronised. All processes of the host must have been killed."""
        wait_until(lambda: not list(host.inside.processes()), _END_S, f"all processes of {host.name} have ended")
        disk = os.open(self._seen(host), os.O_RDONLY)
        try:
            fcntl.ioctl(disk, _EXT4_IOC_SHUTDOWN, _WITHOUT_JOURNAL)
        finally:
            os.close(disk)
        host.inside.run("umount", str(self._folder / host.name / "disk"))
        self._mount(host)

    def _mount(self, host: Host) -> None:
        folder = self._folder / host.name
        host.inside.run("mount", "-o", "loop,discard,noatime", str(folder / "memory" / "image"), str(folder / "disk"))

    def _seen(self, host: Host) -> Path:
        """Return the disk as this process sees it: through the first process of the host."""
        return Path(f"/proc/{host.inside.pid}/root{self._folder}/{host.name}/disk")
