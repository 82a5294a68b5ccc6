"""Run the Borglet of one real machine: open its home folder, its runtime and its connection to the cell, and run until
SIGTERM.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import math
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from borglet.agent import Agent, steady_clock
from borglet.backoff import Backoff
from borglet.health_prober import SocketProber
from borglet.identity.credentials import Credentials
from borglet.identity.join import LinkUnreachable, join_cell, join_request
from borglet.identity.saved_state import DiskStore, Identity
from borglet.identity.signatures import authority_keys
from borglet.link.client import Introduction, Link, link_url
from borglet.link.shells import Shells
from borglet.locks.doors import LockDoors
from borglet.locks.keeper import LockKeeper
from borglet.machine_specs import MachineSpec
from borglet.messages import EndCause, JoinRequest
from borglet.packages.fetch import Fetcher
from borglet.packages.installing import PackageManager, PackageSettings
from borglet.packages.peers import PeerServer, PeerSettings
from borglet.packages.sources import LinkSources
from borglet.packages.store import PackageStore
from borglet.pressure.control_loop import Guard
from borglet.pressure.readings import MachineReadings
from borglet.runtimes.home.supervised_runtime import SupervisedRuntime
from borglet.runtimes.measuring.disk_usage import disk_bytes
from borglet.runtimes.process import ProcessRuntime
from borglet.runtimes.runtime_choice import RuntimeWishes, open_runtime
from borglet.runtimes.supervisor import proctable
from borglet.runtimes.supervisor.exec_task import no_core_dumps
from borglet.task_secrets import LinkSecrets

log = logging.getLogger(__name__)

SOFTWARE = "borglet 0.2.0"
LOG_SWEEP_INTERVAL_S = 600.0
# Unused packages are removed at this interval, if the disk is short.
COLLECT_INTERVAL_S = 30.0
# The time to wait for a link that does not answer yet when the machine joins.
JOIN_WAIT_S = 30.0
# The time that `stop-all` waits for a task after its notice.
STOP_ALL_MARGIN_S = 15.0


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """The command-line options of `borglet run`, which describe this machine and its cell."""

    home: Path
    link: str
    machine: MachineSpec  # its capacity and attributes replace the measured ones
    ports: tuple[int, int] = (20000, 29999)  # first and last port given to tasks
    join_token: str = ""
    package_bytes: int | None = None  # disk space for packages; None: see `package_budget`
    peer_port: int = 0  # port at which other machines download packages; 0: any free port, negative: no downloads
    peer_uploads: int = 4  # uploads at the same time
    wishes: RuntimeWishes = field(default_factory=RuntimeWishes)


def run_machine(settings: MachineSettings) -> None:
    """Run the Borglet until SIGTERM or SIGINT. The tasks keep running. Raises `HomeInUse` if another Borglet uses the
    same home folder, `JoinFailed` if the machine cannot join the cell, and `BadMachine` if a setting is wrong.
    """
    no_core_dumps()
    store = DiskStore(settings.home)
    with store.lock():
        runtime = open_runtime(settings.home, settings.wishes)
        measured = runtime.capacity()
        given = settings.package_bytes
        budget = PackageSettings(budget_bytes=given if given is not None else package_budget(measured["disk"]))
        # The capacity must not depend on the installed packages, so it excludes the whole budget.
        installed = disk_bytes((settings.home / "packages",))
        measured["disk"] = max(0, measured["disk"] + installed - budget.budget_bytes)
        machine = dataclasses.replace(settings.machine, capacity=measured | settings.machine.capacity)
        attributes = {**_machine_attributes(), **runtime.attributes()}
        request = join_request(machine, attributes, settings.join_token, ports=settings.ports)
        identity = _join(store, settings.link, request)
        asyncio.run(
            _serve(
                store,
                runtime,
                identity,
                settings,
                Introduction(proctable.boot_id(), SOFTWARE, request.attributes, machine.capacity),
                budget,
            )
        )


def package_budget(disk_bytes: int) -> int:
    """Return how many bytes of the disk packages may use by default: a tenth of the disk, but at most 20 GiB."""
    return min(20 * 2**30, disk_bytes // 10)


def _join(store: DiskStore, link: str, request: JoinRequest) -> Identity:
    """Join the cell through the server at the address `link`. If the server does not answer, try again for a limited
    time. Raises `JoinFailed` if the machine cannot join.
    """
    deadline = time.monotonic() + JOIN_WAIT_S
    backoff = Backoff(random.Random(), most_s=1.0)
    while True:
        try:
            return join_cell(store, link, request)
        except LinkUnreachable as error:
            if time.monotonic() > deadline:
                raise
            log.info("%s; trying again", error)
            time.sleep(backoff.next_s())


async def _serve(
    store: DiskStore,
    runtime: SupervisedRuntime,
    identity: Identity,
    settings: MachineSettings,
    introduction: Introduction,
    budget: PackageSettings,
) -> None:
    loop = asyncio.get_running_loop()
    asked_to_end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_end.set)
    readings = MachineReadings(settings.home, introduction.capacity)
    credentials = Credentials(identity, store.authority(), store)
    runtime.api_url = credentials.api_url
    sources = LinkSources(settings.link, credentials)
    packages = PackageManager(
        PackageStore(settings.home, boot_id=introduction.boot_id),
        sources,
        Fetcher(sources),
        now=time.time,
        settings=budget,
    )
    peers = PeerServer(
        packages.archive,
        lambda: authority_keys(store.authority()),
        now=time.time,
        settings=PeerSettings(uploads=settings.peer_uploads),
    )
    locks = LockKeeper()
    doors = LockDoors(locks)
    runtime.serve_doors(doors)
    await _serve_peers(peers, packages, settings)
    packages.open()
    agent = Agent(
        runtime,
        store,
        SocketProber(settings.machine.address),
        packages,
        clock=steady_clock(),
        guard=Guard(runtime, readings, free_disk=packages.collect),
        secrets=LinkSecrets(settings.link, credentials),
    )
    await agent.open()
    assert agent.failed is not None
    log.info("%s adopted %d tasks", identity.hostname, len(agent.state.incarnations()))
    await agent.settle()
    shells = Shells(agent, credentials, link_url(settings.link, "/shell"), store.authority)
    link = Link(
        agent,
        credentials,
        settings.link,
        introduction,
        rng=random.Random(),
        welcomed=packages.publish_port,
        shells=shells,
        locks=locks,
    )
    gc.collect()
    gc.freeze()
    lasting: set[asyncio.Future[Any]] = {
        loop.create_task(asked_to_end.wait()),
        loop.create_task(link.run()),
        loop.create_task(agent.sample_forever()),
        loop.create_task(_sweep_logs(runtime)),
        loop.create_task(_collect_packages(packages)),
    }
    try:
        done, _ = await asyncio.wait({agent.failed, *lasting}, return_when=asyncio.FIRST_COMPLETED)
        for finished in done:
            finished.result()
    finally:
        for task in lasting:
            task.cancel()
        await asyncio.gather(*lasting, return_exceptions=True)
        await peers.close()
        await shells.close()
        doors.stop()
        await agent.close()
    log.info("%s ends; its tasks keep running", identity.hostname)


async def _serve_peers(peers: PeerServer, packages: PackageManager, settings: MachineSettings) -> None:
    """Serve packages to other machines, if the settings allow it. If the port cannot be opened, do not serve
    packages.
    """
    if settings.peer_port < 0:
        return
    address = settings.machine.address
    try:
        packages.port = await peers.open(address, settings.peer_port)
    except OSError as error:
        log.warning("other machines cannot download packages from this one: %s", error)
    else:
        log.info("other machines can download packages at %s:%d", address, packages.port)


async def _collect_packages(packages: PackageManager) -> None:
    await packages.checked()
    while True:
        try:
            await packages.collect()
        except OSError:
            log.exception("cannot delete unused packages; the Borglet tries again later")
        await asyncio.sleep(COLLECT_INTERVAL_S)


async def _sweep_logs(runtime: SupervisedRuntime) -> None:
    while True:
        try:
            for name in await runtime.sweep(time.time()):
                log.info("deleted the logs of task %s: they expired", name)
        except OSError:
            log.exception("cannot delete old logs; the Borglet tries again later")
        await asyncio.sleep(LOG_SWEEP_INTERVAL_S)


def stop_all(home: Path, *, wait_s: float, notice_s: float = math.inf) -> int:
    """Stop all tasks of the Borglet with the folder `home`, and return their number. The time between SIGTERM and
    SIGKILL is the notice of each task, but at most `notice_s` seconds.

    The next Borglet starts the tasks again if the cell still lists them. Raises `HomeInUse` if a Borglet still uses the
    folder after `wait_s` seconds, and TimeoutError if a task does not end.
    """
    if not home.is_dir():
        return 0
    with DiskStore(home).lock(wait_s=wait_s):
        return asyncio.run(_stop_all(ProcessRuntime(home), notice_s))


async def _stop_all(runtime: SupervisedRuntime, notice_s: float) -> int:
    running = {presence.key: presence.task for presence in await runtime.presences() if presence.exit is None}
    for key, task in running.items():
        detail = "`borglet stop-all` stopped all tasks of the machine"
        await runtime.stop(key, notice_s=min(task.notice_s, notice_s), cause=EndCause.STOPPED, detail=detail)
    left = set(running)
    longest_s = max((task.notice_s for task in running.values()), default=0.0)
    margin_s = min(longest_s, notice_s) + STOP_ALL_MARGIN_S
    try:
        async with asyncio.timeout(margin_s):
            while left:
                left.discard((await runtime.next_end()).key)
    except TimeoutError:
        names = ", ".join(sorted(running[key].name for key in left))
        raise TimeoutError(f"tasks did not end within {margin_s:g} s: {names}; run `borglet stop-all` again") from None
    finally:
        await runtime.close()
    return len(running)


def _machine_attributes() -> dict[str, str]:
    system = os.uname()
    return {"architecture": system.machine, "kernel": system.release}
