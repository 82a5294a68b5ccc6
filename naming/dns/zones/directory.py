"""The cells that a resolver answers for, and the constants of their zones. Pure: the server fills it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import dns.name
import dns.rdata
import dns.tsig

from naming.dns.protocol.cookies import Cookies
from naming.table.names import check_zone
from naming.table.reverse import Network, apexes
from naming.table.table import NameTable

DEFAULT_ZONE = "borg.internal"


class Status(StrEnum):
    """The status of the resolver at `health.<zone>`."""

    LOADING = "loading"  # some cell's names are not known yet; they answer SERVFAIL
    OK = "ok"
    STALE = "stale"  # the journal has not been reached for longer than the bound; answers go on from memory


@dataclass(slots=True)
class ZoneDirectory:
    """The cells of a resolver. `loaded`: the list of cells was read once, so other cells do not exist.

    `nameserver`: address of this resolver as its clients reach it, the A or AAAA of `ns.<zone>`.
    `serial`: of the parent zone, which changes when cells come and go; the highest id of a cell, so far.
    `keyring`: keys that questions may be signed with (TSIG), by name.
    `nsid`: name of this process for clients that ask for it (RFC 5001); `cookies`: none for no cookies.
    `ttl_s`: how long answers may be remembered where a job does not say; `negative_ttl_s`: that there is none.
    `reverse`: networks whose reverse zones are ours; `caa`: records of that type at the apexes of the other zones.
    `generation`: moves when a cell's table is replaced or leaves, not with what happens inside one.
    """

    zone: str = DEFAULT_ZONE
    nameserver: str = "127.0.0.1"
    ttl_s: int = 5
    negative_ttl_s: int = 5
    serial: int = 1
    loaded: bool = False
    generation: int = 0
    status: Status = Status.LOADING
    cells: dict[str, NameTable] = field(default_factory=dict)
    keyring: Mapping[dns.name.Name, dns.tsig.Key] = field(default_factory=dict)
    nsid: bytes = b""
    cookies: Cookies | None = None
    reverse: tuple[Network, ...] = ()
    caa: tuple[dns.rdata.Rdata, ...] = ()
    reverse_apexes: frozenset[tuple[bytes, ...]] = field(init=False)  # labels without the root
    labels: tuple[bytes, ...] = field(init=False)  # of the zone, without the root

    def __post_init__(self) -> None:
        self.zone = check_zone(self.zone)
        self.labels = tuple(label.encode() for label in self.zone.split("."))
        self.reverse_apexes = apexes(self.reverse)

    @property
    def all_ready(self) -> bool:
        """Return whether all tables are loaded, so that a missing name does not exist."""
        return self.loaded and all(table.ready for table in self.cells.values())
