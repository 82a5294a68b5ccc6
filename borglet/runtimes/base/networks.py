"""Connect tasks to the network. Each task gets its own IP address, from the range that the operator gave to the machine
(§8.1).

    bridge (first address of the network) ── veth ── eth0 in the task's network namespace (its address)

The operator routes the network to this machine, without address translation. So each task has all ports of its own
address. The Borglet, not the container engine, makes the namespace. So the Borglet can remove the namespace after any
crash. The bridge is removed with the last task.
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

from borglet.machine_specs import BadMachine
from borglet.runtimes.base.runtime import StartFailed

log = logging.getLogger(__name__)

_NAMESPACES = Path("/run/netns")
_LARGEST_PREFIX = 30
INTERFACE = "eth0"


def parse_network(text: str) -> ipaddress.IPv4Network | None:
    """Parse the range of the tasks' IP addresses, such as 10.20.30.0/24. Return None for an empty text. Raises
    `BadMachine` if the text is not an IPv4 network or the network is too small.
    """
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
    """Return the address for a task: its present address `mine` if `network` contains it, otherwise a free address.

    `mine` may be empty. `taken`: the addresses of all tasks on this machine. Raises `StartFailed` if all addresses are
    in use.
    """
    if mine and ipaddress.IPv4Address(mine) in network:
        return ipaddress.IPv4Address(mine)
    count = network.num_addresses - 3  # without the addresses of the network, the bridge and broadcasts
    begin = zlib.crc32(name.encode())
    for step in range(count):
        address = network[2 + (begin + step) % count]
        if str(address) not in taken:
            return address
    raise StartFailed(
        f"network: all {count} addresses of this machine's tasks, in {network}, are in use; an SRE can widen"
        " the network in BORGLET_TASK_NETWORK"
    )


class FormerNetworks:
    """Removes networks of ended tasks. The names of a network are computed from the Borglet's home folder and the
    task's name. So any runtime can remove the network of an ended task.
    """

    def __init__(self, home: Path) -> None:
        self._ip = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") or "ip"
        self._home = str(home.resolve())
        self.bridge = "borg-" + self._digest("")[:8]

    def _digest(self, name: str) -> str:
        return hashlib.sha256(f"{self._home}\0{name}".encode()).hexdigest()

    def namespace(self, name: str) -> Path:
        """Return the path of a task's network namespace. `name`: the name of the task's directory."""
        return _NAMESPACES / f"borg-{self._digest(name)[:16]}"

    def interface(self, name: str) -> str:
        """Return the name of the task's interface on the machine, which has at most 15 characters."""
        return f"bt{self._digest(name)[:12]}"

    async def disconnect(self, name: str) -> None:
        """Remove the interface and the namespace of a task, if they exist."""
        if Path("/sys/class/net", self.interface(name)).exists():
            await self._run(f"link del {self.interface(name)}", may_fail=True)
        if self.namespace(name).exists():
            await self._run(f"netns del {self.namespace(name).name}", may_fail=True)

    def remove(self) -> None:
        """Remove the network bridge that all tasks of this Borglet shared, if it exists."""
        if Path("/sys/class/net", self.bridge).exists():
            subprocess.run([self._ip, "link", "del", self.bridge], check=False, timeout=10)

    async def _run(self, *commands: str, namespace: str = "", may_fail: bool = False) -> None:
        """Run commands of the program `ip`, inside `namespace` if it is not empty. If a command fails, raise
        `StartFailed`, or only write a log line if `may_fail`.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                self._ip,
                *(("-n", namespace) if namespace else ()),
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
            raise StartFailed(
                f"network: the machine could not create the task's network: {errors.strip()}; an SRE can check the"
                " machine's network"
            )
        log.info("%s: %s", "; ".join(commands), errors.strip())


class TaskNetworks(FormerNetworks):
    """Makes and removes the networks of the tasks of one Borglet. `network`: the range of the tasks' IP addresses.
    `home`: the Borglet's home folder.
    """

    def __init__(self, network: ipaddress.IPv4Network, home: Path) -> None:
        """Store `network` and `home`, but make no network yet. Raises `BadMachine` if the machine has no command
        `ip`.
        """
        super().__init__(home)
        if not Path(self._ip).is_absolute():
            raise BadMachine(
                "task-network: this machine does not have the command `ip`; on Debian: apt-get install iproute2"
            )
        self.network = network

    @property
    def gateway(self) -> ipaddress.IPv4Address:
        return self.network[1]

    async def connect(self, name: str, address: str) -> Path:
        """Make a task's namespace and interface, and the bridge if it is missing. Return the namespace's path.

        Raises `StartFailed` if a command of `ip` fails.
        """
        await self.disconnect(name)
        if not Path("/sys/class/net", self.bridge).exists():
            await self._run(f"link add {self.bridge} type bridge", may_fail=True)  # another start may have made it
            gateway = f"{self.gateway}/{self.network.prefixlen}"
            await self._run(f"addr replace {gateway} dev {self.bridge}", f"link set {self.bridge} up")
            Path("/proc/sys/net/ipv4/conf", self.bridge, "forwarding").write_text("1")
        namespace, interface = self.namespace(name), self.interface(name)
        await self._run(
            f"netns add {namespace.name}",
            f"link add {interface} type veth peer name {INTERFACE} netns {namespace.name}",
            f"link set {interface} master {self.bridge} up",
        )
        await self._run(
            "link set lo up",
            f"addr add {address}/{self.network.prefixlen} dev {INTERFACE}",
            f"link set {INTERFACE} up",
            f"route add default via {self.gateway}",
            namespace=namespace.name,
        )
        return namespace
