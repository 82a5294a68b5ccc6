"""The files with secrets of tasks, their config files and their sockets for locks, in a file system that exists only in
memory (tmpfs).

    <home>/secrets ─► link to a folder in memory, with a random name
    <home>/secrets/<task>/<file>   one file per secret, which only the task's user can read
    <home>/secrets/<task>/.configs/<file>   the config files; no secret can have a file with this name
    <home>/secrets/<task>/locks.sock   the socket of a task that uses locks; a path here is short enough for a socket
    <home>/secrets/<task>.process  description of a container's process, from its creation until the task has started

A restart of the machine deletes the folder. The kernel may write memory to the swap space of the machine, unless that
is switched off or encrypted.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory
_KINDS = frozenset({"tmpfs", "ramfs"})
_NEW, _PROCESS = ".new", ".process"
LOCK_SOCKET = "locks.sock"
CONFIGS = ".configs"


NO_FILES: Mapping[str, bytes] = MappingProxyType({})


class SecretFiles:
    """The folder with the secrets of all tasks of one Borglet. `memory`: a folder in memory in which to create it."""

    def __init__(self, home: Path, memory: Path = MEMORY) -> None:
        self._link, self._memory = home / "secrets", memory

    def usable(self) -> bool:
        """Return whether this machine has a folder in memory."""
        return in_memory(self._memory) and os.access(self._memory, os.W_OK | os.X_OK)

    def folder_of(self, name: str) -> Path:
        """Return the folder of the files of a task. `name`: the name of the task's directory."""
        return self._link / name

    def process_file(self, name: str) -> Path:
        return self._link / f"{name}{_PROCESS}"

    def write(
        self, name: str, files: Mapping[str, bytes], owner: tuple[int, int], *, configs: Mapping[str, bytes] = NO_FILES
    ) -> None:
        """Create or replace files of a task. Each is replaced as a whole. `configs`: the config files. `owner`: uid and
        gid of the task. Raises OSError if a file cannot be written.
        """
        folder = self._ensure() / name
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        # The task may own the folder, so nothing in it is followed.
        descriptor = os.open(folder, flags)
        try:
            if configs:
                with suppress(FileExistsError):
                    os.mkdir(CONFIGS, 0o700, dir_fd=descriptor)
                inner = os.open(CONFIGS, flags, dir_fd=descriptor)
                try:
                    _fill(inner, configs, owner)
                finally:
                    os.close(inner)
            _fill(descriptor, files, owner)
        finally:
            os.close(descriptor)

    def socket_path(self, name: str) -> str:
        """Return the path of the socket of a task, which need not exist yet. Raises OSError if this machine has no
        folder in memory.
        """
        return str(self._ensure() / name / LOCK_SOCKET)

    def listen(self, name: str, owner: tuple[int, int]) -> socket.socket:
        """Create the socket of a task, which only the task's user can open. Raises OSError if this fails."""
        self.write(name, {}, owner)
        folder = os.open(self.folder_of(name), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(FileNotFoundError):
                os.unlink(LOCK_SOCKET, dir_fd=folder)
            os.fchmod(listener.fileno(), 0o600)  # the kernel gives the file of the socket this mode
            listener.bind(f"/proc/self/fd/{folder}/{LOCK_SOCKET}")
            if owner[0] != os.geteuid():
                _hand_over_socket(folder, owner)
            listener.listen(64)
        except OSError:
            listener.close()
            raise
        finally:
            os.close(folder)
        listener.setblocking(False)
        return listener

    def write_process(self, name: str, content: bytes) -> Path:
        """Write the description of a container's process, and return its path. Only the Borglet can read it."""
        path = self._ensure() / f"{name}{_PROCESS}"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        return path

    def forget_process(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.process_file(name).unlink()

    def remove(self, name: str) -> None:
        """Delete the files of a task. Do nothing if it has none."""
        self.forget_process(name)
        shutil.rmtree(self.folder_of(name), ignore_errors=True)

    def sweep(self, present: Collection[str]) -> None:
        """Delete the files of tasks that are not in `present`, and all descriptions of processes."""
        if not self._link.is_dir():
            return
        for entry in list(os.scandir(self._link)):
            if entry.name.endswith(_PROCESS):
                self.forget_process(entry.name.removesuffix(_PROCESS))
            elif entry.name not in present:
                self.remove(entry.name)

    def close(self) -> None:
        """Delete the folder in memory if it is empty."""
        with suppress(OSError):
            os.rmdir(os.readlink(self._link))
            self._link.unlink()

    def _ensure(self) -> Path:
        """Return the folder in memory. Create it if it does not exist. Raises OSError if this machine has none."""
        with suppress(OSError):
            target = Path(os.readlink(self._link))
            about = target.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and in_memory(target):
                return target
        if not self.usable():
            raise OSError(
                f"cannot store secrets in {self._memory}, because it is not a writable file system in memory; mount a"
                " tmpfs there to which the user of the Borglet may write"
            )
        target = Path(tempfile.mkdtemp(prefix="borg-secrets-", dir=self._memory))
        target.chmod(0o711)  # tasks enter their own folders, and cannot list the others
        with suppress(FileNotFoundError):
            self._link.unlink()
        self._link.symlink_to(target)
        return target


def _hand_over_socket(folder: int, owner: tuple[int, int]) -> None:
    """Make the task's user the owner of its new socket, and of no other file that the task put in its place."""
    found = os.open(LOCK_SOCKET, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        about = os.fstat(found)
        if not stat.S_ISSOCK(about.st_mode) or about.st_uid != os.geteuid():
            raise OSError(
                f"another process replaced the file {LOCK_SOCKET} of the task while the Borglet created it; change the"
                " program of the task so that it leaves this file alone"
            )
        os.chown(f"/proc/self/fd/{found}", *owner)
    finally:
        os.close(found)


def in_memory(path: Path) -> bool:
    """Return whether a folder is in a file system that exists only in memory."""
    found, kind = "", ""
    where = os.path.realpath(path)
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, of_type, *_ = line.split(" ")
        target = target.replace("\\040", " ")
        inside = target == "/" or where == target or where.startswith(f"{target}/")
        if inside and len(target) >= len(found):
            found, kind = target, of_type
    return kind in _KINDS


def _fill(folder: int, files: Mapping[str, bytes], owner: tuple[int, int]) -> None:
    """Create or replace files in the folder with this descriptor, and give it to the owner."""
    for file, value in files.items():
        _replace(folder, file, value, owner)
    if owner[0] != os.geteuid():
        os.fchown(folder, *owner)
        os.fchmod(folder, 0o500)


def _replace(folder: int, name: str, value: bytes, owner: tuple[int, int]) -> None:
    new = f".{name}{_NEW}"
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(new, flags, 0o400, dir_fd=folder), "wb") as file:
            if owner[0] != os.geteuid():
                os.fchown(file.fileno(), *owner)
            file.write(value)
        os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        raise
