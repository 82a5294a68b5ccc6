"""Watch the supervisors of tasks, report each end of a task once, and kill remaining processes.

the pidfd of a supervisor is readable ─┬─► exit.json exists ─────────────────────────────────────────────► next_end
                                       └─► it does not: kill the task's processes, write supervisor-lost ─► next_end
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import time

from borglet.messages import EndCause, Exit
from borglet.runtimes.base.runtime import Presence
from borglet.runtimes.home import supervisors
from borglet.runtimes.home.runtime_home import RuntimeHome, SupervisedTask, reap, write_end
from borglet.runtimes.home.taskdirs import SupervisorId
from borglet.runtimes.supervisor import proctable

log = logging.getLogger(__name__)


class ExitWatcher:
    """Watches the supervisors of all tasks of one Borglet, and reports each task that ends."""

    def __init__(self, home: RuntimeHome) -> None:
        self._home = home
        self._ended: asyncio.Queue[Presence] = asyncio.Queue()
        self._under_way: set[asyncio.Task[None]] = set()

    async def next_end(self) -> Presence:
        return await self._ended.get()

    async def close(self) -> None:
        """Wait until every task end that was noticed is handled. Then stop watching."""
        for work in list(self._under_way):
            await work
        for task in self._home.tasks.values():
            self._unwatch(task)

    def watch(self, incarnation: SupervisedTask) -> None:
        assert incarnation.supervisor is not None
        pidfd = supervisors.open_pidfd(incarnation.supervisor)
        if pidfd < 0:
            self._supervisor_gone(incarnation)
        else:
            self.watch_by(incarnation, pidfd)

    def watch_by(self, incarnation: SupervisedTask, pidfd: int) -> None:
        incarnation.pidfd = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._supervisor_gone, incarnation)

    def _supervisor_gone(self, incarnation: SupervisedTask) -> None:
        self._unwatch(incarnation)
        assert incarnation.supervisor is not None
        reap(incarnation.supervisor.pid)
        self.keep(asyncio.get_running_loop().create_task(self._finish(incarnation)))

    def keep(self, work: asyncio.Task[None]) -> None:
        """Keep a reference to the asyncio task `work` until it is done. `close` waits for it."""
        self._under_way.add(work)
        work.add_done_callback(self._under_way.discard)

    def _unwatch(self, incarnation: SupervisedTask) -> None:
        if incarnation.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(incarnation.pidfd)
            os.close(incarnation.pidfd)
            incarnation.pidfd = -1

    async def _finish(self, incarnation: SupervisedTask) -> None:
        self._home.close_door(incarnation)
        exit_ = incarnation.directory.exit() or await self.bury(incarnation)
        self._home.end_session(incarnation)
        await self._home.confinement.clear(incarnation.directory)
        self._home.secrets.remove(incarnation.directory.name)
        incarnation.exit = exit_
        incarnation.metered = None
        self._home.containers.release(incarnation.kept.task.key)
        self._ended.put_nowait(incarnation.presence())

    async def bury(self, incarnation: SupervisedTask) -> Exit:
        """Kill the remaining processes of a task whose supervisor was killed. Write the exit of the task to its
        directory, and return it.
        """
        directory, supervisor = incarnation.directory, incarnation.supervisor
        if supervisor is not None and supervisor.boot_id != proctable.boot_id():
            exit_ = Exit(EndCause.MACHINE_RESTARTED, time.time(), detail="the machine restarted while the task ran")
        else:
            assert supervisor is not None, "it began, so it has a supervisor"
            left = await supervisors.kill_leftovers(directory, supervisor.groups)
            detail = directory.complaint() or "the task's supervisor was killed"
            incarnation.unkillable = bool(left)
            if left:
                detail += f"; the Borglet cannot kill processes {sorted(left)}"
            exit_ = Exit(EndCause.SUPERVISOR_LOST, time.time(), detail=detail)
        write_end(directory, exit_)
        return exit_

    async def give_up(self, incarnation: SupervisedTask, reason: str) -> None:
        """Clean up after a failed start of a task, and store its exit. `reason`: a text for the owner of the job."""
        directory = incarnation.directory
        self._home.close_door(incarnation)
        supervisor = directory.supervisor()
        if supervisor is not None:
            await _supervisor_ended(supervisor)
        incarnation.unkillable = bool(
            await supervisors.kill_leftovers(directory, self._home.tree.groups_of(directory.name))
        )
        self._home.end_session(incarnation)
        await self._home.confinement.clear(directory)
        self._home.secrets.remove(directory.name)
        self._home.containers.release(incarnation.kept.task.key)
        incarnation.exit = Exit(EndCause.START_FAILED, time.time(), detail=reason)
        if directory.path.is_dir() and directory.exit() is None:
            write_end(directory, incarnation.exit)


async def _supervisor_ended(supervisor: SupervisorId) -> None:
    """Wait until a supervisor has ended by itself, and collect its exit status."""
    pidfd = supervisors.open_pidfd(supervisor)
    if pidfd >= 0:
        gone = select.poll()
        gone.register(pidfd, select.POLLIN)
        if not await asyncio.to_thread(gone.poll, supervisors.KILL_TIMEOUT_S * 1000):
            log.warning(
                "the start of a task failed, but the supervisor of the task (process %d) does not end", supervisor.pid
            )
        os.close(pidfd)
    reap(supervisor.pid)
