"""The common part of the runtimes with real processes. Each task has a supervisor, which continues after the Borglet
ends.

    start ─► plan, directory, groups, prepare_container ─► spawn(supervisor) ─► the task
    next_end ◄─ exit.json ◄─ pidfd of the supervisor readable

If the supervisor was killed, it wrote no `exit.json`. Then `exit_watcher` kills the remaining processes of the task and
reports the cause `supervisor-lost`.

The `confinement` isolates a task: by a user in the runtime `process`, by a container in the runtime `oci`. Other
modules store the state (`runtime_home`), find earlier tasks (`adoption`), wait for ends (`exit_watcher`), and measure
and limit tasks (`limit_enforcement`).

Control groups limit memory, processes and CPU if possible (`cgroups`). Otherwise the method `sample`, which measures
the usage, stops tasks that exceed their limits of memory or processes. `sample` always enforces the disk limit. For
each resource, an attribute of the machine names what enforces the limit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from borglet.messages import (
    CONFIG,
    SECRET,
    AllocReport,
    EndCause,
    LogChunk,
    LogRequest,
    RunAlloc,
    RunTask,
    SecretRef,
    SecretValue,
    ShellClaims,
    TaskKey,
    Usage,
)
from borglet.runtimes.base.runtime import NO_TREES, Presence, StartFailed, TaskDoors
from borglet.runtimes.cgroups.limits import Grant
from borglet.runtimes.home import supervisors
from borglet.runtimes.home.adoption import adopt
from borglet.runtimes.home.chown_files import hand_over
from borglet.runtimes.home.confinement import Confinement
from borglet.runtimes.home.exit_watcher import ExitWatcher
from borglet.runtimes.home.limit_enforcement import Enforcement
from borglet.runtimes.home.logfiles import read_log, sweep_logs
from borglet.runtimes.home.runtime_home import RuntimeHome, SupervisedSettings, SupervisedTask
from borglet.runtimes.home.taskdirs import TaskDirectory, TaskRecord
from borglet.runtimes.supervisor import landlock, ptys
from borglet.runtimes.supervisor.ptys import ShellRefused

log = logging.getLogger(__name__)

MOST_UNCLAIMED = 4096


class SupervisedRuntime:
    """A runtime for the tasks of one Borglet. The caller makes sure that only one Borglet uses the home folder."""

    def __init__(self, home: Path, settings: SupervisedSettings, confinement: Confinement) -> None:
        self.name = confinement.name
        self._runtime_home = RuntimeHome(home, settings, confinement)
        self._home, self._settings, self._confinement = self._runtime_home.home, settings, confinement
        self._containers, self._tasks = self._runtime_home.containers, self._runtime_home.tasks
        self._allocs, self._secrets = self._runtime_home.allocs, self._runtime_home.secrets
        self._exit_watcher = ExitWatcher(self._runtime_home)
        self._enforcement = Enforcement(self._runtime_home, self.stop)
        self._keeps_ports = landlock.knows_ports()
        self._dropped: set[TaskKey] = set()  # allocs to remove as soon as no task uses them
        self._identities: dict[TaskKey, str] = {}  # of tasks that start later
        self.api_url = ""
        self._adopted = False
        self._capacity = self._runtime_home.measure_capacity()

    def serve_doors(self, doors: TaskDoors) -> None:
        """Let `doors` answer the requests of tasks at their sockets. Call this before tasks start or are adopted."""
        self._runtime_home.doors = doors

    # -- the machine

    def attributes(self) -> dict[str, str]:
        return {
            "runtime": self.name,
            **self._containers.attributes(),
            "secrets": "memory" if self._secrets.usable() else "none",
            "configs": "memory" if self._secrets.usable() else "none",
            "isolation.disk": "polled",
            "isolation.ports": "landlock" if self._keeps_ports else "none",
            **self._confinement.attributes(),
        }

    def capacity(self) -> dict[str, int]:
        return dict(self._capacity)

    # -- starting and stopping

    async def start(
        self, task: RunTask, *, run: int, trees: Mapping[str, Path] = NO_TREES, secrets: Sequence[SecretValue] = ()
    ) -> None:
        known = self._tasks.get(task.key)
        if known is not None and known.exit is None:
            return
        variables = _variables(secrets)
        directory = self._runtime_home.directory_of(task)
        here = {other.directory.name: other.kept for other in self._tasks.values()}
        task = msgspec.structs.replace(task, secrets=_delivered(secrets))
        message = task
        if self.api_url:
            message = msgspec.structs.replace(task, env={**task.env, "BORG_API_URL": self.api_url})
        plan = self._confinement.plan(message, run, directory, trees, here)
        kept = TaskRecord(task, run, time.time(), own_uid=plan.own_uid, address=plan.address, runtime=self.name)
        incarnation = SupervisedTask(directory, kept)
        self._tasks[task.key] = incarnation
        try:
            owner = plan.account[:2] if plan.account else None
            for own in (directory.work, directory.tmp):  # an earlier run may have used another user
                if owner is not None and own.is_dir() and own.stat().st_uid != owner[0]:
                    await asyncio.to_thread(hand_over, own, owner)
            directory.prepare(kept, owner=owner)
            if (token := self._identities.pop(task.key, None)) is not None:
                directory.write_identity(token)
            self._write_secrets(directory, secrets)
            await self._runtime_home.open_door(incarnation)
            await self._confinement.prepare_container(directory, plan)
            launch = self._confinement.launch_with(directory, plan, variables) if variables else plan.launch
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
                **launch,
            }
            incarnation.supervisor = await supervisors.spawn(directory, request, groups)
        except (StartFailed, OSError) as error:
            await self._exit_watcher.give_up(incarnation, str(error))
            if isinstance(error, StartFailed):
                raise
            raise StartFailed(
                f"the machine could not prepare the task: {error}; an SRE can check the machine's disk"
            ) from error
        finally:
            self._secrets.forget_process(directory.name)
        incarnation.metered = self._runtime_home.metered(incarnation, cpu_ns=0)
        self._exit_watcher.watch(incarnation)
        if incarnation.signal_asked:
            with suppress(OSError):  # the supervisor has ended, and so has the task
                supervisors.send_signal(directory)
        if incarnation.stop_asked is not None:
            notice_s, cause, detail = incarnation.stop_asked
            supervisors.send_stop(directory, notice_s=notice_s, cause=cause, detail=detail)

    def _tcp_ports(self, task: RunTask) -> list[int] | None:
        """Return the TCP ports that a task may bind. None means all ports."""
        if not self._keeps_ports or task.network != "host":
            return None
        return sorted(task.ports.values())

    async def hold_allocs(self, allocs: Sequence[RunAlloc], dropped: Collection[TaskKey]) -> None:
        self._dropped = set(dropped)
        failed: OSError | ValueError | None = None
        for alloc in allocs:
            try:
                self._allocs.hold(alloc)
                self._containers.hold_alloc(alloc)
            except (OSError, ValueError) as error:  # the loop still creates the other allocs
                failed = failed or error
        self._drop_allocs()
        await self._runtime_home.empty_trash()
        if failed is not None:
            raise failed

    def allocs(self) -> list[AllocReport]:
        return self._allocs.reports()

    def _drop_allocs(self) -> None:
        in_use = {known.kept.task.alloc for known in self._tasks.values()}
        for key in self._dropped - in_use:
            self._allocs.remove(key)
            self._containers.forget_alloc(key)
            self._dropped.discard(key)

    async def stop(self, key: TaskKey, *, notice_s: float, cause: EndCause, detail: str = "") -> None:
        known = self._tasks.get(key)
        if known is None or known.exit is not None:
            return
        if known.supervisor is None:
            if known.stop_asked is not None:  # the first cause stays
                earlier_s, cause, detail = known.stop_asked
                notice_s = min(notice_s, earlier_s)
            known.stop_asked = (notice_s, cause, detail)
            return
        supervisors.send_stop(known.directory, notice_s=notice_s, cause=cause, detail=detail)

    async def resize(self, task: RunTask) -> None:
        known = self._tasks.get(task.key)
        if known is None or known.exit is not None:
            return
        # The record names the secrets that the task has, so that the next Borglet notices older ones.
        task = msgspec.structs.replace(task, secrets=known.kept.task.secrets)
        known.kept = msgspec.structs.replace(known.kept, task=task)
        known.directory.write_kept(known.kept)
        if known.supervisor is None:
            return
        self._runtime_home.behave([known])
        try:
            refused = self._containers.resize(task)
        except StartFailed as error:
            log.warning("cannot change the cores of task %s, which keeps its old ones: %s", known.directory.name, error)
            return
        if refused:  # the task exceeds its new limit: the next sample ends it, with the figures
            log.info("task %s: %s", known.directory.name, "; ".join(refused))

    async def identify(self, key: TaskKey, token: str) -> None:
        known = self._tasks.get(key)
        if known is not None and known.exit is None:
            known.directory.write_identity(token)
        else:
            self._identities[key] = token
            while len(self._identities) > MOST_UNCLAIMED:
                del self._identities[next(iter(self._identities))]  # of tasks that never started

    async def renew_secrets(self, key: TaskKey, secrets: Sequence[SecretValue], *, signal: bool = False) -> None:
        known = self._tasks.get(key)
        if known is None or known.exit is not None:
            return
        self._write_secrets(known.directory, secrets)
        if signal and known.supervisor is None:
            known.signal_asked = True
        elif signal:
            supervisors.send_signal(known.directory)
        # The record comes last. So a Borglet that takes over in between sends the signal again.
        new = {ref.place: ref for ref in _delivered(secrets) if ref.file}
        refs = [new.get(ref.place, ref) if ref.file else ref for ref in known.kept.task.secrets]
        known.kept = msgspec.structs.replace(known.kept, task=msgspec.structs.replace(known.kept.task, secrets=refs))
        known.directory.write_kept(known.kept)

    def secrets_of(self, key: TaskKey) -> list[SecretRef]:
        known = self._tasks.get(key)
        return known.kept.task.secrets if known is not None and known.exit is None else []

    def _write_secrets(self, directory: TaskDirectory, secrets: Sequence[SecretValue]) -> None:
        """Write the files with secrets of a task, and its config files. Raises OSError if one cannot be written."""
        files, configs = ({v.file: v.value for v in secrets if v.file and v.kind == kind} for kind in (SECRET, CONFIG))
        if files or configs:
            owner = os.stat(directory.work)
            try:
                self._secrets.write(directory.name, files, (owner.st_uid, owner.st_gid), configs=configs)
            except OSError as error:
                what = "secrets" if files else "config files"
                cure = "an SRE can check the machine's file system in memory"
                raise OSError(f"cannot write the {what} of the task into memory: {error}; {cure}") from error

    async def adjust(self, grants: Mapping[TaskKey, Grant], *, batch_milli: int, batch_idle: bool = True) -> None:
        self._containers.adjust(grants, batch_milli=batch_milli, batch_idle=batch_idle)

    async def remove(self, key: TaskKey) -> None:
        known = self._tasks.get(key)
        if known is None:
            return
        if known.exit is None:
            raise ValueError(f"task {key} still runs; stop it and wait for its end before removing it")
        del self._tasks[key]
        self._runtime_home.discard(known.directory)
        self._drop_allocs()
        await self._runtime_home.empty_trash()

    # -- ends

    def addresses(self) -> dict[TaskKey, str]:
        return {key: known.kept.address for key, known in self._tasks.items() if known.kept.address}

    async def next_end(self) -> Presence:
        return await self._exit_watcher.next_end()

    async def presences(self) -> list[Presence]:
        if not self._adopted:
            self._adopted = True
            await adopt(self._runtime_home, self._exit_watcher)
            for known in self._tasks.values():
                if known.exit is None:
                    await self._reopen_door(known)
        return [incarnation.presence() for incarnation in self._tasks.values()]

    async def _reopen_door(self, known: SupervisedTask) -> None:
        """Open the socket of a task that an earlier Borglet started, and continue its session."""
        self._runtime_home.adopt_door(known)
        try:
            await self._runtime_home.open_door(known)
        except OSError as error:
            log.error(
                "cannot open the socket for locks of task %s, which keeps running: %s", known.directory.name, error
            )

    # -- measuring

    async def sample(self) -> dict[TaskKey, Usage]:
        return await self._enforcement.sample()

    async def ready(self, keys: Collection[TaskKey]) -> dict[TaskKey, int]:
        wanted = {key: self._tasks[key].metered for key in keys if key in self._tasks}
        return self._runtime_home.meter.ready({key: metered for key, metered in wanted.items() if metered is not None})

    # -- logs

    async def read_log(self, request: LogRequest) -> LogChunk:
        if request.search:
            return await asyncio.to_thread(read_log, self._home, request)
        return read_log(self._home, request)

    async def sweep(self, now: float) -> list[str]:
        """Delete expired logs. Return the directory names of the tasks whose logs were deleted. `now`: seconds since
        the epoch.
        """
        present = {known.directory.name for known in self._tasks.values()}
        retention, forget = self._settings.retention, self._allocs.forget_old_logs
        deleted = await asyncio.to_thread(forget, now=now, present=present, keep_s=retention.keep_s)
        return deleted + await asyncio.to_thread(sweep_logs, self._home, now=now, present=present, retention=retention)

    # -- shells

    async def open_shell(self, claims: ShellClaims) -> ptys.Pty:
        known = self._tasks.get(claims.key)
        if known is None or known.exit is not None or known.supervisor is None:
            raise ShellRefused(f"task {claims.key} is not running on this machine; open the shell when the task runs")
        if known.kept.runtime != self.name:  # a shell of this runtime would not be in the task's confinement
            raise ShellRefused(
                f"task {claims.key} was started by the runtime {known.kept.runtime}, and the Borglet now uses"
                f" {self.name}; restart the task to open a shell in it"
            )
        try:
            request = self._confinement.shell(known.kept, known.directory, known.supervisor, claims)
        except StartFailed as error:
            raise ShellRefused(str(error)) from error
        if not request.engine:  # an engine with its own port rules cannot enter the container
            request = replace(request, tcp_ports=self._tcp_ports(known.kept.task))
        return await ptys.spawn(request)

    async def close(self) -> None:
        self._runtime_home.closing = True
        await self._exit_watcher.close()
        if all(known.exit is not None for known in self._tasks.values()):
            self._confinement.close()
            self._secrets.close()
            self._runtime_home.tree.remove()


def _delivered(secrets: Sequence[SecretValue]) -> list[SecretRef]:
    """Return the references to these secrets, without their values."""
    return [value.ref() for value in secrets]


def _variables(secrets: Sequence[SecretValue]) -> dict[str, str]:
    """Return the environment variables with secrets. Raises `StartFailed` if a value is not text."""
    found: dict[str, str] = {}
    for value in (value for value in secrets if value.env):
        try:
            found[value.env] = value.value.decode()
        except UnicodeDecodeError:  # the text of the error would contain a part of the value
            text = f"env.{value.env}: secret {value.name} is not text; deliver it as a file, or set it again"
            raise StartFailed(text) from None
    return found
