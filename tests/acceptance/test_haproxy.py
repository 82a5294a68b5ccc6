"""Tests that HAProxy loses no request during a rolling update if it finds its servers by SRV records.

HAProxy is configured with `server-template`, and without anything that hides a failure: no retries and no redispatch.
So each connection that is rejected or closed early counts as a failed request. HAProxy queries the resolver once per
second, and sends no new requests to a server that is missing from the answer.

The servers reject connections from SIGTERM on. Their tasks leave the DNS answers some seconds before SIGTERM, and this
wait keeps the number of failures at zero. Three jobs show it: `patient` uses DNS over UDP and no health checks,
`checked` uses DNS over TCP and health checks, and `hasty` does not wait (`leave_s: 0`) and does lose requests.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.installation import Installation, wait_for
from tests.ports import free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(200)]

SERVER = Path(__file__).with_name("graceful.py").read_text()
TASKS = 3  # per site
TTL_S = 2  # by default, a task leaves the answers TTL_S + 1 seconds before SIGTERM
CLIENTS, PAUSE_S = 2, 0.05  # clients per site; pause between two requests of a client
BOUND_S = 60.0
CONFIG = """
global
    stats socket {folder}/stats level admin
defaults
    mode http
    retries 0
    timeout connect 2s
    timeout client 10s
    timeout server 10s
    timeout queue 2s
resolvers datagrams
    nameserver one 127.0.0.1:{dns}
    accepted_payload_size 1232
resolvers streams
    nameserver one tcp@127.0.0.1:{dns}
    accepted_payload_size 65535
"""
BACKEND = """
listen {name}
    bind 127.0.0.1:{port}
    balance roundrobin
    server-template task 6 _http._tcp.{job}.demo.dev.borg.internal resolvers {resolvers} init-addr none {check}
"""


@dataclass(frozen=True)
class Site:
    """A job, and the HAProxy backend that sends requests to its tasks."""

    name: str
    leave_s: float | None
    check: str
    resolvers: str

    def file(self, word: str) -> dict[str, Any]:
        return {
            "name": self.name,
            "tasks": TASKS,
            "names": {"ttl_s": TTL_S, "leave_s": self.leave_s},
            "task": {
                "command": ["python3", "-c", SERVER, "$(port.http)", word],
                "ports": ["http"],
                # On a busy host a task may answer late. It must not be restarted for that: restarts fail requests.
                "health": {"http": "/healthy", "port": "http", "interval_s": 0.5, "timeout_s": 10, "failures": 10},
                "limit": {"ram": "64Mi"},
            },
        }


SITES = (
    Site("patient", None, "", "datagrams"),
    Site("checked", None, "check inter 500ms", "streams"),
    Site("hasty", 0, "", "datagrams"),
)


@dataclass
class Client:
    """A client that sends one request after another, each on a new connection.

    `seen` counts the results: the body of an answer with status 200, otherwise the status or the error.
    """

    port: int
    seen: Counter[str] = field(default_factory=Counter)

    async def ask(self, until: asyncio.Event) -> None:
        while not until.is_set():
            self.seen[await self._ask()] += 1
            await asyncio.sleep(PAUSE_S)

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(15):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                with closing(writer):
                    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    answer = await reader.read()
        except (OSError, TimeoutError) as error:
            return repr(error)
        head, _, body = answer.decode().partition("\r\n\r\n")
        status = head.split(" ", 2)[1] if head else "nothing"
        return body if status == "200" else status

    def failures(self) -> dict[str, int]:
        return {told: count for told, count in self.seen.items() if told not in ("old", "new")}


async def asking_while(work: Callable[[], None], ports: dict[str, int]) -> dict[str, Client]:
    over, clients = asyncio.Event(), {name: Client(port) for name, port in ports.items()}
    asking = [asyncio.create_task(client.ask(over)) for client in clients.values() for _ in range(CLIENTS)]
    try:
        await asyncio.to_thread(work)
        await asyncio.sleep(0.5)
    finally:
        over.set()
        await asyncio.gather(*asking)
    return clients


@contextmanager
def haproxy(folder: Path, dns_port: int, ports: dict[str, int]) -> Iterator[Path]:
    text = CONFIG.format(folder=folder, dns=dns_port)
    text += "".join(
        BACKEND.format(name=s.name, port=ports[s.name], job=s.name, check=s.check, resolvers=s.resolvers) for s in SITES
    )
    config, log = folder / "haproxy.cfg", folder / "haproxy.log"
    config.write_text(text)
    with log.open("wb") as output:
        process = subprocess.Popen(["haproxy", "-db", "-f", str(config)], stdout=output, stderr=output)
        try:
            yield folder / "stats"
        finally:
            process.terminate()
            process.wait(10)


def servers(stats: Path) -> Counter[str]:
    """Return how many servers of each backend have an address, as HAProxy's own statistics report it."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(stats))
        sock.sendall(b"show stat\n")
        rows = [line.split(",") for line in sock.makefile().read().splitlines() if line]
    return Counter(row[0] for row in rows[1:] if row[1].startswith("task") and not row[17].startswith("MAINT"))


def send(there: Installation, verb: str, site: Site, word: str) -> None:
    file = there.home.with_name(f"{site.name}.json")
    file.write_text(json.dumps(site.file(word)))
    there.borgctl(verb, str(file))


def serving(there: Installation, version: int) -> bool:
    """Return whether all tasks of all sites are up and run this version of the job file."""
    rows = [row for site in SITES for row in there.tasks(site.name)]
    return len(rows) == TASKS * len(SITES) and all(row["up"] and row["spec_version"] == version for row in rows)


def listening(ports: list[int]) -> list[int]:
    """Return the ports on which a process accepts connections."""
    found = []
    for port in ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                found.append(port)
    return found


def test_an_update_fails_no_request(shared: Installation, tmp_path: Path) -> None:
    def story() -> object:
        return [shared.tasks(site.name) for site in SITES]

    ports = {site.name: free_port() for site in SITES}
    for site in SITES:
        send(shared, "submit", site, "old")
    wait_for(lambda: serving(shared, 1), BOUND_S, story=story)
    old = [row["ports"]["http"] for site in SITES for row in shared.tasks(site.name)]
    with haproxy(tmp_path, shared.dns_port, ports) as stats:
        wait_for(
            lambda: stats.exists() and servers(stats) == {site.name: TASKS for site in SITES},
            BOUND_S,
            story=(tmp_path / "haproxy.log").read_text,
        )

        def roll() -> None:
            for site in SITES:
                send(shared, "update", site, "new")
            wait_for(lambda: serving(shared, 2), BOUND_S, story=story)
            # The old tasks stop some seconds after they leave the answers. Requests that fail then count too.
            wait_for(lambda: not listening(old), BOUND_S, story=lambda: (listening(old), story()))

        # A new thread, because after browser tests this thread has Playwright's event loop.
        with ThreadPoolExecutor(1) as thread:
            clients = thread.submit(lambda: asyncio.run(asking_while(roll, ports))).result()
    for site in SITES:
        shared.borgctl("kill", site.name)
    for name in ("patient", "checked"):
        assert clients[name].failures() == {}
        assert min(clients[name].seen["old"], clients[name].seen["new"]) > 20
    assert clients["hasty"].failures(), "a server that stops while it is in the answers is met"


def test_the_program_of_this_test_is_there() -> None:
    assert shutil.which("haproxy")
