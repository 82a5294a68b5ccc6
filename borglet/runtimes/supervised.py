"""What runtimes of real processes share: each task under a supervisor that outlives the Borglet.

    start ─► plan, directory, groups, furnish ─► spawn(supervisor) ─► the task
    next_end ◄─ pidfd of the supervisor readable ─► exit.json, or it was killed: leftovers, supervisor-lost

What shuts a task in is its `confinement`'s part: little for `process`, a container for `oci`. All the rest is here:
adopting, watching, burying, limiting, measuring, sweeping.

Memory, processes and CPU are limited by control groups where we may (`cgroups`), else by what `sample`
measures; disk always by `sample`. `attributes()` says which. Owned by one asyncio loop; see `base.Runtime`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from borglet.messages import (
    AllocReport,
    EndCause,
    Exit,
    LogChunk,
    LogRequest,
    RunAlloc,
    RunTask,
    ShellClaims,
    TaskKey,
    Usage,
)
from borglet.runtimes import landlock, proctable, ptys, supervisors, trash
from borglet.runtimes.allocfolders import AllocFolders
from borglet.runtimes.base import NO_TREES, Presence, StartFailed
from borglet.runtimes.cgroups import CgroupTree, detect
from borglet.runtimes.confinement import Confinement
from borglet.runtimes.containers import Containers
from borglet.runtimes.limits import Grant, mebibytes, overuse
from borglet.runtimes.logfiles import LogRetention, read_log, sweep_logs
from borglet.runtimes.meter import Meter, Metered, disk_bytes
from borglet.runtimes.ptys import ShellRefused
from borglet.runtimes.taskdirs import Kept, SupervisorId, TaskDirectory, directory_name

log = logging.getLogger(__name__)

MOST_UNCLAIMED = 4096


@dataclass(frozen=True, slots=True)
class SupervisedSettings:
    """What all runtimes of real processes may be told."""

    isolation: Literal["auto", "polled"] = "auto"  # polled: use no control groups even where we may
    cap_cpu: bool = False  # the CPU limit is a ceiling, not only a share (§6.2)
    open_files: int = 65536
    log_file_bytes: int = 8 * 2**20
    log_file_s: float = 86400.0  # a file is followed by the next after this long, however small
    log_files: int = 4  # of each stream
    log_bytes_s: int = 16 * 2**20  # a task that prints more waits: the disk is everybody's
    retention: LogRetention = field(default_factory=LogRetention)
    disk_interval_s: float = 30.0


@dataclass(slots=True)
class _Incarnation:
    directory: TaskDirectory
    kept: Kept
    exit: Exit | None = None
    supervisor: SupervisorId | None = None  # None while it starts
    pidfd: int = -1
    metered: Metered | None = None
    stop_asked: tuple[float, EndCause, str] | None = None  # while it starts: told as soon as it can listen
    overused: bool = False

    def presence(self) -> Presence:
        return Presence(self.kept.task, self.kept.run, self.kept.started_at, self.exit)


class SupervisedRuntime:
    """All of a home's tasks. One Borglet at a time may own a home; a second is the caller's mistake."""

    def __init__(self, home: Path, settings: SupervisedSettings, confinement: Confinement) -> None:
        self.name = confinement.name
        self._confinement = confinement
        self._home = home.absolute()
        self._settings = settings
        for part, mode in (("tasks", 0o711), ("logs", 0o750), ("trash", 0o700)):
            (self._home / part).mkdir(mode=mode, parents=True, exist_ok=True)
        self._tree: CgroupTree | None = detect(self._home) if settings.isolation == "auto" else None
        self._containers = Containers(self._tree, cap_cpu=settings.cap_cpu)
        self._meter = Meter(self._tree)
        self._keeps_ports = landlock.knows_ports()
        self._allocs = AllocFolders(self._home)
        self._emptying = asyncio.Lock()
        self._closing = False
        self._dropped: set[TaskKey] = set()  # allocs that go as soon as nobody lives there
        self._tasks: dict[TaskKey, _Incarnation] = {}
        self._identities: dict[TaskKey, str] = {}  # of what is still to be started
        self.api_url = ""
        self._ended: asyncio.Queue[Presence] = asyncio.Queue()
        self._burials: set[asyncio.Task[None]] = set()
        self._adoption: asyncio.Task[None] | None = None
        self._allocs_measured_at = -math.inf
        self._capacity = self._measure_capacity()

    # -- what this machine gives

    def attributes(self) -> dict[str, str]:
        return {
            "runtime": self.name,
            **self._containers.attributes(),
            "isolation.disk": "polled",
            "isolation.ports": "landlock" if self._keeps_ports else "none",
            **self._confinement.attributes(),
        }

    def capacity(self) -> dict[str, int]:
        return dict(self._capacity)

    def _measure_capacity(self) -> dict[str, int]:
        """Disk: what is free now and what tasks here already hold."""
        disk = os.statvfs(self._home)
        held = disk_bytes((self._home / "tasks", self._home / "logs", self._home / "allocs"))
        return {
            "cpu": 1000 * len(os.sched_getaffinity(0)),
            "ram": os.sysconf("SC_PHYS_PAGES") * proctable.PAGE_BYTES,
            "disk": disk.f_bavail * disk.f_frsize + held,
        }

    # -- starting and stopping

    async def start(self, task: RunTask, *, run: int, trees: Mapping[str, Path] = NO_TREES) -> None:
        await self._adopt()
        known = self._tasks.get(task.key)
        if known is not None and known.exit is None:
            return
        directory = self._directory_of(task)
        here = {other.directory.name: other.kept for other in self._tasks.values()}
        told = task
        if self.api_url:
            told = msgspec.structs.replace(task, env={**task.env, "BORG_API_URL": self.api_url})
        plan = self._confinement.plan(told, run=run, directory=directory, trees=trees, kept=here)
        kept = Kept(task, run, time.time(), own_uid=plan.own_uid, address=plan.address, runtime=self.name)
        incarnation = _Incarnation(directory, kept)
        self._tasks[task.key] = incarnation
        try:
            directory.prepare(kept, owner=plan.account[:2] if plan.account else None)
            if (token := self._identities.pop(task.key, None)) is not None:
                directory.write_identity(token)
            await self._confinement.furnish(directory, plan)
            groups = self._containers.create(task, directory.name)
            limits = self._containers.limits_of(task)
            request: dict[str, object] = {
                "directory": str(directory.path),
                "log_directory": str(directory.logs),
                "groups": groups,
                "open_files": self._settings.open_files,
                **self._containers.manners(limits),
                "oom_score_adj": limits.oom_score_adj,
                "notice_s": task.notice_s,
                "ram_limit": limits.ram_bytes,
                "log_file_bytes": self._settings.log_file_bytes,
                "log_file_s": self._settings.log_file_s,
                "log_files": self._settings.log_files,
                "log_bytes_s": self._settings.log_bytes_s,
                "tcp_ports": self._tcp_ports(task),
                **plan.launch,
            }
            incarnation.supervisor = await supervisors.spawn(directory, request, groups)
        except (StartFailed, OSError) as error:
            await self._give_up(incarnation, str(error))
            if isinstance(error, StartFailed):
                raise
            raise StartFailed(f"the machine could not prepare the task: {error}") from error
        incarnation.metered = self._metered(incarnation, cpu_ns=0)
        self._watch(incarnation)
        if incarnation.stop_asked is not None:
            notice_s, cause, detail = incarnation.stop_asked
            supervisors.send_stop(directory, notice_s=notice_s, cause=cause, detail=detail)

    def _tcp_ports(self, task: RunTask) -> list[int] | None:
        """Ports of the machine are allotted; in a network of its own a task has all."""
        if not self._keeps_ports or task.network != "host":
            return None
        return sorted(task.ports.values())

    def _directory_of(self, task: RunTask) -> TaskDirectory:
        """Its directory, in its alloc where it has one. Raises `StartFailed`."""
        try:
            folder = None
            if task.alloc is not None:
                folder = self._allocs.ensure(task.alloc)
                self._allocs.adopt_logs(task.alloc, directory_name(task.key))
            return TaskDirectory(self._home, task.key, alloc=folder)
        except ValueError as error:
            raise StartFailed(str(error)) from error
        except OSError as error:
            raise StartFailed(f"the machine could not prepare its alloc: {error}") from error

    async def hold_allocs(self, allocs: Sequence[RunAlloc], dropped: Collection[TaskKey]) -> None:
        await self._adopt()
        self._dropped = set(dropped)
        failed: OSError | ValueError | None = None
        for alloc in allocs:
            try:
                self._allocs.hold(alloc)
                self._containers.hold_alloc(alloc)
            except (OSError, ValueError) as error:  # the others are held all the same
                failed = failed or error
        self._drop_allocs()
        await self._empty_trash()
        if failed is not None:
            raise failed

    def allocs(self) -> list[AllocReport]:
        return self._allocs.reports()

    def _drop_allocs(self) -> None:
        lived_in = {known.kept.task.alloc for known in self._tasks.values()}
        for key in self._dropped - lived_in:
            self._allocs.remove(key)
            self._containers.forget_alloc(key)
            self._dropped.discard(key)

    async def _give_up(self, incarnation: _Incarnation, reason: str) -> None:
        """Keep a failed start as an ended incarnation; the caller of `start` hears of it there."""
        directory = incarnation.directory
        supervisor = directory.supervisor()
        if supervisor is not None:
            await self._supervisor_ended(supervisor)
        groups = self._tree.groups_of(directory.name) if self._tree is not None else {}
        await supervisors.kill_leftovers(directory, groups)
        await self._confinement.clear(directory)
        self._containers.release(incarnation.kept.task.key)
        incarnation.exit = Exit(EndCause.START_FAILED, time.time(), detail=reason)
        if directory.path.is_dir() and directory.exit() is None:
            _write_end(directory, incarnation.exit)

    async def _supervisor_ended(self, supervisor: SupervisorId) -> None:
        """Wait for a supervisor that is ending by itself."""
        pidfd = supervisors.open_pidfd(supervisor)
        if pidfd < 0:
            _reap(supervisor.pid)
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(pidfd, gone.set)
        try:
            await asyncio.wait_for(gone.wait(), supervisors.KILL_TIMEOUT_S)
        except TimeoutError:
            log.warning("supervisor %d of a failed start does not end", supervisor.pid)
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            _reap(supervisor.pid)

    async def stop(self, key: TaskKey, *, notice_s: float, cause: EndCause, detail: str = "") -> None:
        await self._adopt()
        known = self._tasks.get(key)
        if known is None or known.exit is not None:
            return
        if known.supervisor is None:
            earlier = known.stop_asked
            known.stop_asked = (
                (notice_s, cause, detail) if earlier is None else (min(notice_s, earlier[0]), *earlier[1:])
            )
            return
        supervisors.send_stop(known.directory, notice_s=notice_s, cause=cause, detail=detail)

    async def resize(self, task: RunTask) -> None:
        await self._adopt()
        known = self._tasks.get(task.key)
        if known is None or known.exit is not None:
            return
        known.kept = msgspec.structs.replace(known.kept, task=task)
        known.directory.write_kept(known.kept)
        if known.supervisor is None:
            return
        self._behave([known])
        try:
            refused = self._containers.resize(task)
        except StartFailed as error:
            log.warning("task %s keeps the cores it has: %s", known.directory.name, error)
            return
        if refused:  # it uses more than it may now: the next sample ends it, with the figures
            log.info("task %s: %s", known.directory.name, "; ".join(refused))

    async def identify(self, key: TaskKey, token: str) -> None:
        await self._adopt()
        known = self._tasks.get(key)
        if known is not None and known.exit is None:
            known.directory.write_identity(token)
        else:
            self._identities[key] = token
            while len(self._identities) > MOST_UNCLAIMED:
                del self._identities[next(iter(self._identities))]  # of what was never started

    async def adjust(
        self, grants: Mapping[TaskKey, Grant], *, batch_milli: int, batch_idle: bool = True
    ) -> None:
        await self._adopt()
        self._containers.adjust(grants, batch_milli=batch_milli, batch_idle=batch_idle)

    async def remove(self, key: TaskKey) -> None:
        await self._adopt()
        known = self._tasks.get(key)
        if known is None:
            return
        if known.exit is None:
            raise ValueError(f"task {key} still runs; stop it and wait for its end before removing it")
        del self._tasks[key]
        self._discard(known.directory)
        self._drop_allocs()
        await self._empty_trash()

    def _discard(self, directory: TaskDirectory) -> None:
        """Out of sight at once, deleted after; its logs' time begins."""
        if directory.logs.is_dir():
            os.utime(directory.logs)
        if directory.path.is_dir():
            trash.throw_away(directory.path, self._home / "trash")

    async def _empty_trash(self) -> None:
        async with self._emptying:  # two at a time would take entries from each other
            await asyncio.to_thread(trash.empty, self._home / "trash", goes_on=lambda: not self._closing)

    # -- ends

    def _watch(self, incarnation: _Incarnation) -> None:
        assert incarnation.supervisor is not None
        incarnation.pidfd = supervisors.open_pidfd(incarnation.supervisor)
        if incarnation.pidfd < 0:
            self._supervisor_gone(incarnation)
        else:
            asyncio.get_running_loop().add_reader(incarnation.pidfd, self._supervisor_gone, incarnation)

    def _supervisor_gone(self, incarnation: _Incarnation) -> None:
        self._unwatch(incarnation)
        assert incarnation.supervisor is not None
        _reap(incarnation.supervisor.pid)
        self._keep(asyncio.get_running_loop().create_task(self._finish(incarnation)))

    def _keep(self, work: asyncio.Task[None]) -> None:
        """Until it is done, which `close` waits for."""
        self._burials.add(work)
        work.add_done_callback(self._burials.discard)

    def _unwatch(self, incarnation: _Incarnation) -> None:
        if incarnation.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(incarnation.pidfd)
            os.close(incarnation.pidfd)
            incarnation.pidfd = -1

    async def _finish(self, incarnation: _Incarnation) -> None:
        exit_ = incarnation.directory.exit() or await self._bury(incarnation)
        await self._confinement.clear(incarnation.directory)
        incarnation.exit = exit_
        incarnation.metered = None
        self._containers.release(incarnation.kept.task.key)
        self._ended.put_nowait(incarnation.presence())

    async def _bury(self, incarnation: _Incarnation) -> Exit:
        """Kill what a lost supervisor left, and write the end it could not write."""
        directory, supervisor = incarnation.directory, incarnation.supervisor
        if supervisor is not None and supervisor.boot_id != proctable.boot_id():
            exit_ = Exit(EndCause.MACHINE_RESTARTED, time.time(), detail="the machine restarted while it ran")
        else:
            assert supervisor is not None, "it began, so somebody supervised it"
            left = await supervisors.kill_leftovers(directory, supervisor.groups)
            detail = directory.complaint() or "its supervisor was killed"
            if left:
                detail += f"; processes {sorted(left)} can't be killed"
            exit_ = Exit(EndCause.SUPERVISOR_LOST, time.time(), detail=detail)
        _write_end(directory, exit_)
        return exit_

    def addresses(self) -> dict[TaskKey, str]:
        return {key: known.kept.address for key, known in self._tasks.items() if known.kept.address}

    async def next_end(self) -> Presence:
        await self._adopt()
        return await self._ended.get()

    async def presences(self) -> list[Presence]:
        await self._adopt()
        return [incarnation.presence() for incarnation in self._tasks.values()]

    def _behave(self, incarnations: list[_Incarnation]) -> None:
        """Their processes' scheduling classes are those of their tasks."""
        children = proctable.children_of(proctable.table())
        for known in incarnations:
            if known.supervisor is not None and known.exit is None:
                self._containers.behave(
                    known.kept.task, proctable.descendants(children, known.supervisor.pid)
                )

    # -- adopting

    async def _adopt(self) -> None:
        """Once, before anything else: find what an earlier Borglet of this home started."""
        if self._adoption is None:
            self._adoption = asyncio.get_running_loop().create_task(self._adopt_home())
        await asyncio.shield(self._adoption)

    async def _adopt_home(self) -> None:
        for entry in sorted(os.scandir(self._home / "tasks"), key=lambda entry: entry.name):
            await self._adopt_directory(entry.name)
        self._containers.settle()
        self._behave(list(self._tasks.values()))  # a release before this one may have started them otherwise
        if self._tree is not None:
            self._tree.sweep({incarnation.directory.name for incarnation in self._tasks.values()})
        # Millions of files may lie there: what runs must not be thought lost meanwhile.
        self._keep(asyncio.get_running_loop().create_task(self._empty_trash()))

    async def _adopt_directory(self, name: str) -> None:
        job, _, rest = name.partition(".")
        index, _, incarnation_number = rest.partition(".")
        if not (index.isdigit() and incarnation_number.isdigit()):
            log.warning("tasks/%s is none of ours; it is left alone", name)
            return
        directory = TaskDirectory(self._home, TaskKey(job, int(index), int(incarnation_number)))
        kept = directory.kept()
        if kept is not None and kept.task.alloc is not None:
            try:
                directory = self._directory_of(kept.task)
            except StartFailed as error:  # a full disk: what runs runs on
                log.error("task %s is adopted without its alloc: %s", name, error)
        supervisor = directory.supervisor()
        if kept is None:
            log.warning(
                "task %s has no readable task.json; what runs of it is killed, the rest removed", name
            )
            await supervisors.kill_leftovers(directory, supervisor.groups if supervisor else {})
            await self._confinement.clear(directory)
            self._discard(directory)
            return
        incarnation = _Incarnation(directory, kept, directory.exit(), supervisor)
        self._tasks[kept.task.key] = incarnation
        if incarnation.exit is not None:
            await self._confinement.clear(directory)
            return
        same_boot = supervisor is None or supervisor.boot_id == proctable.boot_id()
        if supervisor is not None and same_boot:
            pidfd = supervisors.open_pidfd(supervisor)
            if pidfd >= 0 and await supervisors.lives(supervisor, directory, pidfd):
                incarnation.pidfd = pidfd
                self._containers.adopt(kept.task, supervisor.groups)
                incarnation.metered = self._metered(incarnation, cpu_ns=None)
                asyncio.get_running_loop().add_reader(pidfd, self._supervisor_gone, incarnation)
                return
            if pidfd >= 0:
                os.close(pidfd)
        if same_boot and not directory.begun() and directory.exit() is None:
            await self._never_ran(incarnation)
            return
        # It may have written its end between our two looks.
        incarnation.exit = directory.exit() or await self._bury(incarnation)
        await self._confinement.clear(directory)

    async def _never_ran(self, incarnation: _Incarnation) -> None:
        """The last Borglet ended in the middle of a start. It is nobody's failure, and begins anew."""
        directory, supervisor = incarnation.directory, incarnation.supervisor
        await supervisors.kill_leftovers(directory, supervisor.groups if supervisor else {})
        await self._confinement.clear(directory)
        if incarnation.kept.run == 1:
            del self._tasks[incarnation.kept.task.key]
            self._discard(directory)
            return
        incarnation.exit = Exit(
            EndCause.STOPPED, time.time(), detail="the Borglet ended while starting it again"
        )
        _write_end(directory, incarnation.exit)

    # -- measuring

    def _metered(self, incarnation: _Incarnation, *, cpu_ns: int | None) -> Metered:
        assert incarnation.supervisor is not None
        directory = incarnation.directory
        return Metered(
            incarnation.supervisor.pid,
            incarnation.supervisor.groups,
            (directory.work, directory.tmp),
            cpu_ns=cpu_ns,
        )

    async def sample(self) -> dict[TaskKey, Usage]:
        await self._adopt()
        await self._measure_disks()
        metered = {key: known.metered for key, known in self._tasks.items() if known.metered is not None}
        usages = self._meter.measure(metered)
        for key, usage in usages.items():
            await self._enforce(self._tasks[key], usage)
        return usages

    async def ready(self, keys: Collection[TaskKey]) -> dict[TaskKey, int]:
        wanted = {key: self._tasks[key].metered for key in keys if key in self._tasks}
        return self._meter.ready({key: metered for key, metered in wanted.items() if metered is not None})

    async def _measure_disks(self) -> None:
        now = time.monotonic()
        for known in list(self._tasks.values()):
            metered = known.metered
            if metered is None:
                continue
            if metered.disk_at is None or now - metered.disk_at >= self._settings.disk_interval_s:
                metered.disk_at = now
                metered.disk_bytes = await asyncio.to_thread(disk_bytes, metered.directories)
        if now - self._allocs_measured_at >= self._settings.disk_interval_s:
            self._allocs_measured_at = now
            await asyncio.to_thread(self._allocs.measure)

    async def _enforce(self, known: _Incarnation, usage: Usage) -> None:
        task = known.kept.task
        limit = self._containers.ceiling_of(task)
        found = overuse(limit, task.max_processes, usage)
        if found is None or known.overused or known.supervisor is None:
            return
        if found.cause is EndCause.OUT_OF_MEMORY:
            # The sum counts pages that its processes share once for each: look closely before a kill.
            exact = self._meter.proportional_ram(known.supervisor.pid)
            if exact <= limit["ram"]:
                return
            detail = f"limit {mebibytes(limit['ram'])}, used {mebibytes(exact)}"
        else:
            detail = found.detail
        known.overused = True
        notice_s = task.notice_s if found.cause is EndCause.OUT_OF_DISK else 0.0
        await self.stop(task.key, notice_s=notice_s, cause=found.cause, detail=detail)

    # -- logs

    async def read_log(self, request: LogRequest) -> LogChunk:
        if request.search:
            return await asyncio.to_thread(read_log, self._home, request)
        return read_log(self._home, request)

    async def sweep(self, now: float) -> list[str]:
        """Delete logs whose time is up (`now`: seconds since the epoch). Returns the names deleted."""
        await self._adopt()
        present = {known.directory.name for known in self._tasks.values()}
        retention = self._settings.retention
        forgotten = await asyncio.to_thread(
            self._allocs.forget_old_logs, now=now, present=present, keep_s=retention.keep_s
        )
        return forgotten + await asyncio.to_thread(
            sweep_logs, self._home, now=now, present=present, retention=retention
        )

    # -- shells

    async def open_shell(self, claims: ShellClaims) -> ptys.Pty:
        await self._adopt()
        known = self._tasks.get(claims.key)
        if known is None or known.exit is not None or known.supervisor is None:
            raise ShellRefused(f"task {claims.key} does not run on this machine")
        if known.kept.runtime != self.name:  # a shell of ours would be outside of what holds the task
            raise ShellRefused(
                f"task {claims.key} was started by the runtime {known.kept.runtime}, and the Borglet has"
                f" {self.name} since; shells open once the task was started anew"
            )
        try:
            request = self._confinement.shell(known.kept, known.directory, known.supervisor, claims)
        except StartFailed as error:
            raise ShellRefused(str(error)) from error
        if not request.engine:  # held back by rules of its own, an engine could not enter the container
            request = replace(request, tcp_ports=self._tcp_ports(known.kept.task))
        return await ptys.spawn(request)

    async def close(self) -> None:
        self._closing = True
        if self._adoption is not None:
            await self._adoption
        for burial in list(self._burials):
            await burial
        for incarnation in self._tasks.values():
            self._unwatch(incarnation)
        if any(known.exit is None for known in self._tasks.values()):
            return
        self._confinement.close()
        if self._tree is not None:
            self._tree.remove()


def _write_end(directory: TaskDirectory, exit_: Exit) -> None:
    """Should there be no room for it now, this Borglet tells it, and the next one comes to the same."""
    try:
        directory.write_exit(exit_)
    except OSError as error:
        log.error("the end of task %s can't be written: %s", directory.name, error)


def _reap(pid: int) -> None:
    """Collect a supervisor that is our own child; an adopted one is init's."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
