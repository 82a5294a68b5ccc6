"""The `process` runtime: tasks are ordinary processes. It is for machines on which the Borglet is not root or that have
no container engine.

Tasks see the whole machine, like any user. The module `supervised_runtime` enforces the limits of the tasks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from borglet.messages import CONFIG, SECRET, RunTask, ShellClaims
from borglet.runtimes.base import task_command, task_users
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.base.secret_files import CONFIGS, SecretFiles
from borglet.runtimes.home.chown_files import hand_over
from borglet.runtimes.home.confinement import Confinement, LaunchPlan
from borglet.runtimes.home.runtime_home import SupervisedSettings
from borglet.runtimes.home.supervised_runtime import SupervisedRuntime
from borglet.runtimes.home.taskdirs import SupervisorId, TaskDirectory, TaskRecord
from borglet.runtimes.home.tenantusers import TenantUsers
from borglet.runtimes.supervisor.ptys import PtyRequest


@dataclass(frozen=True, slots=True)
class ProcessSettings(SupervisedSettings):
    """The settings of the process runtime on this machine."""

    default_user: str = ""  # user (name or number) of tasks whose job file names none; empty: the Borglet's own user
    first_uid: int = 0  # first number of the users of tenants
    uids: int = 0  # number of users of tenants; 0: `default_user` runs the tasks of all tenants
    users: frozenset[str] = frozenset()  # users that job files may name if the Borglet is root
    path: str = task_command.DEFAULT_PATH  # PATH of tasks
    reason: str = ""  # the reason not to use the oci runtime, reported as an attribute


class OpenProcesses(Confinement):
    """Confines a task only by its user and its directory, without namespaces."""

    name = "process"

    def __init__(self, home: Path, settings: ProcessSettings) -> None:
        super().__init__(home)
        self._settings = settings
        self._secrets = SecretFiles(home.absolute())
        self._tenants = TenantUsers(home, first=settings.first_uid, count=settings.uids) if settings.uids else None

    def attributes(self) -> dict[str, str]:
        reason = {"runtime.reason": self._settings.reason} if self._settings.reason else {}
        user = "tenant" if self._tenants is not None else "own" if self._settings.default_user else "none"
        return {
            **reason,
            "isolation.user": user,
            "isolation.pid": "none",
            "isolation.filesystem": "none",
            "isolation.network": "none",
            "isolation.syscalls": "none",
        }

    def plan(
        self,
        task: RunTask,
        run: int,
        directory: TaskDirectory,
        trees: Mapping[str, Path],
        kept: Mapping[str, TaskRecord],
    ) -> LaunchPlan:
        if task.network != "host":
            raise StartFailed(
                f"network: {task.network!r} needs the oci runtime, and this machine uses the process runtime; use"
                " network: host, or require a machine with the attribute isolation.network=own"
            )
        if task.root != "host":
            raise StartFailed(
                f"root: {task.root!r} needs the oci runtime, and this machine uses the process runtime; use root: host,"
                " or require a machine with the attribute runtime=oci"
            )
        packages = str(directory.packages) if trees else ""
        argv = task_command.command(task, packages=packages)
        working_directory = task_command.working_directory(task, str(directory.work))
        environment = self._environment(task, run, directory, packages)
        account = self._account(task)
        tenant_uid = self._tenants.uid_of(task, kept) if self._tenants is not None else 0
        if tenant_uid and not task.user:
            account = (tenant_uid, tenant_uid, [])
        elif tenant_uid and account is not None and directory.alloc is not None:
            account = (*account[:2], [*account[2], tenant_uid])  # so that the task can enter its alloc
        return LaunchPlan(
            account,
            trees,
            {"working_directory": working_directory, "argv": argv, "environment": environment, "user": account},
            own_uid=0 if task.user else tenant_uid,
            alloc_group=0 if _shares_alloc_with_former_user(task, kept) else tenant_uid,
        )

    def _environment(self, task: RunTask, run: int, directory: TaskDirectory, packages: str) -> dict[str, str]:
        environment = task_command.environment(
            task,
            run=run,
            home=str(directory.work),
            tmp=str(directory.tmp),
            path=self._settings.path,
            packages=packages,
            alloc=str(directory.alloc or ""),
            identity=str(directory.identity),
            secrets=str(directory.secrets) if any(ref.kind == SECRET and ref.file for ref in task.secrets) else "",
            configs=str(directory.secrets / CONFIGS) if any(ref.kind == CONFIG for ref in task.secrets) else "",
            locks=self._secrets.socket_path(directory.name) if task.locks else "",
        )
        name, _, value = directory.marker.partition("=")
        return environment | {name: value}

    def launch_with(
        self, directory: TaskDirectory, plan: LaunchPlan, variables: Mapping[str, str]
    ) -> dict[str, object]:
        return {**plan.launch, "environment": {**plan.launch["environment"], **variables}}  # type: ignore[dict-item]

    def _account(self, task: RunTask) -> task_users.Account | None:
        return task_users.account_of(task.user, default=self._settings.default_user, allowed=self._settings.users)

    def shell(
        self, kept: TaskRecord, directory: TaskDirectory, supervisor: SupervisorId, claims: ShellClaims
    ) -> PtyRequest:
        task = kept.task
        packages = str(directory.packages) if directory.packages.exists() else ""
        environment = self._environment(task, kept.run, directory, packages)
        return PtyRequest(
            argv=claims.command or task_command.LOGIN_SHELL,
            environment=environment | {"TERM": claims.term},
            directory=task_command.working_directory(task, str(directory.work)),
            groups=supervisor.groups,
            user=self._running_account(task, directory),
            rows=claims.rows,
            cols=claims.cols,
            plain=claims.plain,
        )

    def _running_account(self, task: RunTask, directory: TaskDirectory) -> task_users.Account | None:
        """Return the user of a running task, read from the owner of its folder. Return None if it is the Borglet's own
        user.
        """
        about = os.stat(directory.work)
        if about.st_uid == os.geteuid():
            return None
        account = self._account(task)
        groups = account[2] if account is not None and account[0] == about.st_uid else []
        if directory.alloc is not None and (group := os.stat(directory.alloc).st_gid):
            groups = [*groups, group]
        return about.st_uid, about.st_gid, groups

    async def prepare_container(self, directory: TaskDirectory, plan: LaunchPlan) -> None:
        directory.link_packages(plan.trees)
        if directory.alloc is not None and plan.alloc_group:
            await asyncio.to_thread(_close_alloc, directory.alloc, plan.alloc_group)


def _shares_alloc_with_former_user(task: RunTask, kept: Mapping[str, TaskRecord]) -> bool:
    """Return whether the task's alloc has another task that an earlier release of the Borglet started. That task does
    not have the tenant's own user, so the alloc must stay open for other users.
    """
    return task.alloc is not None and any(
        other.task.alloc == task.alloc
        and other.task.key != task.key
        and not other.own_uid
        and not other.task.user
        and other.runtime == "process"
        for other in kept.values()
    )


def _close_alloc(folder: Path, group: int) -> None:
    """Let only the tenant's user enter the folder of an alloc. `group`: the id of the tenant's user, and of its group.
    In earlier releases all tenants shared one user. The files of that user in the folder now get the tenant's user as
    their owner.
    """
    if os.stat(folder).st_gid != group:
        hand_over(folder / "shared", (group, group), former=task_users.TASK_UID, itself=False)
        os.chown(folder, -1, group)
    folder.chmod(0o710)


class ProcessRuntime(SupervisedRuntime):
    """The runtime that runs the tasks of one Borglet as ordinary processes."""

    def __init__(self, home: Path, settings: ProcessSettings = ProcessSettings()) -> None:
        super().__init__(home, settings, OpenProcesses(home, settings))
