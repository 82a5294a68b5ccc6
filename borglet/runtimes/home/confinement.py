"""The port between supervised tasks and how their processes are shut in: barely (`process`), in a container (`oci`).

start ─► plan (decides, refuses) ─► prepare_container (makes folders, files, networks) ─► supervisor ─► the task
end ───► clear (takes away what prepare_container made and nothing else needs)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from borglet.messages import RunTask, ShellClaims
from borglet.runtimes.base.accounts import Account
from borglet.runtimes.home.taskdirs import SupervisorId, TaskDirectory, TaskRecord
from borglet.runtimes.supervisor.ptys import PtyRequest


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How one run will be started."""

    account: Account | None  # user of the task and owner of its folders; None: the Borglet's own user
    trees: Mapping[str, Path]  # its packages' directories by the names they appear under
    launch: dict[str, object]  # fields of exec_task.TaskLaunch, beyond those that every supervised task has
    own_uid: int = 0  # its own (oci) or its tenant's (process), which no other may have meanwhile; 0: another user
    alloc_group: int = 0  # the group that alone may enter the folder of its alloc; 0: left as it is
    address: str = ""  # of its own network; empty: the machine's


class Confinement(Protocol):
    """All methods may be called from one asyncio loop only; none blocks it."""

    name: str

    def attributes(self) -> dict[str, str]:
        """`isolation.…`: what it keeps tasks from, beyond what control groups do."""

    def plan(
        self,
        task: RunTask,
        *,
        run: int,
        directory: TaskDirectory,
        trees: Mapping[str, Path],
        kept: Mapping[str, TaskRecord],
    ) -> LaunchPlan:
        """Decide. Nothing changes but what is stored of the users of tenants. Raises `StartFailed`.

        `trees`: see `base.Runtime.start`. `kept`: by directory name, all tasks here, an earlier run of this one
        among them."""

    async def prepare_container(self, directory: TaskDirectory, plan: LaunchPlan) -> None:
        """Make what the run needs beside its directory. Raises `StartFailed`, OSError."""

    async def clear(self, directory: TaskDirectory) -> None:
        """Take away what a run left beside its directory; called at every end, also for one that never ran."""

    def close(self) -> None:
        """The Borglet ends and leaves no task: take away what was made for all of them."""

    def shell(
        self, kept: TaskRecord, directory: TaskDirectory, supervisor: SupervisorId, claims: ShellClaims
    ) -> PtyRequest:
        """Return the command that enters the running task on a terminal: its namespaces, groups, user and environment.

        Raises `StartFailed`, `ShellRefused`."""
