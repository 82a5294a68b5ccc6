"""A DNS resolver in this process for fuzz tests: it receives malformed messages and records how it answers them."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import dns.rcode

from naming.dns.protocol.cookies import Cookies
from naming.dns.protocol.rate_limit import RateLimit
from naming.dns.resolver import Transport, finished
from naming.dns.sockets import Datagrams, DnsServer
from naming.dns.zones.directory import ZoneDirectory
from tests.malformed import KEY, Packet, well_formed

MOST_FACTOR = 2.0  # the most octets of answer per octet of a malformed question
STRANGER = ("198.51.100.7", 53)  # outside all private networks


@dataclass
class Findings:
    """Counts and extremes of a fuzz run against the resolver.

    `largest`: per kind of question (True: well-formed, False: malformed) the greatest ratio of answer length to
    question length, with the question. `failed`: the number of exceptions per place in the code, and of SERVFAIL
    answers.
    """

    packets: int = 0
    answered: int = 0
    well_formed: int = 0
    largest: dict[bool, tuple[float, Packet | None]] = field(
        default_factory=lambda: {True: (0.0, None), False: (0.0, None)}
    )
    slowest: tuple[float, Packet | None] = (0.0, None)
    failed: Counter[str] = field(default_factory=Counter)

    def note(self, packet: Packet, answers: Iterable[bytes], took_s: float = 0.0) -> None:
        plain = well_formed(packet.wire)
        self.packets += 1
        self.well_formed += plain
        if took_s > self.slowest[0]:
            self.slowest = (took_s, packet)
        length = 0
        for answer in answers:
            self.answered += 1
            length += len(answer)
            if len(answer) >= 4 and answer[3] & 0xF == dns.rcode.SERVFAIL:
                self.failed["SERVFAIL"] += 1
        if length and (factor := length / len(packet.wire)) > self.largest[plain][0]:
            self.largest[plain] = (factor, packet)

    def problems(self) -> list[str]:
        """Return one line per defect found: each exception, and too long an answer to a malformed question."""
        found = [f"{number} times {where}" for where, number in self.failed.items()]
        factor, packet = self.largest[False]
        if factor > MOST_FACTOR and packet is not None:
            found.append(f"{factor:.1f} times as long an answer to {packet.kind} {packet.wire.hex()}")
        return found


class Bombarded:
    """A `DnsServer` without sockets, to which a test passes single datagrams or TCP messages.

    `rate`: the most answers per second to one network of clients; 0 means no limit.
    """

    def __init__(self, directory: ZoneDirectory, *, rate: int = 0) -> None:
        directory.keyring = {KEY.name: KEY}
        directory.nsid = b"bombarded"
        directory.cookies = Cookies.from_secret("of the test, and long enough for it")
        self.findings = Findings()
        self.server = _Counting(directory, self.findings, RateLimit(rate) if rate else None)
        self._sent: list[bytes] = []
        self._datagrams = Datagrams(self.server)
        self._datagrams.connection_made(self)  # type: ignore[arg-type]

    def sendto(self, data: bytes, address: object) -> None:
        """Record an answer. The server calls this method of its transport."""
        self._sent.append(data)

    def take(self, packet: Packet, via: Transport = "udp") -> list[bytes]:
        """Process one message as if it came from a client, record the findings, and return the answers."""
        self._sent.clear()
        began = time.thread_time()
        if via == "udp":
            self._datagrams.datagram_received(packet.wire, STRANGER)
        elif (answer := finished(self.server.answering(packet.wire, "tcp", STRANGER[0]))) is not None:
            self._sent.append(answer)
        self.findings.note(packet, self._sent, time.thread_time() - began)
        return list(self._sent)


class _Counting(DnsServer):
    def __init__(self, directory: ZoneDirectory, findings: Findings, limit: RateLimit | None) -> None:
        super().__init__(directory, "127.0.0.1", 0, limit=limit)
        self._findings = findings

    def report_error(self) -> None:
        error = sys.exc_info()[1]
        assert error is not None
        last = traceback.extract_tb(error.__traceback__)[-1]
        self._findings.failed[f"{type(error).__name__} in {last.name}, line {last.lineno}: {error}"] += 1
