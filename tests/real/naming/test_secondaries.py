"""Tests of Knot, BIND, NSD and PowerDNS as secondaries: their zones equal the primary's after every change.

The primary notifies all of them (NOTIFY), and TSIG signs the transfers. After the first transfer all but PowerDNS use
incremental transfers (IXFR).
"""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
from pathlib import Path

import dns.asyncquery
import dns.exception
import dns.message
import dns.name
import dns.query
import dns.rcode
import dns.rrset
import dns.tsig
import dns.zone
import pytest

from naming.dns.primary import InvalidPeers, Peers
from naming.server import DnsServer
from naming.table.table import STARTS_A_SECOND, serial_start
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from tests.memory_news import MemoryNews
from tests.ports import free_port
from tests.real.naming.secondaries import (
    BOUND_S,
    CELL,
    SECRET,
    ZONE,
    Daemon,
    bind,
    knot,
    lines,
    nsd,
    powerdns,
    primary,
    serial,
    transferred,
    until,
)
from tests.unit.naming.cells import WEB, changed, evicted, machine, placed, reported, running, submitted

TASKS = 10  # of the job that exists from the beginning, each on another machine


@pytest.fixture
def news() -> MemoryNews:
    memory = MemoryNews()
    memory.add_cell(CELL, "cc")
    memory.write(CELL, running(TASKS))
    return memory


SITE = {"service": "site"}


def of_site(name: str, job_id: int, published: Published) -> list[events.Event]:
    """Return events of a job of four running tasks that belongs to service `site`."""
    return [
        submitted(name, job_id=job_id, tasks=4, labels=SITE, published=published),
        *(placed(index, index + 5, job_id=job_id) for index in range(4)),
        *(reported(index, job_id=job_id) for index in range(4)),
    ]


CHANGES: tuple[list[events.Event], ...] = (
    [reported(0, "stopping")],
    [evicted(1), placed(1, 7, incarnation=2)],
    [reported(1, incarnation=2), machine(3, "10.77.0.1"), machine(99, "2001:db8::99")],
    [submitted("other", job_id=9, tasks=20)],
    [placed(index, index % TASKS, job_id=9) for index in range(20)],
    [*of_site("front", 11, Published(30, ((0, 0, 3), (3, 3, 0)))), *of_site("back", 12, Published())],
    [changed(job_id=11, labels=SITE, published=Published(7, ((1, 2, 5),)))],
    [changed(job_id=11, published=Published(7, ((1, 2, 5),)))],
    [events.JobEnded(job_id=12, how="killed")],
    [events.JobEnded(job_id=WEB, how="killed"), events.MachineRemoved(machine_id=99)],
)


def test_others_follow_every_change_and_a_cell_made_again_under_its_name(news: MemoryNews, tmp_path: Path) -> None:
    makers = {"knot": knot, "bind": bind, "nsd": nsd, "powerdns": powerdns}

    async def scenario() -> dict[str, str]:
        ports = [free_port() for _ in makers]
        peers = Peers.read(
            networks=[], keys=[f"shared:hmac-sha256:{SECRET}"], secondaries=[f"127.0.0.1@{port}" for port in ports]
        )
        daemons: list[Daemon] = []
        async with primary(news, peers) as server:
            try:
                for (name, start), port in zip(makers.items(), ports, strict=True):
                    (tmp_path / name).mkdir()
                    daemons.append(start(tmp_path / name, port, server.port))
                for number, change in enumerate(((), *CHANGES)):
                    if change:
                        news.write(CELL, change)
                    await _all_equal(server, peers, daemons, number)
                news.remove_cell(CELL)
                news.add_cell(CELL + 1, "cc", start=serial_start(60.0))
                news.write(CELL + 1, running(2))
                await _all_equal(server, peers, daemons, len(CHANGES) + 1)
                assert (await serial(server.port)) == 60 * STARTS_A_SECOND + 1
                return {daemon.name: daemon.log.read_text() for daemon in daemons}
            finally:
                for daemon in daemons:
                    daemon.stop()

    told = asyncio.run(scenario())
    # After the first transfer of each cell, transfers are incremental.
    assert len(re.findall(r"AXFR, incoming, remote 127\.0\.0\.1@\d+.*, started", told["knot"])) == 2
    assert told["knot"].count("IXFR, incoming") >= len(CHANGES)
    assert "got incremental response" in told["bind"]
    assert "bad" not in re.findall(r"tsig[^\n]*", told["bind"].lower())
    assert "error" not in told["nsd"]
    assert "Unable" not in told["powerdns"]


async def _all_equal(server: DnsServer, peers: Peers, daemons: list[Daemon], number: int) -> None:
    async def equal() -> bool:
        serials = [await serial(port) for port in (server.port, *(daemon.port for daemon in daemons))]
        seen[:] = [f"serials {serials}"]
        if len(set(serials)) > 1:
            return False
        wanted = lines(await transferred(server, peers.keys))
        found = [await daemon.records() for daemon in daemons]
        seen[:] = [f"{daemon.name}: {sorted(got ^ wanted)[:6]}" for daemon, got in zip(daemons, found, strict=True)]
        return all(got == wanted for got in found)

    seen: list[str] = []
    await until(equal, lambda: f"after change {number}: {seen}")


@pytest.mark.parametrize(("networks", "keys"), [([], []), (["192.0.2.0/24"], [f"k:hmac-sha256:{SECRET}"])])
def test_nobody_else_may_transfer(news: MemoryNews, networks: list[str], keys: list[str]) -> None:
    async def scenario() -> None:
        async with primary(news, Peers.read(networks=networks, keys=keys, secondaries=[])) as server:
            for rdtype in ("AXFR", "IXFR"):
                query = dns.message.make_query(ZONE, rdtype)
                answer = await dns.asyncquery.tcp(query, "127.0.0.1", port=server.port, timeout=10)
                assert answer.rcode() == dns.rcode.REFUSED
                assert not answer.answer
            # A key of the same name with another secret must not be accepted.
            forged = dns.message.make_query(ZONE, "AXFR")
            other = dns.tsig.Key("k", base64.b64encode(b"guessed").decode(), "hmac-sha256")
            forged.use_tsig(other)
            wire = await _raw(forged.to_wire(), server.port)
            assert wire[3] & 0xF == dns.rcode.NOTAUTH
            told = dns.message.from_wire(wire, keyring=False).tsig  # type: ignore[arg-type]
            assert told is not None
            assert told[0].error == (dns.rcode.BADSIG if keys else dns.rcode.BADKEY)

    asyncio.run(scenario())


def test_an_ixfr_over_udp_returns_only_the_serial(news: MemoryNews) -> None:
    """Send IXFR over UDP: the answer is the serial alone, so that the client repeats the query over TCP (RFC 1995)."""

    async def scenario() -> None:
        keys = [f"shared:hmac-sha256:{SECRET}"]
        peers = Peers.read(networks=["192.0.2.0/24"], keys=keys, secondaries=[])
        async with primary(news, peers) as server:
            news.write(CELL, [reported(0, "stopping")])
            query = dns.message.make_query(ZONE, "IXFR")
            query.authority.append(dns.rrset.from_text(f"{ZONE}.", 0, "IN", "SOA", "ns. hostmaster. 1 0 0 0 0"))
            refused = await dns.asyncquery.udp(query, "127.0.0.1", port=server.port, timeout=10)
            assert refused.rcode() == dns.rcode.REFUSED
            query.use_tsig(dict(peers.keys))

            async def reports() -> bool:
                answer = await dns.asyncquery.udp(query, "127.0.0.1", port=server.port, timeout=10)
                assert (answer.rcode(), answer.had_tsig, len(answer.answer)) == (0, True, 1)
                return bool(answer.answer[0][0].serial == 2)

            await until(reports, lambda: "serial 2")
            query = dns.message.make_query("zz.borg.internal", "IXFR")
            query.use_tsig(dict(peers.keys))
            other = await dns.asyncquery.udp(query, "127.0.0.1", port=server.port, timeout=10)
            assert other.rcode() == dns.rcode.NOTAUTH
            axfr = await dns.asyncquery.udp(
                dns.message.make_query(ZONE, "AXFR"), "127.0.0.1", port=server.port, timeout=10
            )
            assert axfr.rcode() == dns.rcode.REFUSED

    asyncio.run(scenario())


async def _raw(query: bytes, port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(len(query).to_bytes(2) + query)
    async with asyncio.timeout(BOUND_S):
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("setting", "given", "told"),
    [
        ("networks", "10.0.0.1/8", "BORG_DNS_TRANSFER"),
        ("networks", "here", "BORG_DNS_TRANSFER"),
        ("keys", "name", "BORG_DNS_KEYS"),
        ("keys", "name:hmac-md5.sig-alg.reg.int:c2VjcmV0", "BORG_DNS_KEYS"),
        ("keys", "name:hmac-sha256:!", "BORG_DNS_KEYS"),
        ("keys", "name:hmac-sha256:", "BORG_DNS_KEYS"),
        ("secondaries", "ns1.example.com", "BORG_DNS_SECONDARIES"),
        ("secondaries", "192.0.2.1@0", "BORG_DNS_SECONDARIES"),
    ],
)
def test_settings_that_cant_be_read_are_named(setting: str, given: str, told: str) -> None:
    settings: dict[str, list[str]] = {"networks": [], "keys": [], "secondaries": []}
    with pytest.raises(InvalidPeers, match=told):
        Peers.read(**settings | {setting: [given]})


def test_the_tools_of_these_tests_are_there() -> None:
    assert all(shutil.which(name) for name in ("knotd", "named", "nsd", "pdns_server", "pdnsutil"))
