"""Own networks of tasks: each task gets an address of the network that the operator assigns to the machine (§8.1).

    bridge (first address of the network) ── veth ── eth0 in the task's network namespace (its address)

The bridge is removed with the last task. Addresses are not translated: the operator routes the network to this machine,
so each task has all ports of its own address. The Borglet makes the namespace, not the engine, so that it exists before
the container and can be removed after any crash.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import shutil
import subprocess
import zlib
from collections.abc import Collection
from pathlib import Path

from borglet.machines import BadMachine
from borglet.runtimes.base.runtime import StartFailed

log = logging.getLogger(__name__)

_NAMESPACES = Path("/run/netns")
_LARGEST_PREFIX = 30
INTERFACE = "eth0"


def parse_network(text: str) -> ipaddress.IPv4Network | None:
    """Parse a network; None for an empty text. Raises `BadMachine`."""
    if not text:
        return None
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise BadMachine(
            f"task-network: {text!r} is not an IPv4 network: {error}; give one such as 10.20.30.0/24"
        ) from error
    if network.prefixlen > _LARGEST_PREFIX:
        raise BadMachine(f"task-network: {text!r} is too small for tasks; give /{_LARGEST_PREFIX} or a larger network")
    return network


def choose_address(
    network: ipaddress.IPv4Network, name: str, *, mine: str, taken: Collection[str]
) -> ipaddress.IPv4Address:
    """Return an address that no other task of this machine has. `mine` is kept if it still belongs to the network, so
    that an incarnation has the same address after restarts. Raises `StartFailed`. Pure."""
    if mine and ipaddress.IPv4Address(mine) in network:
        return ipaddress.IPv4Address(mine)
    count = network.num_addresses - 3  # without those of the network, of the bridge and of broadcasts
    begin = zlib.crc32(name.encode())
    for step in range(count):
        address = network[2 + (begin + step) % count]
        if str(address) not in taken:
            return address
    raise StartFailed(
        f"network: all {count} addresses of this machine's tasks, in {network}, are in use; an SRE can widen"
        " BORGLET_TASK_NETWORK"
    )


class FormerNetworks:
    """Networks of tasks of this Borglet that may still exist after their task ended.

    A network's name is derived from its task's name, so any process that sees the task end can remove it.
    """

    def __init__(self, home: Path) -> None:
        self._ip = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") or "ip"
        self._home = str(home.resolve())
        self.bridge = "borg-" + self._digest("")[:8]

    def _digest(self, name: str) -> str:
        return hashlib.sha256(f"{self._home}\0{name}".encode()).hexdigest()

    def namespace(self, name: str) -> Path:
        """Return the name of the namespace of the task with this directory name."""
        return _NAMESPACES / f"borg-{self._digest(name)[:16]}"

    def interface(self, name: str) -> str:
        """Return the name of the machine's end of the task's link, which has at most 15 characters."""
        return f"bt{self._digest(name)[:12]}"

    async def disconnect(self, name: str) -> None:
        """Remove what `connect` made for the task, if anything."""
        if Path("/sys/class/net", self.interface(name)).exists():
            await self._run([], [f"link del {self.interface(name)}"], may_fail=True)
        if self.namespace(name).exists():
            await self._run([], [f"netns del {self.namespace(name).name}"], may_fail=True)

    def remove(self) -> None:
        """Remove the bridge, when no task is left."""
        if Path("/sys/class/net", self.bridge).exists():
            subprocess.run([self._ip, "link", "del", self.bridge], check=False, timeout=10)

    async def _run(self, options: list[str], commands: list[str], *, may_fail: bool = False) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                self._ip,
                *options,
                "-batch",
                "-",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            errors = (await process.communicate("\n".join(commands).encode()))[1].decode(errors="replace")
            failed = process.returncode != 0
        except OSError as error:  # for example, the machine cannot start another process
            failed, errors = True, str(error)
        if not failed:
            return
        if not may_fail:
            raise StartFailed(f"network: the machine could not create the task's network: {errors.strip()}")
        log.info("%s: %s", "; ".join(commands), errors.strip())


class TaskNetworks(FormerNetworks):
    """The networks of the tasks of one Borglet, and the addresses that it can still give to tasks."""

    def __init__(self, network: ipaddress.IPv4Network, home: Path) -> None:
        """Set up networks. Raises `BadMachine` if the machine has no `ip` command."""
        super().__init__(home)
        if not Path(self._ip).is_absolute():
            raise BadMachine(
                "task-network: this machine does not have the command ip; on Debian: apt-get install iproute2"
            )
        self.network = network

    @property
    def gateway(self) -> ipaddress.IPv4Address:
        return self.network[1]

    def choose(self, name: str, *, mine: str, taken: Collection[str]) -> str:
        return str(choose_address(self.network, name, mine=mine, taken=taken))

    async def connect(self, name: str, address: str) -> Path:
        """Make the task's namespace and link, and the bridge if it is missing. Raises `StartFailed`."""
        await self.disconnect(name)
        if not Path("/sys/class/net", self.bridge).exists():
            await self._run([], [f"link add {self.bridge} type bridge"], may_fail=True)  # another start made it
            gateway = f"{self.gateway}/{self.network.prefixlen}"
            await self._run([], [f"addr replace {gateway} dev {self.bridge}", f"link set {self.bridge} up"])
            Path("/proc/sys/net/ipv4/conf", self.bridge, "forwarding").write_text("1")
        namespace, interface = self.namespace(name), self.interface(name)
        await self._run(
            [],
            [
                f"netns add {namespace.name}",
                f"link add {interface} type veth peer name {INTERFACE} netns {namespace.name}",
                f"link set {interface} master {self.bridge} up",
            ],
        )
        await self._run(
            ["-n", namespace.name],
            [
                "link set lo up",
                f"addr add {address}/{self.network.prefixlen} dev {INTERFACE}",
                f"link set {INTERFACE} up",
                f"route add default via {self.gateway}",
            ],
        )
        return namespace
