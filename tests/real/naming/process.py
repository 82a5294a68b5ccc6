"""A DNS resolver as a process, with names from memory, for tests with other programs as clients.

    python -m tests.real.naming.process HOST PORT     # runs until SIGTERM, and loads its names at SIGUSR1

Before SIGUSR1 the resolver has no names, and every query fails as it does at a start without PostgreSQL.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import dns.rdata
import uvloop

from naming.dns.protocol.cookies import Cookies
from naming.dns.zones.directory import ZoneDirectory
from naming.server import serve
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from tests.memory_news import MemoryNews
from tests.unit.naming.cells import machine, placed, reported, running, submitted

ROOT = Path(__file__).resolve().parents[3]
BOUND_S = 20.0
MANY = 100  # tasks of a job whose SRV records do not fit in a datagram
CAA = tuple(dns.rdata.from_text("IN", "CAA", text) for text in ('0 issue "ca.example"', '128 issuewild ";"'))
LONG_CELL, LONG_TENANT, LONG_JOB = "c" * 63, "t" * 63, "j" * 63
LONG = f"{LONG_JOB}.{LONG_TENANT}.{LONG_CELL}.borg.internal"


def six() -> list[events.Event]:
    """Return events of job `six`, with one task on a machine with only an IPv6 address, and of job `both`.

    Job `both` has one task on that machine and one on a machine with an IPv4 address.
    """
    return [
        machine(0),
        machine(60, "2001:db8::60"),
        submitted("six", job_id=8, tasks=1, ports=("http",)),
        placed(0, 60, job_id=8),
        reported(0, job_id=8),
        submitted("both", job_id=10, tasks=2, ports=("http",)),
        placed(0, 0, job_id=10),
        placed(1, 60, job_id=10),
        *(reported(index, job_id=10) for index in range(2)),
    ]


def many() -> list[events.Event]:
    return [
        submitted("many", job_id=9, tasks=MANY),
        *(placed(index, index % 3, job_id=9) for index in range(MANY)),
        *(reported(index, job_id=9) for index in range(MANY)),
    ]


def service() -> list[events.Event]:
    """Return events of service `site` of jobs `front` and `back`, on machines 0 to 2.

    Job `front` sets a time to live of 60 s and a weight per task.
    """
    site = {"service": "site"}
    published = Published(60, ((0, 0, 3), (1, 1, 0)))
    return [
        submitted("front", job_id=11, tasks=2, labels=site, published=published),
        submitted("back", job_id=12, tasks=1, labels=site),
        *(placed(index, index, job_id=11) for index in range(2)),
        placed(0, 2, job_id=12),
        *(reported(index, job_id=11) for index in range(2)),
        reported(0, job_id=12),
    ]


def long_names() -> list[events.Event]:
    """Return events of a job of two tasks whose names have labels of the greatest length that is allowed."""
    return [
        machine(0),
        submitted(LONG_JOB, tenant=LONG_TENANT, tasks=2),
        *(placed(index, 0) for index in range(2)),
        *(reported(index) for index in range(2)),
    ]


def town() -> MemoryNews:
    """Return a journal with three cells: `cc`, `dd`, and one with long names.

    Cell `cc` has jobs `web` (3 tasks), `many`, `front` and `back`. Cell `dd` has jobs `six` and `both`.
    """
    news = MemoryNews()
    cells = {"cc": [*running(3), *many(), *service()], "dd": six(), LONG_CELL: long_names()}
    for cell_id, (name, written) in enumerate(cells.items(), start=1):
        news.add_cell(cell_id, name)
        news.write(cell_id, written)
    return news


class Process:
    """A DNS resolver that runs as a child process.

    `before`: words of the command line that precede its own, such as `unshare --net --`.
    """

    def __init__(self, host: str, port: int, *, before: Sequence[str] = ()) -> None:
        self.host, self.port = host, port
        argv = [*before, sys.executable, "-m", "tests.real.naming.process", host, str(port)]
        self.popen = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def load(self) -> None:
        """Make the resolver load its names. Until then each query fails."""
        self.popen.send_signal(signal.SIGUSR1)

    def status(self) -> str:
        query = dns.message.make_query("health.borg.internal.", "TXT")
        return dns.query.udp(query, self.host, port=self.port, timeout=0.5).answer[0].to_text()

    def until(self, wanted: Callable[[], bool]) -> None:
        """Wait until `wanted()` is true, and fail after a bound. Errors of a server that does not listen yet are
        ignored.
        """
        deadline = time.monotonic() + BOUND_S
        while True:
            with suppress(dns.exception.Timeout, OSError):
                if wanted():
                    return
            assert self.popen.poll() is None, self._output()
            assert time.monotonic() < deadline, "not within the bound"
            time.sleep(0.02)

    def stop(self) -> str:
        """Stop the process, check that its exit status is 0, and return its output."""
        self.popen.send_signal(signal.SIGTERM)
        try:
            assert self.popen.wait(BOUND_S) == 0, self._output()
        except subprocess.TimeoutExpired:
            self.popen.kill()
            raise
        return self._output()

    def _output(self) -> str:
        assert self.popen.stdout is not None
        with self.popen.stdout as output:
            return output.read().decode()


async def _serve(host: str, port: int) -> None:
    news = town()
    news.away = True
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, setattr, news, "away", False)
    directory = ZoneDirectory(
        zone="borg.internal",
        nsid=b"resolver-1",
        cookies=Cookies(b"0123456789abcdef"),
        caa=CAA,
        reverse=(ip_network("10.0.0.0/8"), ip_network("2001:db8::/32")),
    )
    await serve(directory, news, host, port)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sys.argv[1], int(sys.argv[2])))
