"""A complete installation for a benchmark: `make up` with its own home folder and free ports, stopped at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from portal.cli.client import Client
from portal.cli.profiles import Profile

_READY_S = 180.0
_STOP_S = 60.0
_BORGCTL = str(Path(sys.executable).parent / "borgctl")


@dataclass(frozen=True)
class Installation:
    home: Path
    process: subprocess.Popen[bytes]
    ready_s: float
    port: int
    link_port: int

    def borgctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "BORG_HOME": str(self.home)}
        return subprocess.run([_BORGCTL, *arguments], env=env, check=check, capture_output=True, text=True, timeout=600)

    def client(self, profile: str = "demo") -> Client:
        import tomllib

        table = tomllib.loads((self.home / "client.toml").read_text())
        entry = table["profiles"][profile]
        return Client(Profile(profile, table["url"], entry["token"], table["cell"], entry.get("tenant", "")))

    def manage(self, *arguments: str) -> None:
        """Run a command of `manage.py` in the environment of the web process. Raises if the command fails."""
        web = next(one for one in self.processes() if "portal.web" in one.cmdline())
        root = Path(__file__).parents[2]
        subprocess.run(
            [sys.executable, str(root / "manage.py"), *arguments], env=web.environ(), check=True, timeout=600
        )

    def processes(self) -> list[psutil.Process]:
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def memory_mib(self) -> list[tuple[str, float, float]]:
        """Return (name, PSS, RSS) of each process, in MiB. PSS divides the size of shared pages among their
        processes."""
        found = [(process.name(), process.memory_full_info()) for process in self.processes()]
        return [(name, memory.pss / 2**20, memory.rss / 2**20) for name, memory in found]

    def cpu_s(self) -> float:
        """Return the CPU seconds so far of all processes that run now."""
        used = 0.0
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):  # it has ended since the list was made
                used += sum(process.cpu_times()[:2])
        return used


@contextmanager
def installation(
    *, home: Path | None = None, machines: str = "", standbys: int = 0, ready_within_s: float = _READY_S
) -> Iterator[Installation]:
    """Start an installation, yield it when it is ready, and stop it with SIGINT. A given `home` is not deleted."""
    with tempfile.TemporaryDirectory(prefix="borg-bench-") as folder:
        Path(folder).chmod(0o711)
        where = home or Path(folder) / "home"
        port, dns, link = _free_ports(3)
        env = {
            **os.environ,
            "BORG_HOME": str(where),
            "PORT": str(port),
            "DNS_PORT": str(dns),
            "LINK_PORT": str(link),
            "MACHINES": machines,
            "STANDBYS": str(standbys),
        }
        for name in ("BORG_DATABASE_URL", "BORG_REDIS_URL", "DJANGO_SETTINGS_MODULE", "BORG_SECRET_KEY"):
            env.pop(name, None)
        output = Path(folder) / "up.out"
        began = time.monotonic()
        with output.open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", "portal.up"], env=env, stdout=out, stderr=out)
        try:
            while b"Borg Portal is up" not in output.read_bytes():
                if process.poll() is not None or time.monotonic() - began > ready_within_s:
                    raise RuntimeError(f"`make up` did not come up:\n{output.read_text()}")
                time.sleep(0.05)
            yield Installation(where, process, time.monotonic() - began, port, link)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(_STOP_S)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
