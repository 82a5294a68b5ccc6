"""Helpers that run Knot, BIND, NSD and PowerDNS as secondaries, and the resolver of this project as their primary."""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import dns.asyncquery
import dns.exception
import dns.message
import dns.name
import dns.rdata
import dns.tsig
import dns.zone

from naming.dns.primary import Peers, Primary
from naming.dns.zones.directory import ZoneDirectory
from naming.following.follower import Follower
from naming.server import DnsServer
from tests.memory_news import MemoryNews

CELL, ZONE = 3, "cc.borg.internal"
BOUND_S = 30.0
CAA = tuple(
    dns.rdata.from_text("IN", "CAA", text)
    for text in ('0 issue "ca.example"', '0 issuewild ";"', '128 iodef "mailto:ca@example.org"')
)
SECRET = base64.b64encode(b"known to both ends of it, and to nobody else").decode()


@dataclass
class Daemon:
    """A name server as a child process with a log file."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    async def records(self) -> set[str]:
        """Transfer the server's zone and return its records as texts; an empty set if the server has no zone yet."""
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
    """Return one text per record, without the cell's revision, which can change while names and serial do not."""
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
    process = subprocess.Popen(["knotd", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
    process = subprocess.Popen(["named", "-f", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Daemon("bind", port, process, folder / "named.log")


def nsd(folder: Path, port: int, primary: int) -> Daemon:
    config = folder / "nsd.conf"
    config.write_text(f"""
server:
    ip-address: 127.0.0.1@{port}
    username: ""
    zonesdir: "{folder}"
    database: ""
    zonelistfile: "{folder}/zone.list"
    pidfile: "{folder}/nsd.pid"
    xfrdfile: "{folder}/xfrd.state"
    xfrdir: "{folder}"
    logfile: "{folder}/nsd.log"
    verbosity: 3
    xfrd-reload-timeout: 0
remote-control:
    control-enable: no
key:
    name: shared
    algorithm: hmac-sha256
    secret: "{SECRET}"
zone:
    name: {ZONE}
    zonefile: zone
    request-xfr: 127.0.0.1@{primary} shared
    allow-notify: 127.0.0.1 shared
    provide-xfr: 127.0.0.1 NOKEY
""")
    process = subprocess.Popen(["nsd", "-d", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Daemon("nsd", port, process, folder / "nsd.log")


def powerdns(folder: Path, port: int, primary: int) -> Daemon:
    """Start PowerDNS as a secondary of the server on port `primary`.

    Its backend for zone files can only take whole zones. If it asks for an incremental transfer (IXFR), it logs
    "committed" and keeps its old zone (version 4.7).
    """
    (folder / "named.conf").write_text(
        f'zone "{ZONE}" {{ type slave; file "{folder}/zone"; masters {{ 127.0.0.1:{primary}; }}; }};\n'
    )
    (folder / "pdns.conf").write_text(f"""
launch=bind
bind-config={folder}/named.conf
bind-dnssec-db={folder}/keys.sqlite
local-address=127.0.0.1
local-port={port}
socket-dir={folder}
slave=yes
slave-cycle-interval=1
allow-axfr-ips=127.0.0.1
allow-notify-from=127.0.0.1
cache-ttl=0
query-cache-ttl=0
zone-cache-refresh-interval=0
loglevel=5
setuid=
setgid=
receiver-threads=1
distributor-threads=1
""")
    for words in (
        ["create-bind-db", f"{folder}/keys.sqlite"],
        ["import-tsig-key", "shared", "hmac-sha256", SECRET],
        ["activate-tsig-key", ZONE, "shared", "slave"],
    ):
        subprocess.run(["pdnsutil", f"--config-dir={folder}", *words], check=True, capture_output=True)
    log = folder / "pdns.log"
    with log.open("wb") as output:
        process = subprocess.Popen(["pdns_server", f"--config-dir={folder}"], stdout=output, stderr=output)
    return Daemon("powerdns", port, process, log)


@asynccontextmanager
async def primary(news: MemoryNews, peers: Peers) -> AsyncIterator[DnsServer]:
    directory = ZoneDirectory(zone="borg.internal", keyring=peers.keys, caa=CAA)
    source = Primary(directory, peers)
    server = DnsServer(directory, "127.0.0.1", 0, primary=source, peers=peers)
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


async def transferred(server: DnsServer, keys: Mapping[dns.name.Name, dns.tsig.Key] | None = None) -> dns.zone.Zone:
    """Return the whole zone, as a client receives it from the primary. `keys`: TSIG keys that sign the query."""
    zone = dns.zone.Zone(dns.name.from_text(ZONE), relativize=False)
    query = dns.message.make_query(ZONE, "AXFR")
    if keys:
        query.use_tsig(dict(keys))
    await dns.asyncquery.inbound_xfr("127.0.0.1", zone, query, port=server.port, timeout=10)
    return zone


async def serial(port: int) -> int | None:
    """Return the serial of the zone on the server at `port`, or None if it has no zone or does not answer."""
    query = dns.message.make_query(ZONE, "SOA")
    try:
        answer = await dns.asyncquery.udp(query, "127.0.0.1", port=port, timeout=1)
    except (dns.exception.DNSException, OSError):
        return None
    return answer.answer[0][0].serial if answer.answer else None


async def until(wanted: Callable[[], Awaitable[bool]], what: Callable[[], str]) -> None:
    deadline = asyncio.get_running_loop().time() + BOUND_S
    while not await wanted():
        assert asyncio.get_running_loop().time() < deadline, what()
        await asyncio.sleep(0.05)
