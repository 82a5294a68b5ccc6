"""The state of a home folder, in which a Borglet keeps its tasks. See `supervised_runtime`.

The state contains the tasks with their directories and control groups, and the allocs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from borglet.messages import EndCause, Exit, RunTask, TaskKey, TaskRun
from borglet.runtimes.base.runtime import Presence, StartFailed, TaskDoors
from borglet.runtimes.base.secret_files import SecretFiles
from borglet.runtimes.cgroups.cgroups import CgroupTree, detect
from borglet.runtimes.home import trash
from borglet.runtimes.home.allocfolders import AllocFolders
from borglet.runtimes.home.confinement import Confinement
from borglet.runtimes.home.logfiles import LogRetention
from borglet.runtimes.home.task_limits import Containers
from borglet.runtimes.home.taskdirs import SupervisorId, TaskDirectory, TaskRecord, directory_name
from borglet.runtimes.measuring.disk_usage import DiskWalk, disk_bytes
from borglet.runtimes.measuring.meter import Meter, Metered
from borglet.runtimes.supervisor import proctable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SupervisedSettings:
    """The settings that all runtimes with real processes share: limits of open files, logs and disk measurements."""

    isolation: Literal["auto", "polled"] = "auto"  # polled: use no control groups
    open_files: int = 65536
    log_file_bytes: int = 8 * 2**20
    log_file_s: float = 86400.0  # the age at which the next file begins
    log_files: int = 4  # number of files per stream
    log_bytes_s: int = 16 * 2**20  # a task that prints more waits, because all tasks share the disk
    retention: LogRetention = field(default_factory=LogRetention)
    disk_interval_s: float = 30.0


@dataclass(slots=True)
class SupervisedTask:
    """One incarnation of a task, as its runtime stores it in memory."""

    directory: TaskDirectory
    kept: TaskRecord
    exit: Exit | None = None
    supervisor: SupervisorId | None = None  # None while it starts
    pidfd: int = -1
    metered: Metered | None = None
    stop_asked: tuple[float, EndCause, str] | None = None  # a stop during the start: notice in s, cause, detail
    signal_asked: bool = False  # the supervisor sends SIGHUP as soon as it runs
    overused: bool = False
    unkillable: bool = False  # some of its processes could not be killed

    def presence(self) -> Presence:
        return Presence(self.kept.task, self.kept.run, self.kept.started_at, self.exit)


class RuntimeHome:
    """The state of one Borglet's home folder: the folders, tasks and control groups that all parts of the runtime use.
    Use it from one asyncio loop.
    """

    def __init__(self, home: Path, settings: SupervisedSettings, confinement: Confinement) -> None:
        self.home = home.absolute()
        self.settings = settings
        self.confinement = confinement
        for part, mode in (("tasks", 0o711), ("logs", 0o750), ("trash", 0o700)):
            (self.home / part).mkdir(mode=mode, parents=True, exist_ok=True)
        self.tree = detect(self.home) if settings.isolation == "auto" else CgroupTree("v1", {}, frozenset())
        self.containers = Containers(self.tree)
        self.meter = Meter(self.tree)
        self.allocs = AllocFolders(self.home)
        self.secrets = SecretFiles(self.home)
        self.tasks: dict[TaskKey, SupervisedTask] = {}
        self.doors: TaskDoors | None = None
        self._emptying = asyncio.Lock()
        self.closing = False

    def measure_capacity(self) -> dict[str, int]:
        """Return the machine's capacity by resource. The disk capacity is the free space of the disk plus the space
        that files of tasks and allocs use.
        """
        disk = os.statvfs(self.home)
        held = disk_bytes((self.home / "tasks", self.home / "logs", self.home / "allocs"))
        return {
            "cpu": 1000 * len(os.sched_getaffinity(0)),
            "ram": os.sysconf("SC_PHYS_PAGES") * proctable.PAGE_BYTES,
            "disk": disk.f_bavail * disk.f_frsize + held,
        }

    def directory_of(self, task: RunTask) -> TaskDirectory:
        """Return the directory of a task. If it has an alloc, prepare the alloc's folder. Raises `StartFailed` if the
        folder cannot be prepared.
        """
        try:
            folder = None
            if task.alloc is not None:
                folder = self.allocs.ensure(task.alloc)
                self.allocs.adopt_logs(task.alloc, directory_name(task.key))
            return TaskDirectory(self.home, task.key, alloc=folder)
        except ValueError as error:
            raise StartFailed(str(error)) from error
        except OSError as error:
            raise StartFailed(
                f"the machine could not prepare the folder of the task's alloc: {error}; an SRE can check the machine's"
                " disk"
            ) from error

    async def open_door(self, known: SupervisedTask) -> None:
        """Open the socket of a task that uses locks. Raises OSError if this fails."""
        task = known.kept.task
        if task.locks and self.doors is not None:
            owner = os.stat(known.directory.work)
            listener = self.secrets.listen(known.directory.name, (owner.st_uid, owner.st_gid))
            await self.doors.open(TaskRun(task.key, known.kept.run), listener)

    def adopt_door(self, known: SupervisedTask) -> None:
        """Continue the session of locks of a task that an earlier Borglet started."""
        if known.kept.task.locks and self.doors is not None:
            self.doors.adopt(TaskRun(known.kept.task.key, known.kept.run))

    def close_door(self, known: SupervisedTask) -> None:
        """Close the socket of a task. Its session ends with `end_session`, when its processes have ended."""
        if self.doors is not None:
            self.doors.close(TaskRun(known.kept.task.key, known.kept.run))

    def end_session(self, known: SupervisedTask) -> None:
        if self.doors is not None:
            self.doors.ended(TaskRun(known.kept.task.key, known.kept.run), certain=not known.unkillable)

    def discard(self, directory: TaskDirectory) -> None:
        """Move the files of a task to the trash. Its logs stay, and are deleted after a certain time."""
        self.secrets.remove(directory.name)
        if directory.logs.is_dir():
            os.utime(directory.logs)
        if directory.path.is_dir():
            trash.throw_away(directory.path, self.home / "trash")

    async def empty_trash(self) -> None:
        async with self._emptying:  # two calls at the same time would delete each other's entries
            await asyncio.to_thread(trash.empty, self.home / "trash", goes_on=lambda: not self.closing)

    def behave(self, incarnations: Iterable[SupervisedTask]) -> None:
        """Apply the scheduling classes of tasks to their processes."""
        children = proctable.children_of(proctable.table())
        for known in incarnations:
            if known.supervisor is not None and known.exit is None:
                self.containers.behave(known.kept.task, proctable.descendants(children, known.supervisor.pid))

    def metered(self, incarnation: SupervisedTask, *, cpu_ns: int | None) -> Metered:
        assert incarnation.supervisor is not None
        directory = incarnation.directory
        return Metered(
            incarnation.supervisor.pid,
            incarnation.supervisor.groups,
            DiskWalk((directory.work, directory.tmp)),
            cpu_ns=cpu_ns,
        )


def write_end(directory: TaskDirectory, exit_: Exit) -> None:
    """Write the exit of a task to its directory. An error is logged and not raised, because this Borglet reports the
    exit anyway.
    """
    try:
        directory.write_exit(exit_)
    except OSError as error:
        log.error("cannot store the end of task %s: %s", directory.name, error)


def reap(pid: int) -> None:
    """Collect the ended supervisor `pid`. Do nothing for an adopted supervisor: it is not a child of this process, and
    init collects it.
    """
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
