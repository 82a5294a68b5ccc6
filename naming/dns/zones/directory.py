"""The directory of a resolver: the cells whose names it answers for, and the settings of their zones. Pure."""

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
    """The status that the resolver publishes at `health.<zone>`."""

    LOADING = "loading"  # the names of a cell are not loaded yet; their answers are SERVFAIL
    OK = "ok"
    STALE = "stale"  # the resolver has not reached the journal for a long time, and answers from memory


@dataclass(slots=True)
class ZoneDirectory:
    """The cells whose names a resolver answers for, and the settings of their zones.

    `loaded`: whether the list of cells was read. If so, a cell that is not in `cells` does not exist.
    `nameserver`: the address at which clients reach this resolver, published at `ns.<zone>`.
    `serial`: the serial of the parent zone, which is the highest id of a cell so far.
    `keyring`: keys with which queries may be signed (TSIG), by name.
    `nsid`: the name of this process for clients that ask for it (RFC 5001). `cookies`: None disables DNS cookies.
    `ttl_s`: seconds for which clients may cache answers, if the job does not set a value.
    `negative_ttl_s`: seconds for which clients may cache that a name does not exist.
    `reverse`: networks whose reverse zones the resolver serves. `caa`: CAA records at the apexes of the other zones.
    `generation`: a number that rises when a table is added, replaced or removed, but not when a table changes.
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
    reverse_apexes: frozenset[tuple[bytes, ...]] = field(init=False)  # as labels without the root
    labels: tuple[bytes, ...] = field(init=False)  # the labels of the zone, without the root

    def __post_init__(self) -> None:
        self.zone = check_zone(self.zone)
        self.labels = tuple(label.encode() for label in self.zone.split("."))
        self.reverse_apexes = apexes(self.reverse)

    @property
    def all_ready(self) -> bool:
        """Return whether the tables of all cells are loaded. If so, a name that is in no table does not exist."""
        return self.loaded and all(table.ready for table in self.cells.values())
