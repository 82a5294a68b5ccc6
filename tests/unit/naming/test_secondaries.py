"""Knot and BIND as secondaries: AXFR, then IXFR at each NOTIFY, equal to the primary after every change."""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
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

from naming.directory import Directory
from naming.follower import Follower
from naming.news import MemoryNews
from naming.primary import InvalidPeers, Peers, Primary
from naming.server import Server
from scheduling.core import events
from tests.unit.naming.cells import WEB, evicted, machine, placed, reported, running, submitted
from tests.unit.naming.process import free_port

CELL, ZONE = 3, "cc.borg.internal"
BOUND_S = 30.0
SECRET = base64.b64encode(b"known to both ends of it, and to nobody else").decode()


@dataclass
class Daemon:
    """A name server as a child process, its log in a file."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    async def records(self) -> set[str]:
        """Its zone, as sorted text; empty while it has none."""
        zone = dns.zone.Zone(dns.name.from_text(ZONE), relativize=False)
        try:
            await dns.asyncquery.inbound_xfr("127.0.0.1", zone, port=self.port, timeout=5)
        except (dns.exception.DNSException, OSError):
            return set()
        return lines(zone)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


def lines(zone: dns.zone.Zone) -> set[str]:
    """Without the revision that the cell stands at, which moves while names and serial stay."""
    return {
        re.sub(r'"revision=\d+" ', "", f"{name} {rdataset.ttl} {rdata.rdtype} {rdata}")
        for name, node in zone.nodes.items()
        for rdataset in node.rdatasets
        for rdata in rdataset
    }


def knot(folder: Path, port: int, primary: int) -> Daemon:
    config = folder / "knot.conf"
    config.write_text(f"""
server:
    rundir: "{folder}"
    listen: 127.0.0.1@{port}
database:
    storage: "{folder}"
log:
  - target: "{folder}/knot.log"
    any: debug
key:
  - id: shared
    algorithm: hmac-sha256
    secret: {SECRET}
remote:
  - id: primary
    address: 127.0.0.1@{primary}
    key: shared
acl:
  - id: told
    address: 127.0.0.1
    action: notify
    key: shared
  - id: read
    address: 127.0.0.1
    action: transfer
zone:
  - domain: {ZONE}
    storage: "{folder}"
    master: primary
    acl: [told, read]
    zonefile-sync: -1
    journal-content: all
""")
    process = subprocess.Popen(
        ["knotd", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return Daemon("knot", port, process, folder / "knot.log")


def bind(folder: Path, port: int, primary: int) -> Daemon:
    config = folder / "named.conf"
    config.write_text(f"""
options {{
  directory "{folder}"; pid-file "{folder}/named.pid"; session-keyfile "{folder}/session.key";
  listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; recursion no; dnssec-validation no;
  allow-transfer {{ 127.0.0.1; }}; minimal-responses yes; max-transfer-idle-in 1;
}};
controls {{ }};
logging {{
  channel all {{ file "{folder}/named.log"; severity debug 3; print-category yes; }};
  category default {{ all; }};
}};
key shared {{ algorithm hmac-sha256; secret "{SECRET}"; }};
zone "{ZONE}" {{
  type secondary; file "zone"; primaries {{ 127.0.0.1 port {primary} key shared; }}; allow-notify {{ key shared; }};
}};
""")
    process = subprocess.Popen(
        ["named", "-f", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return Daemon("bind", port, process, folder / "named.log")


@asynccontextmanager
async def primary(news: MemoryNews, peers: Peers) -> AsyncIterator[Server]:
    directory = Directory(zone="borg.internal", keyring=peers.keys)
    source = Primary(directory, peers)
    server = Server(directory, "127.0.0.1", 0, primary=source, peers=peers)
    await server.start()
    loaded = asyncio.Event()
    tasks = [
        asyncio.create_task(Follower(directory, news, on_loaded=loaded.set).run()),
        asyncio.create_task(source.watch()),
    ]
    try:
        async with asyncio.timeout(BOUND_S):
            await loaded.wait()
        yield server
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()


async def until(wanted: Callable[[], Awaitable[bool]], what: Callable[[], str]) -> None:
    deadline = asyncio.get_running_loop().time() + BOUND_S
    while not await wanted():
        assert asyncio.get_running_loop().time() < deadline, what()
        await asyncio.sleep(0.05)


@pytest.fixture
def news() -> MemoryNews:
    memory = MemoryNews()
    memory.add_cell(CELL, "cc")
    memory.write(CELL, running(40))
    return memory


CHANGES: tuple[list[events.Event], ...] = (
    [reported(0, "stopping")],
    [evicted(1), placed(1, 7, incarnation=2)],
    [reported(1, incarnation=2), machine(3, "10.77.0.1"), machine(99, "2001:db8::99")],
    [submitted("other", job_id=9, tasks=50)],
    [placed(index, index % 40, job_id=9) for index in range(50)],
    [events.JobEnded(job_id=WEB, how="killed")],
    [events.MachineRemoved(machine_id=99)],
)


def test_knot_and_bind_follow_every_change(news: MemoryNews, tmp_path: Path) -> None:
    async def scenario() -> None:
        ports = free_port(), free_port()
        peers = Peers.read(
            networks=[],
            keys=[f"shared:hmac-sha256:{SECRET}"],
            secondaries=[f"127.0.0.1@{port}" for port in ports],
        )
        async with primary(news, peers) as server:
            folders = tmp_path / "knot", tmp_path / "bind"
            for folder in folders:
                folder.mkdir()
            daemons = [knot(folders[0], ports[0], server.port), bind(folders[1], ports[1], server.port)]
            try:
                for number, change in enumerate(((), *CHANGES)):
                    if change:
                        news.write(CELL, change)
                    await _all_equal(server, peers, daemons, number)
                told = {daemon.name: daemon.log.read_text() for daemon in daemons}
            finally:
                for daemon in daemons:
                    daemon.stop()
        # Steps, not whole zones, after the first.
        assert len(re.findall(r"AXFR, incoming, remote 127\.0\.0\.1@\d+.*, started", told["knot"])) == 1
        assert told["knot"].count("IXFR, incoming") >= len(CHANGES)
        assert "got incremental response" in told["bind"]
        assert "bad" not in re.findall(r"tsig[^\n]*", told["bind"].lower())

    asyncio.run(scenario())


async def _all_equal(server: Server, peers: Peers, daemons: list[Daemon], number: int) -> None:
    async def equal() -> bool:
        zone = dns.zone.Zone(dns.name.from_text(ZONE), relativize=False)
        query = dns.message.make_query(ZONE, "AXFR")
        query.use_tsig(dict(peers.keys))
        await dns.asyncquery.inbound_xfr("127.0.0.1", zone, query, port=server.port, timeout=10)
        wanted = lines(zone)
        found = [await daemon.records() for daemon in daemons]
        seen[:] = [
            f"{daemon.name}: {sorted(got ^ wanted)[:6]}" for daemon, got in zip(daemons, found, strict=True)
        ]
        return all(got == wanted for got in found)

    seen: list[str] = []
    await until(equal, lambda: f"after change {number}: {seen}")


def test_other_tools_find_the_zone_clean(news: MemoryNews, tmp_path: Path) -> None:
    async def scenario() -> None:
        peers = Peers.read(networks=["127.0.0.0/8"], keys=[], secondaries=[])
        async with primary(news, peers) as server:
            zone = dns.zone.Zone(dns.name.from_text(ZONE), relativize=False)
            await dns.asyncquery.inbound_xfr("127.0.0.1", zone, port=server.port, timeout=10)
        (tmp_path / "zone").write_text(zone.to_text(relativize=False))

    asyncio.run(scenario())
    for command in (
        ["named-checkzone", "-i", "local", ZONE, str(tmp_path / "zone")],
        ["ldns-read-zone", str(tmp_path / "zone")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stderr.lower()


@pytest.mark.parametrize(("networks", "keys"), [([], []), (["192.0.2.0/24"], [f"k:hmac-sha256:{SECRET}"])])
def test_nobody_else_may_transfer(news: MemoryNews, networks: list[str], keys: list[str]) -> None:
    async def scenario() -> None:
        async with primary(news, Peers.read(networks=networks, keys=keys, secondaries=[])) as server:
            for rdtype in ("AXFR", "IXFR"):
                query = dns.message.make_query(ZONE, rdtype)
                answer = await dns.asyncquery.tcp(query, "127.0.0.1", port=server.port, timeout=10)
                assert answer.rcode() == dns.rcode.REFUSED
                assert not answer.answer
            # A key of the same name with another secret is no key of ours.
            forged = dns.message.make_query(ZONE, "AXFR")
            other = dns.tsig.Key("k", base64.b64encode(b"guessed").decode(), "hmac-sha256")
            forged.use_tsig(other)
            wire = await _raw(forged.to_wire(), server.port)
            assert wire[3] & 0xF == dns.rcode.NOTAUTH

    asyncio.run(scenario())


def test_an_ixfr_over_udp_is_told_the_serial_alone(news: MemoryNews) -> None:
    """RFC 1995: who is behind comes again over TCP."""

    async def scenario() -> None:
        keys = [f"shared:hmac-sha256:{SECRET}"]
        peers = Peers.read(networks=["192.0.2.0/24"], keys=keys, secondaries=[])
        async with primary(news, peers) as server:
            news.write(CELL, [reported(0, "stopping")])
            query = dns.message.make_query(ZONE, "IXFR")
            query.authority.append(
                dns.rrset.from_text(f"{ZONE}.", 0, "IN", "SOA", "ns. hostmaster. 1 0 0 0 0")
            )
            refused = await dns.asyncquery.udp(query, "127.0.0.1", port=server.port, timeout=10)
            assert refused.rcode() == dns.rcode.REFUSED
            query.use_tsig(dict(peers.keys))

            async def told() -> bool:
                answer = await dns.asyncquery.udp(query, "127.0.0.1", port=server.port, timeout=10)
                assert (answer.rcode(), answer.had_tsig, len(answer.answer)) == (0, True, 1)
                return bool(answer.answer[0][0].serial == 2)

            await until(told, lambda: "serial 2")
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
    assert all(shutil.which(name) for name in ("knotd", "named", "named-checkzone", "ldns-read-zone"))
