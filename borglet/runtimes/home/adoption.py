"""Adoption: find what an earlier Borglet of this home started, once, before anything else."""

from __future__ import annotations

import asyncio
import logging
import os
import time

from borglet.messages import EndCause, Exit, TaskKey
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.home import supervisors
from borglet.runtimes.home.exit_watcher import ExitWatcher
from borglet.runtimes.home.runtime_home import RuntimeHome, SupervisedTask, write_end
from borglet.runtimes.home.taskdirs import TaskDirectory
from borglet.runtimes.supervisor import proctable

log = logging.getLogger(__name__)


class Adoption:
    def __init__(self, runtime_home: RuntimeHome, exit_watcher: ExitWatcher) -> None:
        self._runtime_home, self._exit_watcher = runtime_home, exit_watcher

    async def adopt(self) -> None:
        for entry in sorted(os.scandir(self._runtime_home.home / "tasks"), key=lambda entry: entry.name):
            await self._adopt_directory(entry.name)
        self._runtime_home.containers.settle()
        # An earlier release may have started them with other classes.
        self._runtime_home.behave(self._runtime_home.tasks.values())
        if self._runtime_home.tree is not None:
            self._runtime_home.tree.sweep(
                {incarnation.directory.name for incarnation in self._runtime_home.tasks.values()}
            )
        # There may be millions of files. Running tasks must not wait for them.
        self._exit_watcher.keep(asyncio.get_running_loop().create_task(self._runtime_home.empty_trash()))

    async def _adopt_directory(self, name: str) -> None:
        job, _, rest = name.partition(".")
        index, _, incarnation_number = rest.partition(".")
        if not (index.isdigit() and incarnation_number.isdigit()):
            log.warning("tasks/%s does not belong to the Borglet, which leaves it unchanged", name)
            return
        directory = TaskDirectory(self._runtime_home.home, TaskKey(job, int(index), int(incarnation_number)))
        kept = directory.kept()
        if kept is not None and kept.task.alloc is not None:
            try:
                directory = self._runtime_home.directory_of(kept.task)
            except StartFailed as error:  # a full disk: running tasks continue
                log.error("adopting task %s without its alloc: %s", name, error)
        supervisor = directory.supervisor()
        if kept is None:
            log.warning(
                "task %s has no readable task.json; the Borglet kills its processes and removes its files", name
            )
            await supervisors.kill_leftovers(directory, supervisor.groups if supervisor else {})
            await self._runtime_home.confinement.clear(directory)
            self._runtime_home.discard(directory)
            return
        incarnation = SupervisedTask(directory, kept, directory.exit(), supervisor)
        self._runtime_home.tasks[kept.task.key] = incarnation
        if incarnation.exit is not None:
            await self._runtime_home.confinement.clear(directory)
            return
        same_boot = supervisor is None or supervisor.boot_id == proctable.boot_id()
        if supervisor is not None and same_boot:
            pidfd = supervisors.open_pidfd(supervisor)
            if pidfd >= 0 and await supervisors.lives(supervisor, directory, pidfd):
                self._runtime_home.containers.adopt(kept.task, supervisor.groups)
                incarnation.metered = self._runtime_home.metered(incarnation, cpu_ns=None)
                self._exit_watcher.watch_by(incarnation, pidfd)
                return
            if pidfd >= 0:
                os.close(pidfd)
        if same_boot and not directory.begun() and directory.exit() is None:
            await self._never_ran(incarnation)
            return
        # It may have written its end since the last check.
        incarnation.exit = directory.exit() or await self._exit_watcher.bury(incarnation)
        await self._runtime_home.confinement.clear(directory)

    async def _never_ran(self, incarnation: SupervisedTask) -> None:
        """Clear a start that the last Borglet did not finish, so that the task starts again. It is not a failure."""
        directory, supervisor = incarnation.directory, incarnation.supervisor
        await supervisors.kill_leftovers(directory, supervisor.groups if supervisor else {})
        await self._runtime_home.confinement.clear(directory)
        if incarnation.kept.run == 1:
            del self._runtime_home.tasks[incarnation.kept.task.key]
            self._runtime_home.discard(directory)
            return
        incarnation.exit = Exit(EndCause.STOPPED, time.time(), detail="the Borglet ended while it restarted the task")
        write_end(directory, incarnation.exit)
