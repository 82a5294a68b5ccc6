"""Thousands of simulated machines in one process. Their tasks are simulated, but each machine has a real agent and
a real connection.

    machines ─► join (500 per request) ─► fleet.json ─► one Agent and one Link each ─► the link
                                                  one sampler for all, a few machines at a time

One file holds the secrets of all machines. Their tasks end with the process.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import functools
import gc
import logging
import random
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from borglet.agent import Agent, AgentSettings, Clock, steady_clock
from borglet.files import replace_file
from borglet.health_prober import SimulatedProber
from borglet.identity.credentials import Credentials, pinned_context
from borglet.identity.join import JoinClient, JoinFailed, join_request, parse_token
from borglet.identity.saved_state import Identity, MemoryStore
from borglet.link.client import Introduction, Link, LinkSettings
from borglet.machine_specs import MachineSpec
from borglet.packages.base import SimulatedPackages
from borglet.runtimes.simulated import SimulatedRuntime, Simulation
from borglet.usage_windows import WINDOW_S

log = logging.getLogger(__name__)

SOFTWARE = "borglet-fleet"
JOIN_BATCH = 500
# asyncio gives each TLS connection a read buffer of 256 KiB, all of it resident: 2.4 GiB at 10,000 machines.
TLS_BUFFER_BYTES = 16 * 2**10
DESCRIPTORS_BESIDE_LINKS = 64


class FleetSecrets(msgspec.Struct):
    """The content of fleet.json: the secrets of each machine, by host name. Only the owner may read the file (mode
    0600).
    """

    cell: str = ""
    authority: str = ""
    secrets: dict[str, str] = {}
    next: dict[str, str] = {}  # the secrets that will replace them, see `credentials`

    def identity(self, hostname: str) -> Identity:
        return Identity(hostname, self.cell, self.secrets[hostname], self.next.get(hostname, ""))


class FleetKeeper:
    """The file fleet.json as a store: it contains the identities and the certificate authorities of all simulated
    machines of a fleet.
    """

    def __init__(self, home: Path, secrets: FleetSecrets) -> None:
        self._path, self._secrets = home / "fleet.json", secrets

    def keep_identity(self, identity: Identity) -> None:
        hostname, known = identity.hostname, self._secrets
        if (known.secrets.get(hostname), known.next.get(hostname, "")) == (identity.secret, identity.next):
            return  # each welcome keeps the identity again, and a copy of all secrets would take half a millisecond
        current = {**known.secrets, hostname: identity.secret}
        following = {**known.next, hostname: identity.next}
        if not identity.next:
            del following[hostname]
        self._store(msgspec.structs.replace(known, secrets=current, next=following))

    def keep_authority(self, pem: str) -> None:
        self._store(msgspec.structs.replace(self._secrets, authority=pem))

    def _store(self, secrets: FleetSecrets) -> None:
        if secrets != self._secrets:
            replace_file(self._path, msgspec.json.encode(secrets))
            self._secrets = secrets


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The settings that all machines of a fleet (many simulated Borglets in one process) share."""

    seed: int = 0
    start_delay_s: float = 0.05
    install_delay_s: float = 0.05
    sample_interval_s: float = 10.0
    window_s: int = WINDOW_S  # length of usage windows; 0: no windows
    connecting: int = 32  # machines that connect at the same time, each until a shard welcomes it


def load_secrets(home: Path) -> FleetSecrets:
    """Return the content of fleet.json, empty before any machine has joined. Raises `JoinFailed` for a damaged file."""
    path = home / "fleet.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=FleetSecrets)
    except FileNotFoundError:
        return FleetSecrets()
    except msgspec.MsgspecError as error:
        raise JoinFailed(f"cannot read {path}: {error}; remove the file and join again with a new token") from error


def join_fleet(
    home: Path, url: str, token: str, machines: Sequence[MachineSpec], *, ports: tuple[int, int]
) -> FleetSecrets:
    """Join the machines that have no secret yet, `JOIN_BATCH` per request. Return the secrets of all machines.

    Secrets are saved after each request. Raises `JoinFailed`; machines that joined before the failure stay joined."""
    home.mkdir(mode=0o711, parents=True, exist_ok=True)
    known = load_secrets(home)
    new = [machine for machine in machines if machine.hostname not in known.secrets]
    if not new:
        return known
    client = JoinClient(url, parse_token(token))
    try:
        if known.authority not in ("", client.authority):
            raise JoinFailed(f"authority: the machines in {home} belong to another cell; give a different --home")
        attributes = SimulatedRuntime(Simulation(clock=lambda: 0.0), {}).attributes()
        for start in range(0, len(new), JOIN_BATCH):
            batch = new[start : start + JOIN_BATCH]
            requests = [join_request(machine, attributes, token, ports=ports) for machine in batch]
            answers = client.join_many(requests)
            known.authority, known.cell = client.authority, answers[0].cell
            known.secrets.update((answer.hostname, answer.secret) for answer in answers)
            replace_file(home / "fleet.json", msgspec.json.encode(known))
    finally:
        client.close()
    log.info("%d machines joined cell %s", len(new), known.cell)
    return known


@dataclass(frozen=True, slots=True)
class FleetMachine:
    """One simulated machine of a fleet: its agent and its link to the cell."""

    hostname: str
    agent: Agent
    link: Link

    async def run(self) -> None:
        await self.agent.open()
        assert self.agent.failed is not None
        link = asyncio.get_running_loop().create_task(self.link.run())
        try:
            await asyncio.wait({link, self.agent.failed}, return_when=asyncio.FIRST_COMPLETED)
            if self.agent.failed.done():
                self.agent.failed.result()
            link.result()
        finally:
            link.cancel()
            await self.agent.close()


class Fleet:
    """Runs many simulated machines in one process, to test a large cell."""

    def __init__(
        self,
        machines: Sequence[MachineSpec],
        secrets: FleetSecrets,
        url: str,
        home: Path,
        *,
        settings: FleetSettings = FleetSettings(),
        link: LinkSettings = LinkSettings(),
        clock: Clock | None = None,
    ) -> None:
        """Create the machines. `secrets`: the secrets of the machines. `home`: the folder in which new secrets are
        stored. `clock`: None means the real clock.
        """
        self._settings = settings
        simulation = Simulation(clock or steady_clock(), settings.seed, settings.start_delay_s)
        keeper = FleetKeeper(home, secrets)
        contexts = functools.lru_cache(maxsize=4)(pinned_context)  # one for all machines
        rng = random.Random(settings.seed)
        admission = asyncio.Semaphore(settings.connecting)  # the fleet connects no faster than its shard welcomes

        def machine_of(spec: MachineSpec) -> FleetMachine:
            runtime = SimulatedRuntime(simulation, spec.capacity)
            agent = Agent(
                runtime,
                MemoryStore(),
                SimulatedProber(),
                SimulatedPackages(settings.install_delay_s, rng),
                clock=simulation.clock,
                settings=AgentSettings(window_s=settings.window_s),
            )
            introduction = Introduction(
                boot_id=f"{rng.getrandbits(128):032x}",
                software=SOFTWARE,
                attributes={**runtime.attributes(), **dict(spec.attributes)},
                capacity=spec.capacity,
            )
            credentials = Credentials(secrets.identity(spec.hostname), secrets.authority, keeper, contexts=contexts)
            connection = Link(agent, credentials, url, introduction, rng=rng, settings=link, admission=admission)
            return FleetMachine(spec.hostname, agent, connection)

        self.machines = [machine_of(spec) for spec in machines]

    @property
    def connected(self) -> int:
        return sum(machine.link.connected for machine in self.machines)

    async def run(self) -> None:
        """Run all machines until the asyncio task of this call is cancelled. Raises the first failure of a machine."""
        raise_descriptor_limit(len(self.machines) + DESCRIPTORS_BESIDE_LINKS)
        asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
        tune_collector()
        for name in ("borglet.state.incarnations", "borglet.agent", "borglet.link.client"):
            # Nobody can read one line per step of each task of thousands of machines.
            logging.getLogger(name).setLevel(max(logging.WARNING, log.getEffectiveLevel()))
        async with asyncio.TaskGroup() as group:
            for machine in self.machines:
                group.create_task(machine.run())
            group.create_task(self._sample_forever())
            group.create_task(self._log_when_connected())

    async def _sample_forever(self) -> None:
        """Measure the usage of each machine once per interval. The measurements are spread evenly over the interval."""
        pause_s = self._settings.sample_interval_s / len(self.machines)
        batch = max(1, round(0.05 / pause_s)) if pause_s < 0.05 else 1
        while True:
            for start in range(0, len(self.machines), batch):
                for machine in self.machines[start : start + batch]:
                    await machine.agent.sample()
                await asyncio.sleep(pause_s * batch)

    async def _log_when_connected(self) -> None:
        for machine in self.machines:
            while not machine.link.connected:
                await asyncio.sleep(0.25)
        gc.collect()
        gc.freeze()
        log.info("all %d machines are connected", len(self.machines))


def raise_descriptor_limit(wanted: int) -> None:
    """Increase this process's limit of open files to `wanted`. Raises OSError if the system does not allow so many
    files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise OSError(
            f"the fleet needs {wanted} open files, and the limit is {hard}; raise the limit (ulimit -n {wanted})"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def tune_collector() -> None:
    """Make Python's garbage collector run rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
