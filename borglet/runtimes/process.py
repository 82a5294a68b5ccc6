"""The `process` runtime: tasks as ordinary processes, for machines without privilege or without a container engine.

They see what everybody sees of this machine; limits hold as far as `supervised` can enforce them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from borglet.messages import RunTask, ShellClaims
from borglet.runtimes import accounts, launch
from borglet.runtimes.base import StartFailed
from borglet.runtimes.confinement import Plan
from borglet.runtimes.household import SupervisedSettings
from borglet.runtimes.networks import FormerNetworks
from borglet.runtimes.ptys import PtyRequest
from borglet.runtimes.supervised import SupervisedRuntime
from borglet.runtimes.taskdirs import Kept, SupervisorId, TaskDirectory


@dataclass(frozen=True, slots=True)
class ProcessSettings(SupervisedSettings):
    """How the process runtime behaves on this machine."""

    default_user: str = ""  # who runs tasks that name no user, name or number; empty: the Borglet's own user
    users: frozenset[str] = frozenset()  # whom job files may name when the Borglet is root
    path: str = launch.DEFAULT_PATH  # PATH of tasks
    reason: str = ""  # why not the oci runtime, told as an attribute


class OpenProcesses:
    """Confinement by a user and a directory alone."""

    name = "process"

    def __init__(self, home: Path, settings: ProcessSettings) -> None:
        self._settings = settings
        self._former_networks = FormerNetworks(home)

    def attributes(self) -> dict[str, str]:
        reason = {"runtime.reason": self._settings.reason} if self._settings.reason else {}
        return {
            **reason,
            "isolation.user": "own" if self._settings.default_user else "none",
            "isolation.pid": "none",
            "isolation.filesystem": "none",
            "isolation.network": "none",
            "isolation.syscalls": "none",
        }

    def plan(
        self,
        task: RunTask,
        *,
        run: int,
        directory: TaskDirectory,
        trees: Mapping[str, Path],
        kept: Mapping[str, Kept],
    ) -> Plan:
        if task.network != "host":
            raise StartFailed(
                f"network: {task.network!r} needs the oci runtime, and this machine's is process; ask for"
                " network: host, or for a machine with the attribute isolation.network=own"
            )
        if task.root != "host":
            raise StartFailed(
                f"root: {task.root!r} needs the oci runtime, and this machine's is process; ask for root: host,"
                " or for a machine with the attribute runtime=oci"
            )
        packages = str(directory.packages) if trees else ""
        argv = launch.command(task, packages=packages)
        account = self._account(task)
        return Plan(
            account,
            trees,
            {
                "working_directory": launch.working_directory(task, str(directory.work)),
                "argv": argv,
                "environment": self._environment(task, run, directory, packages),
                "user": account,
            },
        )

    def _environment(
        self, task: RunTask, run: int, directory: TaskDirectory, packages: str
    ) -> dict[str, str]:
        environment = launch.environment(
            task,
            run=run,
            home=str(directory.work),
            tmp=str(directory.tmp),
            path=self._settings.path,
            packages=packages,
            alloc=str(directory.alloc or ""),
            identity=str(directory.identity),
        )
        name, _, value = directory.marker.partition("=")
        return environment | {name: value}

    def _account(self, task: RunTask) -> accounts.Account | None:
        return accounts.account_of(
            task.user, default=self._settings.default_user, allowed=self._settings.users
        )

    def shell(
        self, kept: Kept, directory: TaskDirectory, supervisor: SupervisorId, claims: ShellClaims
    ) -> PtyRequest:
        task = kept.task
        packages = str(directory.packages) if directory.packages.exists() else ""
        environment = self._environment(task, kept.run, directory, packages)
        return PtyRequest(
            argv=claims.command or launch.LOGIN_SHELL,
            environment=environment | {"TERM": claims.term},
            directory=launch.working_directory(task, str(directory.work)),
            groups=supervisor.groups,
            user=self._account(task),
            rows=claims.rows,
            cols=claims.cols,
            plain=claims.plain,
        )

    async def furnish(self, directory: TaskDirectory, plan: Plan) -> None:
        directory.link_packages(plan.trees)

    def close(self) -> None:
        self._former_networks.remove()

    async def clear(self, directory: TaskDirectory) -> None:
        """What a task has of a runtime that had networks to give, before this one."""
        await self._former_networks.disconnect(directory.name)


class ProcessRuntime(SupervisedRuntime):
    """All of a home's tasks as ordinary processes."""

    def __init__(self, home: Path, settings: ProcessSettings = ProcessSettings()) -> None:
        super().__init__(home, settings, OpenProcesses(home, settings))
