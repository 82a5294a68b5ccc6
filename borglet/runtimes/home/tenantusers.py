"""Choose the user for tasks of the `process` runtime: one user per tenant.

If all tenants shared one user, their tasks on one machine could signal, trace and read each other.

    home/tenants.json    tenant -> user id of the tenant on this machine

A tenant keeps its user id after its last task has ended, so that no other tenant can read the files of this task. When
all user ids are assigned, a user id without tasks is given to another tenant.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from borglet.files import replace_file
from borglet.messages import RunTask
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.base.task_users import own_uid
from borglet.runtimes.home.taskdirs import TaskRecord

log = logging.getLogger(__name__)

FILE = "tenants.json"
RUNTIME = "process"


def tenant_of(task: RunTask) -> str:
    """Return the tenant in the task's BNS name. If the name has no tenant, return the UID of the job."""
    parts = task.name.split("/")
    return parts[1] if len(parts) == 4 and parts[1] else task.key.job


class TenantUsers:
    """The Unix user ids of the tenants with tasks on this machine, one id per tenant. `first` and `count`: the range of
    ids. The ids are stored in the Borglet's folder `home`. Call `uid_of` from one asyncio loop.
    """

    def __init__(self, home: Path, *, first: int, count: int) -> None:
        self._home, self._first, self._count = home.absolute(), first, count
        self._assigned: dict[str, int] | None = None

    def uid_of(self, task: RunTask, kept: Mapping[str, TaskRecord]) -> int:
        """Return the Unix user id of the task's tenant. If the tenant has no user id, choose one and store it.

        `kept`: the records of all tasks on this machine by directory name. Raises `StartFailed` if all user ids are in
        use, or if the new one cannot be stored.
        """
        if self._assigned is None:
            self._assigned = self._load()
        tenant = tenant_of(task)
        own: set[int] = set()  # numbers of this tenant's tasks
        others: dict[str, int] = {}  # numbers of all other tasks, among them containers, each with its own
        for name, other in kept.items():
            if other.runtime == RUNTIME and tenant_of(other.task) == tenant:
                own.add(other.own_uid)
            else:
                others[f"/{name}"] = other.own_uid
        for uid in (self._assigned.get(tenant, 0), *sorted(own)):
            if self._first <= uid < self._first + self._count and uid not in others.values():
                break
        else:
            uid = self._choose(tenant, others)
        if self._assigned.get(tenant) != uid:
            self._store({**self._assigned, tenant: uid})
        return uid

    def _choose(self, tenant: str, others: dict[str, int]) -> int:
        assert self._assigned is not None
        taken = {name: uid for name, uid in self._assigned.items() if name != tenant} | others
        try:
            return own_uid(tenant, taken, first=self._first, count=self._count)
        except StartFailed:
            uid = own_uid(tenant, others, first=self._first, count=self._count)
            self._assigned = {}  # tenants with tasks on this machine get their present numbers again
            return uid

    def _load(self) -> dict[str, int]:
        try:
            return msgspec.json.decode((self._home / FILE).read_bytes(), type=dict[str, int])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.warning(
                "cannot read %s; the Borglet assigns a Unix user to each tenant again: %s", self._home / FILE, error
            )
            return {}

    def _store(self, assigned: dict[str, int]) -> None:
        try:
            replace_file(self._home / FILE, msgspec.json.encode(assigned))
        except OSError as error:
            raise StartFailed(
                f"the machine could not store the user of the task's tenant: {error}; an SRE can check the machine's"
                " disk"
            ) from error
        self._assigned = assigned
