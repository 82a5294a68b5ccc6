"""The primary server of each cell's zone. It decides who may transfer the zone, and notifies secondaries of changes
(NOTIFY, RFC 1996).

    Follower ─► tables ─► Primary.watch ─► publish, every COALESCE_S while names change ─► NOTIFY ─► secondaries
    secondary ─► TCP ─► DnsServer ─► Primary.transfer ─► messages of `naming.dns.transfer`

If there are secondaries to notify, a resolver process builds a zone as soon as the names of the cell are loaded.
Otherwise, it builds the zone at the zone's first transfer. Each process has its own zones and its own list of changes.
So a client that reaches another process than before gets the whole zone.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dns.asyncquery
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import dns.rrset
import dns.tsig
import structlog

from naming.counters import ServerCounters, increment
from naming.dns import transfer
from naming.dns.protocol import wire
from naming.dns.protocol.rate_limit import Address, Network, plain_address
from naming.dns.resolver import quick_rcode
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.records import find
from naming.dns.zones.zone import Zone
from naming.table.table import NameTable

log = structlog.get_logger(__name__)

_QR = 0x80  # the bit in the third octet that marks an answer
COALESCE_S = 0.2  # between two serials for which secondaries get notifications
NOTIFY_TIMEOUT_S = 2.0
NOTIFY_TRIES = 5
TRANSFERS = 8  # at the same time; further transfers wait
Keyring = Mapping[dns.name.Name, dns.tsig.Key]


class InvalidPeers(ValueError):
    """The error for an invalid setting of zone transfers. The message names the setting and says what to write
    instead.
    """


@dataclass(frozen=True, slots=True)
class Peers:
    """The clients that may transfer zones: clients that sign their queries with one of `keys`, and clients in
    `networks`.

    `secondaries`: address and port of each server to notify of changes. If there are keys, the first one signs the
    notifications.
    """

    networks: tuple[Network, ...] = ()
    keys: Keyring = field(default_factory=dict)
    secondaries: tuple[tuple[str, int], ...] = ()

    @classmethod
    def read(cls, *, networks: Sequence[str], keys: Sequence[str], secondaries: Sequence[str]) -> Peers:
        """Parse the settings of zone transfers. Raises `InvalidPeers` if a value is not valid.

        A key is written as `name:algorithm:base64`, and a secondary as `address` or `address@port`.
        """
        return cls(
            tuple(_network(text) for text in networks),
            {key.name: key for key in map(_key, keys)},
            tuple(server_address("BORG_DNS_SECONDARIES", text) for text in secondaries),
        )

    def __bool__(self) -> bool:
        return bool(self.networks or self.keys or self.secondaries)

    def may_transfer(self, query: dns.message.Message, source: str) -> bool:
        if query.had_tsig:
            return True  # the parser has checked the signature with one of the keys
        return self._allows(plain_address(source))

    def knows(self, source: str) -> bool:
        """Return whether the address `source` belongs to a known secondary, or to a network that may transfer zones."""
        address = plain_address(source)
        known = any(address == ipaddress.ip_address(secondary) for secondary, _ in self.secondaries)
        return known or self._allows(address)

    def _allows(self, address: Address) -> bool:
        return any(address in network for network in self.networks if network.version == address.version)


class Primary:
    """Serves the zones of the resolver's cells to secondaries: it answers zone transfers, and notifies the secondaries
    of changes.
    """

    def __init__(self, directory: ZoneDirectory, peers: Peers, figures: ServerCounters | None = None) -> None:
        self.directory = directory
        self.peers = peers
        self.figures = figures or ServerCounters()
        self._zones: dict[str, Zone] = {}
        self._building: dict[str, asyncio.Task[Zone]] = {}  # by cell
        self._transfers = asyncio.Semaphore(TRANSFERS)
        self._notified: dict[str, int] = {}  # serial by cell
        self._notifying: dict[tuple[str, str, int], asyncio.Task[None]] = {}

    async def transfer(self, query: dns.message.Message, source: str) -> AsyncGenerator[bytes, None]:
        """Yield the messages that answer the transfer request `query`. The caller sends them in this order over TCP."""
        rcode, table = requested_table(query, source, self.directory, self.peers)
        if table is None:
            increment(self.figures.transfers, "refused" if rcode == dns.rcode.REFUSED else "not-here")
            yield _without_records(query, rcode)
            return
        async with self._transfers:
            zone = await self._published(table)
            given, serial = transfer.given(query, zone, source), zone.serial
            for wire in transfer.messages(query, zone, source):
                yield wire
                await asyncio.sleep(0)  # otherwise a client that reads fast would block all other work
            if given != "current":
                zone.taken_by.add(source)
            increment(self.figures.transfers, given)
            self.figures.secondaries.setdefault(table.cell, {})[source] = serial

    async def _published(self, table: NameTable) -> Zone:
        """Return the cell's zone with its current records. If the zone is being built, wait until it is complete."""
        task = self._building.get(table.cell)
        if task is None:
            zone = self._zones.get(table.cell)
            known = zone is not None and zone.table is table
            if zone is not None and known and zone.serial == table.serial:
                return zone
            task = asyncio.create_task(self._publish(zone) if zone and known else self._fill(table))
            self._building[table.cell] = task
            task.add_done_callback(lambda _: self._building.pop(table.cell, None))
        return await asyncio.shield(task)

    async def _fill(self, table: NameTable) -> Zone:
        """Build the whole zone from its table. This is necessary at the first request, or after the table was
        replaced.
        """
        zone = Zone(self.directory, table)
        for _ in zone.fill():
            await asyncio.sleep(0)
        self._zones[table.cell] = zone
        log.info("zone built", zone=zone.apex.to_text(), serial=zone.serial, records=len(zone))
        return zone

    async def _publish(self, zone: Zone) -> Zone:
        for _ in zone.publishing():
            await asyncio.sleep(0)
        return zone

    async def watch(self) -> None:
        """Add changed names to the zones, and notify the secondaries of the changes. Runs until its asyncio task is
        cancelled.
        """
        try:
            while True:
                await asyncio.sleep(COALESCE_S)
                self._forget()
                for table in list(self.directory.cells.values()):
                    if table.ready and (self.peers.secondaries or table.cell in self._zones):
                        self._notify_all(await self._published(table))
        finally:
            for task in (*self._notifying.values(), *self._building.values()):
                task.cancel()

    def _forget(self) -> None:
        """Remove the zones of removed cells from memory."""
        for cell in self._zones.keys() - self.directory.cells.keys():
            del self._zones[cell]
            self._notified.pop(cell, None)

    def _notify_all(self, zone: Zone) -> None:
        cell = zone.table.cell
        if self._notified.get(cell) != zone.serial:
            self._notified[cell] = zone.serial
            for address, port in self.peers.secondaries:
                key = (cell, address, port)
                running = self._notifying.get(key)
                if running is None or running.done():
                    self._notifying[key] = asyncio.create_task(self._notify(cell, address, port))

    async def _notify(self, cell: str, address: str, port: int) -> None:
        """Send the newest serial to a secondary again and again, at growing intervals, until the secondary acknowledges
        it.
        """
        tries, reason = 0, ""
        while tries < NOTIFY_TRIES:
            zone = self._zones.get(cell)
            if zone is None:
                return
            serial = zone.serial
            message = dns.message.make_query(zone.apex, dns.rdatatype.SOA)
            message.set_opcode(dns.opcode.NOTIFY)
            message.flags = (message.flags | dns.flags.AA) & ~dns.flags.RD
            message.answer.append(dns.rrset.from_rdata(zone.apex, 0, zone.soa))
            if self.peers.keys:
                message.use_tsig(dict(self.peers.keys))
            try:
                answer = await dns.asyncquery.udp(message, address, port=port, timeout=NOTIFY_TIMEOUT_S)
                reason = "" if answer.rcode() == dns.rcode.NOERROR else dns.rcode.to_text(answer.rcode())
            except (dns.exception.DNSException, OSError) as error:
                reason = f"{type(error).__name__}: {error}"
            if reason:
                tries += 1
                log.debug(
                    "cannot notify a secondary DNS server of a change yet; the resolver tries again",
                    address=address,
                    port=port,
                    reason=reason,
                )
                await asyncio.sleep(2.0 ** (tries - 1))
                continue
            now = self._zones.get(cell)
            if now is None or now.serial == serial:
                return
            tries = 0  # the zone changed meanwhile
        increment(self.figures.notify_failures, f"{address}@{port}")
        log.warning(
            "the resolver cannot notify a secondary DNS server that the zone of a cell has changed",
            address=address,
            port=port,
            cell=cell,
            reason=reason,
        )


class Seldom:
    """A limit of one log line per `every_s` seconds, for log lines that any client can cause."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._last = float("-inf")

    def due(self, now: float) -> bool:
        """Return whether the caller may write a log line now. `now`: seconds of a monotonic clock."""
        if now - self._last < self._every_s:
            return False
        self._last = now
        return True


_rejections = Seldom(1.0)


def read_transfer(query: bytes, directory: ZoneDirectory) -> dns.message.Message | None:
    """Return the parsed message if it requests a zone transfer and its signature is valid or missing. Otherwise, return
    None.
    """
    if len(query) < wire.HEADER.size or query[2] & _QR or quick_rcode(query) is not None:
        return None
    try:
        message = dns.message.from_wire(query, keyring=dict(directory.keyring) or None)
    except (dns.exception.DNSException, ValueError):
        return None  # the long path answers it
    return message if transfer.wanted(message) else None


def requested_table(
    query: dns.message.Message, source: str, directory: ZoneDirectory, peers: Peers
) -> tuple[dns.rcode.Rcode, NameTable | None]:
    """Return the response code for a zone transfer, and the table of the requested zone.

    The table is None if the client may not transfer the zone, or if the zone is unknown or not loaded yet.
    """
    if not peers.may_transfer(query, source):
        if _rejections.due(time.monotonic()):
            log.info("transfer rejected", source=source, zone=query.question[0].name.to_text())
        return dns.rcode.REFUSED, None
    labels = tuple(label.lower() for label in query.question[0].name.labels[:-1])
    if labels[1:] != directory.labels:
        return dns.rcode.NOTAUTH, None
    table = directory.cells.get(labels[0].decode("latin-1"))
    if table is None:
        return dns.rcode.NOTAUTH if directory.loaded else dns.rcode.SERVFAIL, None
    return dns.rcode.NOERROR if table.ready else dns.rcode.SERVFAIL, table if table.ready else None


def current_soa(query: dns.message.Message, source: str, directory: ZoneDirectory, peers: Peers) -> bytes:
    """Return the answer to an IXFR request over UDP. It contains only the SOA record. A client with an older zone then
    uses TCP (RFC 1995 §2, §4).
    """
    rcode, table = requested_table(query, source, directory, peers)
    if table is None:
        return _without_records(query, rcode)
    response = dns.message.make_response(query)
    response.flags |= dns.flags.AA
    apex = query.question[0].name
    soa = find(directory, apex.labels).zone.soa()
    response.answer.append(dns.rrset.from_rdata(apex, directory.negative_ttl_s, soa))
    return response.to_wire()


def _without_records(query: dns.message.Message, rcode: dns.rcode.Rcode) -> bytes:
    response = dns.message.make_response(query)
    response.set_rcode(rcode)
    return response.to_wire()


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        problem = f"BORG_DNS_TRANSFER: {text!r} is not a network ({error}); give networks such as 192.0.2.0/24"
        raise InvalidPeers(problem) from error


def _key(text: str) -> dns.tsig.Key:
    name, _, rest = text.strip().partition(":")
    algorithm, _, secret = rest.partition(":")
    known: Any = dns.tsig.HMAC_SHA256, dns.tsig.HMAC_SHA384, dns.tsig.HMAC_SHA512
    try:
        key = dns.tsig.Key(name, secret, algorithm)
    except (dns.exception.DNSException, ValueError) as error:
        raise InvalidPeers(
            f"BORG_DNS_KEYS: key {name[:32]!r} cannot be read; give NAME:hmac-sha256:SECRET in base64"
        ) from error
    if not name or not key.secret or key.algorithm not in known:
        names = ", ".join(one.to_text(omit_final_dot=True) for one in known)
        raise InvalidPeers(
            f"BORG_DNS_KEYS: the key {name[:32]!r} lacks a name, a secret or a known algorithm; give "
            f"NAME:ALGORITHM:SECRET with one of the algorithms {names}"
        )
    return key


def server_address(setting: str, text: str) -> tuple[str, int]:
    """Return the address and the port of a name server. `text`: `address` or `address@port`. `setting`: the name of the
    setting, for errors. Raises `InvalidPeers` if `text` has another form.
    """
    address, at, port = text.strip().partition("@")
    try:
        number = int(port) if at else 53
        if not 0 < number < 65_536:
            raise ValueError(f"port {number} is out of range; give a number from 1 to 65535")
        return str(ipaddress.ip_address(address)), number
    except ValueError as error:
        raise InvalidPeers(
            f"{setting}: {text!r} is not the address of a server; give an address, or 192.0.2.1@5353 for a port"
            " other than 53"
        ) from error
