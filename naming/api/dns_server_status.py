"""Asks all resolvers and secondaries, in parallel, which revision or serial of a cell's names they have."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce

import dns.asyncquery
import dns.exception
import dns.message
import dns.rcode
from django.conf import settings

from naming.dns.primary import server_address
from naming.dns.zones.directory import Status
from naming.table.table import SERIAL_MODULUS, serial_newer

TIMEOUT_S = 2.0
_FACT = re.compile(r"([a-z-]+)=(.*)", re.S)


class ServerRole(StrEnum):
    RESOLVER = "resolver"
    SECONDARY = "secondary"


class FollowState(StrEnum):
    """The states of a DNS server: whether it has the newest names of a cell."""

    CAUGHT_UP = "caught-up"
    BEHIND = "behind"
    LOADING = "loading"
    STALE = "stale"  # the server reports that it has not reached the journal for a long time
    SILENT = "silent"
    NO_ZONE = "no-zone"  # the server answers, but does not have this zone
    UNKNOWN = "unknown"  # a secondary, if no resolver reports its serial


@dataclass(frozen=True, slots=True)
class SurveyedServer:
    role: ServerRole
    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class FollowerReport:
    """The state of a cell's zone on a DNS server.

    `serial` and `revision` are None if the server does not report them. `detail`: the error, if any. `behind`: the
    serial of a secondary is lower by this number than the lowest serial of the resolvers.
    """

    server: SurveyedServer
    state: FollowState
    serial: int | None = None
    revision: int | None = None
    detail: str = ""
    behind: int = 0

    @property
    def reached(self) -> bool:
        return self.state is not FollowState.SILENT

    @property
    def caught_up(self) -> bool:
        return self.state is FollowState.CAUGHT_UP

    @property
    def error(self) -> str:
        """Return why the server is not up to date, or an empty text if it is."""
        return "" if self.caught_up else " ".join(filter(None, (self.state.value, self.detail)))


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of a DNS server. `facts`: the values in its TXT record, by name. `error`: why the server did not
    answer.
    """

    rcode: str = ""
    serial: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


def servers() -> list[SurveyedServer]:
    """Return the DNS servers to query: those in the settings. If the settings name no resolver, add the resolver of
    this installation. Raises `InvalidPeers` if an address in the settings is not valid.
    """
    resolvers = [server_address("BORG_DNS_RESOLVERS", text) for text in settings.BORG_DNS_RESOLVERS]
    resolvers = resolvers or [server_address("BORG_DNS_HOST", f"{settings.BORG_DNS_HOST}@{settings.BORG_DNS_PORT}")]
    secondaries = [server_address("BORG_DNS_SECONDARIES", text) for text in settings.BORG_DNS_SECONDARIES]
    return [
        *(SurveyedServer(ServerRole.RESOLVER, _reachable(address), port) for address, port in resolvers),
        *(SurveyedServer(ServerRole.SECONDARY, address, port) for address, port in secondaries),
    ]


def _reachable(host: str) -> str:
    """Return the address at which to query the resolver that listens on `host`. If `host` stands for all addresses of
    the machine, return a loopback address.
    """
    address = ipaddress.ip_address(host)
    if not address.is_unspecified:
        return str(address)
    return "127.0.0.1" if address.version == 4 else "::1"


def followers(
    cell: str, *, wanted: int, asked: Sequence[SurveyedServer], timeout_s: float = TIMEOUT_S
) -> list[FollowerReport]:
    """Ask each server in `asked` which revision of the cell's journal its zone has reached. Return one report per
    server, in the order of `asked`. `wanted`: the newest revision of the cell.

    The function takes at most `timeout_s` seconds, even if many servers do not answer.
    """
    answers = asyncio.run(_ask_all(f"{cell}.{settings.BORG_ZONE}", asked, timeout_s))
    found = list(zip(asked, answers, strict=True))
    serials = [
        zone.serial for server, (zone, _) in found if server.role is ServerRole.RESOLVER and zone.serial is not None
    ]
    return [
        _resolver(server, zone, health, wanted)
        if server.role is ServerRole.RESOLVER
        else _secondary(server, zone, serials)
        for server, (zone, health) in found
    ]


def newest_serial(found: Sequence[FollowerReport]) -> int | None:
    """Return the newest serial in the reports, or None if there is none. After its maximum, a serial begins again (RFC
    1982).
    """
    serials = [one.serial for one in found if one.serial is not None]
    return reduce(lambda a, b: b if serial_newer(b, a) else a, serials) if serials else None


def _resolver(server: SurveyedServer, zone: _Answer, health: _Answer, wanted: int) -> FollowerReport:
    status, reported = health.facts.get("status"), zone.facts.get("revision", "")
    revision = int(reported) if reported.isdecimal() else None
    if zone.error and health.error:
        return FollowerReport(server, FollowState.SILENT, detail=zone.error)
    if revision is None:
        loading = status == Status.LOADING.value or zone.rcode == "SERVFAIL"
        state = FollowState.LOADING if loading else FollowState.NO_ZONE
        return FollowerReport(server, state, detail=zone.rcode or zone.error)
    state = FollowState.CAUGHT_UP if revision >= wanted else FollowState.BEHIND
    if status == Status.STALE.value:
        state = FollowState.STALE
    return FollowerReport(server, state, zone.serial, revision)


def _secondary(server: SurveyedServer, zone: _Answer, serials: Sequence[int]) -> FollowerReport:
    """Return the report of a secondary. `serials`: the serials that the resolvers reported.

    The secondary counts as up to date if its serial is not older than the oldest of `serials`.
    """
    if zone.error:
        return FollowerReport(server, FollowState.SILENT, detail=zone.error)
    serial = zone.serial
    if serial is None:
        return FollowerReport(server, FollowState.NO_ZONE, detail=zone.rcode)
    if not serials:
        return FollowerReport(server, FollowState.UNKNOWN, serial)
    if all(serial_newer(one, serial) for one in serials):
        behind = min((one - serial) % SERIAL_MODULUS for one in serials)
        return FollowerReport(server, FollowState.BEHIND, serial, behind=behind)
    return FollowerReport(server, FollowState.CAUGHT_UP, serial)


async def _ask_all(zone: str, asked: Sequence[SurveyedServer], timeout_s: float) -> list[tuple[_Answer, _Answer]]:
    return list(await asyncio.gather(*(_ask_one(zone, server, timeout_s) for server in asked)))


async def _ask_one(zone: str, server: SurveyedServer, timeout_s: float) -> tuple[_Answer, _Answer]:
    """Return two answers of a server: about the zone `zone`, and about the health of the server."""
    if server.role is ServerRole.SECONDARY:
        return await _ask(zone, "SOA", server, timeout_s), _Answer()
    soa, text, health = await asyncio.gather(
        _ask(zone, "SOA", server, timeout_s),
        _ask(zone, "TXT", server, timeout_s),
        _ask(f"health.{settings.BORG_ZONE}", "TXT", server, timeout_s),
    )
    return _Answer(text.rcode, soa.serial, text.facts, text.error), health


async def _ask(name: str, rdtype: str, server: SurveyedServer, timeout_s: float) -> _Answer:
    question = dns.message.make_query(name, rdtype)
    try:
        answer = await dns.asyncquery.udp(question, server.address, timeout=timeout_s, port=server.port)
    except (dns.exception.DNSException, OSError) as error:
        return _Answer(error=f"{type(error).__name__}")
    records = [record for rrset in answer.answer for record in rrset]
    texts = [text.decode("utf-8", "replace") for record in records for text in getattr(record, "strings", ())]
    facts = dict(match.groups() for text in texts if (match := _FACT.fullmatch(text)))  # type: ignore[arg-type, var-annotated]
    serial = next((record.serial for record in records if hasattr(record, "serial")), None)
    return _Answer(dns.rcode.to_text(answer.rcode()), serial, facts)
