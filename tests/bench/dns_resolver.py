"""A resolver with 1,000 jobs of 100 tasks on 5,000 machines, which `tests.bench.dns` starts as a separate process.

    dns_resolver.py PORT CORE [empty|guarded]

It runs until it is ended. `empty`: it has no names. `guarded`: it has DNS cookies, a server id (NSID), and a TSIG key
with the name, but not the secret, of `tests.malformed.KEY`. With that secret, a malformed packet could by chance be a
valid request for the whole zone, whose transfer takes long.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator

import dns.tsig
import uvloop

from naming.dns.primary import Peers
from naming.dns.protocol.cookies import Cookies
from naming.dns.zones.directory import ZoneDirectory
from naming.following.news import DatedEvent, NamesSnapshot, ZoneFacts
from naming.server import serve
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Group, Requirement

MACHINES, JOBS, TASKS = 5_000, 1_000, 100
CELL, TENANT, ZONE = "cc", "ubar", "borg.internal"


def address_of(machine: int) -> str:
    return f"10.{machine >> 16}.{machine >> 8 & 255}.{machine & 255}"


def machine_of(job: int, task: int) -> int:
    return (job * TASKS + task) % MACHINES


def news() -> Iterator[events.Event]:
    for machine in range(MACHINES):
        yield events.MachineSet(machine_id=machine, hostname=f"m{machine}", address=address_of(machine), capacity=())
    for job in range(JOBS):
        yield events.JobSubmitted(
            job_id=job,
            uid=f"{job:032x}",
            tenant_id=1,
            tenant=TENANT,
            name=f"job{job}",
            job_kind="job",
            priority=200,
            latency_sensitive=True,
            spec_version=1,
            groups=(Group(Requirement(()), ((0, TASKS - 1),)),),
            port_names=("http",),
        )
        for task in range(TASKS):
            where = {"job_id": job, "index": task, "machine_id": machine_of(job, task), "incarnation": 1}
            yield events.TaskPlaced(**where, ports=(20_000 + task,))
            yield events.TaskReported(**where, phase="up", health="healthy", up=True, restarts=0)


class Standing:
    """A source of names for a cell that never changes. It creates the events again for each snapshot, and stores
    none."""

    def __init__(self, *, empty: bool) -> None:
        self._empty = empty

    def cells(self) -> list[ZoneFacts]:
        return [ZoneFacts(1, CELL, 1)]

    def snapshot(self, cell_id: int) -> NamesSnapshot:
        return NamesSnapshot(1, 1, 1, [] if self._empty else list(news()))

    def tail(self, cell_id: int, after: int) -> list[DatedEvent]:
        return []

    def wait(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def close(self) -> None:
        """Do nothing: the source holds no connection."""


def main() -> None:
    port, core = int(sys.argv[1]), int(sys.argv[2])
    os.sched_setaffinity(0, {core})
    directory, peers = ZoneDirectory(zone=ZONE), None
    if "guarded" in sys.argv:
        from tests.malformed import KEY

        peers = Peers(keys={KEY.name: dns.tsig.Key(KEY.name, b"another" * 4, KEY.algorithm)})
        cookies = Cookies.from_secret("of a bench, and long enough for it")
        directory = ZoneDirectory(zone=ZONE, keyring=peers.keys, nsid=b"bench", cookies=cookies)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(directory, Standing(empty="empty" in sys.argv), "127.0.0.1", port, peers=peers))


if __name__ == "__main__":
    main()
