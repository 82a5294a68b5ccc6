"""Find the tasks that an earlier Borglet with the same home folder started. A new Borglet does this once, before
anything else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

from borglet.messages import EndCause, Exit
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.home import supervisors
from borglet.runtimes.home.exit_watcher import ExitWatcher
from borglet.runtimes.home.runtime_home import RuntimeHome, SupervisedTask, write_end
from borglet.runtimes.home.taskdirs import TaskDirectory, key_of
from borglet.runtimes.supervisor import proctable

log = logging.getLogger(__name__)


async def adopt(home: RuntimeHome, exit_watcher: ExitWatcher) -> None:
    """Fill `home.tasks` from the directories of tasks, and watch the tasks that still run."""
    for entry in sorted(os.scandir(home.home / "tasks"), key=lambda entry: entry.name):
        await _adopt_directory(home, exit_watcher, entry.name)
    home.containers.settle()
    # An earlier release may have started them with other classes.
    home.behave(home.tasks.values())
    present = {incarnation.directory.name for incarnation in home.tasks.values()}
    home.tree.sweep(present)
    home.secrets.sweep({known.directory.name for known in home.tasks.values() if known.exit is None})
    # There may be millions of files. Running tasks must not wait for them.
    exit_watcher.keep(asyncio.get_running_loop().create_task(home.empty_trash()))


async def _adopt_directory(home: RuntimeHome, exit_watcher: ExitWatcher, name: str) -> None:
    key = key_of(name)
    if key is None:
        log.warning("tasks/%s is not the directory of a task; the Borglet leaves it unchanged", name)
        return
    directory = TaskDirectory(home.home, key)
    kept = directory.kept()
    if kept is not None and kept.task.alloc is not None:
        try:
            directory = home.directory_of(kept.task)
        except StartFailed as error:  # a full disk: running tasks continue
            log.error(
                "the Borglet found task %s after a restart, and manages it without the folder of its alloc: %s",
                name,
                error,
            )
    supervisor = directory.supervisor()
    if kept is None:
        log.warning("task %s has no readable task.json; the Borglet kills its processes and removes its files", name)
        await supervisors.kill_leftovers(directory, supervisor.groups if supervisor else {})
        await home.confinement.clear(directory)
        home.discard(directory)
        return
    incarnation = SupervisedTask(directory, kept, directory.exit(), supervisor)
    home.tasks[kept.task.key] = incarnation
    if incarnation.exit is not None:
        await home.confinement.clear(directory)
        return
    same_boot = supervisor is None or supervisor.boot_id == proctable.boot_id()
    if supervisor is not None and same_boot:
        pidfd = supervisors.open_pidfd(supervisor)
        if pidfd >= 0 and await supervisors.lives(supervisor, directory, pidfd):
            home.containers.adopt(kept.task, supervisor.groups)
            incarnation.metered = home.metered(incarnation, cpu_ns=None)
            exit_watcher.watch_by(incarnation, pidfd)
            return
        if pidfd >= 0:
            os.close(pidfd)
    if same_boot and not directory.begun() and directory.exit() is None:
        await _clear_unfinished_start(home, incarnation)
        return
    # The supervisor may have written the exit since the last check.
    incarnation.exit = directory.exit() or await exit_watcher.bury(incarnation)
    await home.confinement.clear(directory)


async def _clear_unfinished_start(home: RuntimeHome, incarnation: SupervisedTask) -> None:
    """Clean up after a start that the last Borglet did not finish. The task starts again; this is not a failure."""
    directory, supervisor = incarnation.directory, incarnation.supervisor
    await supervisors.kill_leftovers(directory, supervisor.groups if supervisor else {})
    await home.confinement.clear(directory)
    if incarnation.kept.run == 1:
        del home.tasks[incarnation.kept.task.key]
        home.discard(directory)
        return
    incarnation.exit = Exit(EndCause.STOPPED, time.time(), detail="the Borglet ended while it restarted the task")
    write_end(directory, incarnation.exit)
