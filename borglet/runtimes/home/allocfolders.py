"""Manage the folders of allocs. All tasks in an alloc share its folder, which stays when a task ends (§2.4).

allocs/<job>.<index>.<incarnation>/
    alloc.json   the alloc in the desired state
    shared/      each task of the alloc can write here, and remove only its own files
    logs/        the logs of its tasks, <job>.<index>.<incarnation>/stdout.<offset>, which its tasks can read

The Borglet makes the folder when the first task in the alloc starts, or when the master lists the alloc. It removes the
folder when the master stops the alloc and no task uses it. The logs are kept longer, like the logs of any removed task.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection
from pathlib import Path

import msgspec

from borglet.files import replace_file
from borglet.messages import AllocReport, RunAlloc, TaskKey
from borglet.runtimes.home.taskdirs import directory_name, key_of, link_into_alloc
from borglet.runtimes.home.trash import throw_away
from borglet.runtimes.measuring.disk_usage import DiskWalk

log = logging.getLogger(__name__)


class AllocFolders:
    """All alloc folders of one Borglet. The key of an alloc has the type `TaskKey`, like the key of a task."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._root = home / "allocs"
        self._root.mkdir(mode=0o711, exist_ok=True)
        self._walks: dict[str, DiskWalk] = {}

    def present(self) -> list[TaskKey]:
        """Return the allocs that have a folder, sorted."""
        keys = [key_of(entry.name) for entry in os.scandir(self._root) if entry.is_dir(follow_symlinks=False)]
        return sorted(key for key in keys if key is not None)

    def folder(self, key: TaskKey) -> Path:
        """Return the folder of an alloc. Raises ValueError for a key that is not a safe file name."""
        return self._root / directory_name(key)

    def ensure(self, key: TaskKey) -> Path:
        """Return the folder of an alloc, created if it is missing. Raises OSError if the folder cannot be made, and
        ValueError for a key that is not a safe file name.
        """
        folder = self.folder(key)
        folder.mkdir(mode=0o711, exist_ok=True)
        (folder / "logs").mkdir(mode=0o755, exist_ok=True)
        shared = folder / "shared"
        shared.mkdir(exist_ok=True)
        shared.chmod(0o1777)  # the umask may have removed bits
        return folder

    def hold(self, alloc: RunAlloc) -> None:
        """Store an alloc of the desired state as alloc.json in its folder. Raises OSError if the file cannot be
        written, and ValueError for a key that is not a safe file name.
        """
        replace_file(self.ensure(alloc.key) / "alloc.json", msgspec.json.encode(alloc), durable=False)

    def held(self, key: TaskKey) -> RunAlloc | None:
        """Return the alloc that is stored in its folder. Return None if the master has not listed it yet, or if a crash
        prevented storing it.
        """
        try:
            return msgspec.json.decode((self.folder(key) / "alloc.json").read_bytes(), type=RunAlloc)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def adopt_logs(self, key: TaskKey, task: str) -> None:
        """From now on, store the logs of a task in the folder of its alloc `key`, and move its present logs there.
        `task`: the name of the task's directory.
        """
        inside = self.ensure(key) / "logs" / task
        outside = self._home / "logs" / task
        if outside.is_symlink():
            return
        if outside.is_dir():
            os.rename(outside, inside)
        inside.mkdir(mode=0o755, exist_ok=True)
        inside.chmod(0o755)
        outside.symlink_to(link_into_alloc(key, task))

    def remove(self, key: TaskKey) -> None:
        """Move the logs of an alloc's tasks to `logs/`, and its folder to the trash. Raises OSError if a file cannot be
        moved, and ValueError for a key that is not a safe file name.
        """
        folder = self.folder(key)
        if not folder.is_dir():
            return
        for entry in list(os.scandir(folder / "logs")) if (folder / "logs").is_dir() else []:
            outside = self._home / "logs" / entry.name
            if outside.is_symlink():
                outside.unlink()
            if not outside.exists():
                os.rename(entry.path, outside)
                os.utime(outside)
        throw_away(folder, self._home / "trash")
        self._walks.pop(folder.name, None)

    def forget_old_logs(self, *, now: float, present: Collection[str], keep_s: float) -> list[str]:
        """In the folders of existing allocs, delete the logs of tasks that ended more than `keep_s` seconds ago.
        Return the names of the tasks.

        `present`: names of the directories of all tasks that have not been removed.
        """
        forgotten = []
        for key in self.present():
            logs = self.folder(key) / "logs"
            for entry in list(os.scandir(logs)):
                if entry.name in present or now - entry.stat(follow_symlinks=False).st_mtime <= keep_s:
                    continue
                (self._home / "logs" / entry.name).unlink(missing_ok=True)
                shutil.rmtree(entry.path)
                forgotten.append(entry.name)
        return forgotten

    def measure(self) -> None:
        """Measure the disk usage of each alloc. With very many files, one measurement takes several calls."""
        for key in self.present():
            walk = self._walks.setdefault(directory_name(key), DiskWalk((self.folder(key),)))
            walk.step()

    def reports(self) -> list[AllocReport]:
        result = []
        for key in self.present():
            held = self.held(key)
            walk = self._walks.get(directory_name(key))
            result.append(AllocReport(key, held.name if held else str(key), walk.bytes if walk else 0))
        return result
