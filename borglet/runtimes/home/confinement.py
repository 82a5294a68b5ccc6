"""The interface of the confinement of supervised tasks: by a user alone (`process`), or in a container (`oci`).

start ─► plan (decides, rejects) ─► prepare_container (makes folders, files, networks) ─► supervisor ─► the task
end ───► clear (removes what prepare_container made and nothing else needs)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from borglet.messages import RunTask, ShellClaims
from borglet.runtimes.base.accounts import Account
from borglet.runtimes.base.networks import FormerNetworks
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


@dataclass(frozen=True, slots=True)
class StartRequest:
    """One run of a task that is about to start. See `base.Runtime.start`.

    `kept`: by directory name, all tasks here, an earlier run of this one among them."""

    task: RunTask
    run: int
    directory: TaskDirectory
    trees: Mapping[str, Path]
    kept: Mapping[str, TaskRecord]


class Confinement(ABC):
    """All methods may be called from one asyncio loop only; none blocks it."""

    name: str

    def __init__(self, home: Path) -> None:
        self._former_networks = FormerNetworks(home)

    @abstractmethod
    def attributes(self) -> dict[str, str]:
        """Return the attributes `isolation.…` of this confinement, beyond those of control groups."""

    @abstractmethod
    def plan(self, start: StartRequest) -> LaunchPlan:
        """Decide. Nothing changes but what is stored of the users of tenants. Raises `StartFailed`."""

    @abstractmethod
    async def prepare_container(self, directory: TaskDirectory, plan: LaunchPlan) -> None:
        """Make what the run needs beside its directory. Raises `StartFailed`, OSError."""

    @abstractmethod
    def shell(
        self, kept: TaskRecord, directory: TaskDirectory, supervisor: SupervisorId, claims: ShellClaims
    ) -> PtyRequest:
        """Return the command that enters the running task on a terminal: its namespaces, groups, user and environment.

        Raises `StartFailed`, `ShellRefused`."""

    async def clear(self, directory: TaskDirectory) -> None:
        """Remove the network of a run, also one of an earlier runtime with networks. Called at every end, also for a
        run that never started. All other namespaces and mounts end with the last process."""
        await self._former_networks.disconnect(directory.name)

    def close(self) -> None:
        """Remove what was made for all tasks. Called when the Borglet ends and leaves no task."""
        self._former_networks.remove()
