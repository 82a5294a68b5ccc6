"""Test doubles for a Borglet: a runtime and a store that fail on demand, and an empty package manager."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from borglet.identity.saved_state import Identity, MemoryStore
from borglet.messages import (
    AllocReport,
    EndCause,
    Exit,
    LogChunk,
    LogRequest,
    PackageRef,
    RunAlloc,
    RunTask,
    SecretRef,
    SecretValue,
    ShellClaims,
    TaskKey,
    Usage,
)
from borglet.packages.base import InUse, PackageMissing
from borglet.runtimes.base.runtime import NO_TREES, Presence, Runtime
from borglet.runtimes.cgroups.limits import Grant
from borglet.runtimes.simulated import SimulatedRuntime
from borglet.runtimes.supervisor.ptys import Pty
from borglet.state.instructions import Remembered


class FailingRuntime:
    """A runtime that passes each call to another runtime, unless a failure was ordered for that call.

    `fail("start", StartFailed("no such file"), times=3)` makes the next three starts fail. `calls` lists all calls as
    (method, key).
    """

    name = "failing"
    api_url = ""

    def __init__(self, inner: Runtime) -> None:
        self._inner = inner
        self._failures: dict[str, deque[Exception]] = {}
        self.calls: list[tuple[str, TaskKey]] = []

    def fail(self, method: str, error: Exception, *, times: int = 1) -> None:
        self._failures.setdefault(method, deque()).extend([error] * times)

    def _raise_due(self, method: str) -> None:
        failures = self._failures.get(method)
        if failures:
            raise failures.popleft()

    def attributes(self) -> dict[str, str]:
        return self._inner.attributes()

    def capacity(self) -> dict[str, int]:
        return self._inner.capacity()

    async def start(
        self, task: RunTask, *, run: int, trees: Mapping[str, Path] = NO_TREES, secrets: Sequence[SecretValue] = ()
    ) -> None:
        self.calls.append(("start", task.key))
        self._raise_due("start")
        await self._inner.start(task, run=run, trees=trees, secrets=secrets)

    async def stop(self, key: TaskKey, *, notice_s: float, cause: EndCause, detail: str = "") -> None:
        self.calls.append(("stop", key))
        self._raise_due("stop")
        await self._inner.stop(key, notice_s=notice_s, cause=cause, detail=detail)

    async def resize(self, task: RunTask) -> None:
        self.calls.append(("resize", task.key))
        self._raise_due("resize")
        await self._inner.resize(task)

    async def identify(self, key: TaskKey, token: str) -> None:
        self.calls.append(("identify", key))
        self._raise_due("identify")
        await self._inner.identify(key, token)

    async def renew_secrets(self, key: TaskKey, secrets: Sequence[SecretValue], *, signal: bool = False) -> None:
        self.calls.append(("renew_secrets", key))
        self._raise_due("renew_secrets")
        await self._inner.renew_secrets(key, secrets, signal=signal)

    def secrets_of(self, key: TaskKey) -> list[SecretRef]:
        return self._inner.secrets_of(key)

    async def adjust(self, grants: Mapping[TaskKey, Grant], *, batch_milli: int, batch_idle: bool = True) -> None:
        self._raise_due("adjust")
        await self._inner.adjust(grants, batch_milli=batch_milli, batch_idle=batch_idle)

    async def remove(self, key: TaskKey) -> None:
        self.calls.append(("remove", key))
        self._raise_due("remove")
        await self._inner.remove(key)

    async def hold_allocs(self, allocs: Sequence[RunAlloc], dropped: Collection[TaskKey]) -> None:
        self._raise_due("hold_allocs")
        await self._inner.hold_allocs(allocs, dropped)

    def allocs(self) -> list[AllocReport]:
        return self._inner.allocs()

    def addresses(self) -> dict[TaskKey, str]:
        return self._inner.addresses()

    async def presences(self) -> list[Presence]:
        self._raise_due("presences")
        return await self._inner.presences()

    async def next_end(self) -> Presence:
        self._raise_due("next_end")
        return await self._inner.next_end()

    async def sample(self) -> dict[TaskKey, Usage]:
        self._raise_due("sample")
        return await self._inner.sample()

    async def ready(self, keys: Collection[TaskKey]) -> dict[TaskKey, int]:
        return await self._inner.ready(keys)

    async def read_log(self, request: LogRequest) -> LogChunk:
        self._raise_due("read_log")
        return await self._inner.read_log(request)

    async def open_shell(self, claims: ShellClaims) -> Pty:
        self._raise_due("open_shell")
        return await self._inner.open_shell(claims)

    async def close(self) -> None:
        await self._inner.close()


class FailingStore(MemoryStore):
    """A store in memory whose saves raise `error` while `error` is set."""

    def __init__(self, remembered: Remembered | None = None) -> None:
        super().__init__(remembered)
        self.error: OSError | None = None

    def save(self, remembered: Remembered) -> None:
        if self.error is not None:
            raise self.error
        super().save(remembered)


class NoPackages:
    """A package manager of a Borglet that has no packages and raises `PackageMissing` when a task needs one."""

    def bind(self, in_use: InUse) -> None:
        pass

    async def install(self, packages: Sequence[PackageRef]) -> None:
        if packages:
            raise PackageMissing(f"package {packages[0].name!r}: this Borglet installs no packages")

    def trees(self, packages: Sequence[PackageRef]) -> Mapping[str, Path]:
        if packages:
            raise PackageMissing(f"package {packages[0].name!r}: this Borglet installs no packages")
        return {}

    def installed(self) -> list[str]:
        return []

    async def close(self) -> None:
        pass


def end_task(runtime: SimulatedRuntime, key: TaskKey, exit_: Exit) -> None:
    """End a running task of a simulated machine at once, with the given exit."""
    runtime._end(runtime._tasks[key], exit_)


class MemoryKeeper:
    """A store in memory for a machine's credentials and its cell's certificate authority."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.authority = ""

    def keep_identity(self, identity: Identity) -> None:
        self.identity = identity

    def keep_authority(self, pem: str) -> None:
        self.authority = pem
