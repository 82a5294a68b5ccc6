"""A whole Borg Portal for acceptance tests: `python -m portal.up` with its own home folder and its own ports."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from portal.up.supervision import children, probes
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
START_S = 180.0  # an upper bound; tests that measure the start assert a shorter time
_PASSED_ON = ("PATH", "HOME", "LANG", "NUMBA_CACHE_DIR", "PYTHONPATH")
_numbers = itertools.count()
_direct = build_opener(ProxyHandler({}))


class Failed(AssertionError):
    """A command of borgctl, or another step of a test, failed. The text contains the output of the command."""


class Installation:
    def __init__(self, home: Path) -> None:
        self.home = home
        port, dns_port, link_port, metrics_port = (free_port() for _ in range(4))
        self.settings = {
            "BORG_HOME": str(home),
            "PORT": str(port),
            "DNS_PORT": str(dns_port),
            "LINK_PORT": str(link_port),
            "BORG_DNS_METRICS_PORT": str(metrics_port),
            **dict(zip(("BORGLET_PORT_LOW", "BORGLET_PORT_HIGH"), task_ports(), strict=True)),
        }
        self.url = f"http://127.0.0.1:{port}"
        self.dns_port = dns_port
        self._output = home.with_name(f"{home.name}.out")
        self._process: subprocess.Popen[bytes] | None = None

    # -- the whole

    def start(self) -> float:
        """Start all processes, and return the seconds until the supervisor prints that the portal is up."""
        began_s = time.monotonic()
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "portal.up"],
                cwd=ROOT,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = self._process
        children.wait_until(lambda: process.poll() is not None or b"Ready after" in self._printed(), START_S)
        if b"Borg Portal is up: " + self.url.encode() not in self._printed():
            story = self._printed().decode(errors="replace")
            self.stop()
            raise Failed(f"make up does not come up:\n{story}")
        return time.monotonic() - began_s

    def stop(self, number: signal.Signals = signal.SIGINT, *, timeout_s: float = 90.0) -> int | None:
        """Send a signal to the supervisor, and wait until it ends. Return its exit status, or None if it did not
        run."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(number)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10.0)
            raise

    @property
    def supervisor_pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def environment(self) -> dict[str, str]:
        return {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | self.settings

    def output(self) -> str:
        return self._printed().decode(errors="replace")

    # -- its processes

    def pid(self, name: str) -> int | None:
        return children.record_find(self.home / "run" / f"{name}.pid")

    def kill(self, name: str) -> int:
        """Send SIGKILL to the process with this name, and return its pid."""
        pid = self.pid(name)
        assert pid is not None, f"{name} does not run"
        os.kill(pid, signal.SIGKILL)
        return pid

    # -- what people do with it

    def borgctl(self, *words: str, profile: str = "demo") -> Any:
        """Run a command of borgctl, and return the JSON that it prints. Raises `Failed` if the command fails."""
        done = subprocess.run(
            [Path(sys.executable).with_name("borgctl"), "--json", "--profile", profile, *words],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(f"borgctl {' '.join(words)} ended with {done.returncode}: {done.stderr or done.stdout}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def submit(self, name: str, command: Sequence[str], **more: Any) -> None:
        """Submit a job with priority 0, which needs no quota. `more`: further fields of the job file."""
        file = self.home.with_name(f"{name}.json")
        file.write_text(json.dumps({"name": name, "task": {"command": list(command)}, **more}))
        self.borgctl("submit", str(file))

    def up(self, job: str) -> bool:
        """Return whether every task of a job is up. False also if the portal does not answer."""
        try:
            rows = self.tasks(job)
        except (OSError, URLError, HTTPException, KeyError):
            return False
        return bool(rows) and all(row["phase"] == "up" for row in rows)

    def tasks(self, job: str) -> list[dict[str, Any]]:
        """Return the tasks of a job over REST. This starts no process, so repeated calls use little CPU."""
        request = Request(
            f"{self.url}/api/v1/cells/dev/jobs/demo/{job}/tasks/", headers={"Authorization": f"Bearer {self.token()}"}
        )
        with _direct.open(request, timeout=5.0) as answer:
            rows: list[dict[str, Any]] = json.load(answer)["results"]
        return rows

    def token(self, profile: str = "demo") -> str:
        text = (self.home / "client.toml").read_text()
        return str(tomllib.loads(text)["profiles"][profile]["token"])

    def task_pids(self, job: str) -> set[int]:
        """Return the pids of the processes that listen on the ports of a job's tasks."""
        ports = {port for row in self.tasks(job) for port in (row["ports"] or {}).values()}
        return {pid for port in ports for pid in listeners(port)}

    def well(self) -> str | None:
        """Return None if the web process and the resolver answer, otherwise the reason why one of them does not."""
        port = int(self.settings["PORT"])
        return probes.http_ok("127.0.0.1", port, "/readyz") or probes.dns_answers(
            "127.0.0.1", self.dns_port, "dev.borg.internal"
        )

    def _printed(self) -> bytes:
        return self._output.read_bytes() if self._output.exists() else b""


def wait_for(condition: Callable[[], bool], timeout_s: float, *, story: Callable[[], object]) -> float:
    """Wait until the condition is true, and return the seconds. After `timeout_s`, raise `Failed` with the text of
    `story`."""
    began_s = time.monotonic()
    if not children.wait_until(condition, timeout_s, every_s=0.1):
        raise Failed(f"not within {timeout_s:.0f} s: {story()}")
    return time.monotonic() - began_s


def task_ports() -> tuple[str, str]:
    """Return the first and the last of 500 ports for the tasks of one Borglet; no two Borglets share one."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    low = 20_000 + 6_000 * worker + 500 * next(_numbers)
    return str(low), str(low + 499)


def listeners(port: int) -> set[int]:
    """Return the pids of the processes that listen on a TCP port of this host."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    found = set()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if inodes & {os.readlink(descriptor) for descriptor in folder.iterdir()}:
                found.add(int(folder.parent.name))
        except OSError:  # the process has ended
            continue
    return found


def tree_of(pid: int) -> set[int]:
    """Return the pid itself and the pids of all its descendants."""
    children_of: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children_of.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, left = set(), [pid]
    while left:
        each = left.pop()
        found.add(each)
        left += children_of.get(each, [])
    return found
