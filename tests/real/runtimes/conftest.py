"""Fixtures for tests of runtimes with real processes. Tasks that a test leaves running are killed after it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from borglet.messages import EndCause
from borglet.runtimes.oci.oci import OciSettings
from borglet.runtimes.process import ProcessSettings
from tests.real.runtimes.machine import BOUND_S, TENANTS, Machine, may_limit, open_to_users

# Containers need root, and so do users per tenant.
MODES = ["auto", "polled", *(["oci", "tenants"] if may_limit() else [])]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run each `async def` test in its own event loop, and fail it after a bounded time."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), BOUND_S))
    return True


@pytest.fixture(params=MODES[:2])
def bare_machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """Yield a machine that runs tasks as processes, once with control groups (`auto`) and once polled."""
    machine = Machine(tmp_path / "home", ProcessSettings(isolation=request.param, disk_interval_s=0.0))
    yield machine
    asyncio.run(_clean_up(machine))


@pytest.fixture(params=MODES)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """Yield a machine with an empty home, once per mode of running tasks.

    `auto` uses control groups if the tests run as root; otherwise it polls usage, as `polled` does. In `tenants` each
    tenant's tasks run as that tenant's user. `oci` uses containers.
    """
    if request.param == "oci":
        machine = Machine(tmp_path / "home", OciSettings(disk_interval_s=0.0))
    elif request.param == "tenants":
        machine = open_to_users(Machine(tmp_path / "home", ProcessSettings(disk_interval_s=0.0, **TENANTS)))
    else:
        settings = ProcessSettings(isolation=request.param, disk_interval_s=0.0)
        machine = Machine(tmp_path / "home", settings)
    yield machine
    asyncio.run(_clean_up(machine))


async def _clean_up(machine: Machine) -> None:
    runtime = machine.open()
    running = [presence for presence in await runtime.presences() if presence.exit is None]
    for presence in running:
        await runtime.stop(presence.key, notice_s=0, cause=EndCause.STOPPED)
    for _ in running:
        await asyncio.wait_for(runtime.next_end(), BOUND_S)
    for presence in await runtime.presences():
        await runtime.remove(presence.key)
    await runtime.close()
