"""The interface for confining tasks. The runtime `process` confines a task only by its user, `oci` by a container.

start ─► plan (decides, rejects) ─► prepare_container (makes folders, files, networks) ─► supervisor ─► the task
end ───► clear (removes what prepare_container made and nothing else needs)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from borglet.messages import RunTask, ShellClaims
from borglet.runtimes.base.networks import FormerNetworks
from borglet.runtimes.base.task_users import Account
from borglet.runtimes.home.taskdirs import SupervisorId, TaskDirectory, TaskRecord
from borglet.runtimes.supervisor.ptys import PtyRequest


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The decisions about one start of a task: its user, packages and network address."""

    account: Account | None  # user of the task and owner of its folders; None: the Borglet's own user
    trees: Mapping[str, Path]  # directories of the task's packages by mount name
    launch: dict[str, object]  # fields of exec_task.TaskLaunch that depend on the confinement
    own_uid: int = 0  # number reserved for the task (oci) or its tenant (process); 0: the job file names the user
    alloc_group: int = 0  # the only group that may enter the folder of the task's alloc; 0: no change
    address: str = ""  # address of the task's own network; empty: the machine's


class Confinement(ABC):
    """A way to confine all tasks of one Borglet. Call the methods from one asyncio loop; no method blocks the loop."""

    name: str

    def __init__(self, home: Path) -> None:
        self._former_networks = FormerNetworks(home)

    @abstractmethod
    def attributes(self) -> dict[str, str]:
        """Return the attributes `isolation.…` of this confinement, without the attributes of control groups."""

    @abstractmethod
    def plan(
        self,
        task: RunTask,
        run: int,
        directory: TaskDirectory,
        trees: Mapping[str, Path],
        kept: Mapping[str, TaskRecord],
    ) -> LaunchPlan:
        """Return the plan for one start. The only side effect: a new user for the task's tenant may be stored.

        `kept`: the records of all tasks of this Borglet by directory name, including an earlier run of this task.
        Raises `StartFailed` if the task asks for something that is not possible on this machine.
        """

    @abstractmethod
    async def prepare_container(self, directory: TaskDirectory, plan: LaunchPlan) -> None:
        """Create the files and networks that the plan needs. Raises `StartFailed` or OSError if the machine cannot
        create them.
        """

    @abstractmethod
    def launch_with(
        self, directory: TaskDirectory, plan: LaunchPlan, variables: Mapping[str, str]
    ) -> dict[str, object]:
        """Return the fields of `plan.launch` for a task whose environment also has `variables`. Their values are
        secret, so they are written to no disk. Raises OSError if a file in memory cannot be written.
        """

    @abstractmethod
    def shell(
        self, kept: TaskRecord, directory: TaskDirectory, supervisor: SupervisorId, claims: ShellClaims
    ) -> PtyRequest:
        """Return the request that opens a shell with the task's namespaces, control groups, user and environment.

        Raises `StartFailed` or `ShellRefused` if the shell cannot be opened.
        """

    async def clear(self, directory: TaskDirectory) -> None:
        """Remove the network of a task that has ended or failed to start, even if another runtime made the network.

        The kernel removes all other namespaces and mounts with the last process."""
        await self._former_networks.disconnect(directory.name)

    def close(self) -> None:
        """Remove the bridge that connects all networks. Call this when the Borglet ends, if no task runs."""
        self._former_networks.remove()
