"""`dns-fuzz`: packets per second when a resolver gets a million malformed packets, and whether it survives them (§2.6).

`tests.malformed` creates the packets from a seed, and says which count as malformed. Cases:

    in-process   all packets go through the server's functions in this process, without sockets
    limited      a tenth of them, from a public address, with the limit `BORG_DNS_RATE=1`
    udp, tcp     a fifth and a twentieth of them, over real sockets, to a resolver with 100,000 names

`failed` reports an exception, an answer to a malformed packet that is more than twice as long as the packet, a server
that has ended or gives no correct answer afterwards, or memory that grew by more than 64 MiB. `largest_malformed` and
`largest_ordinary`: the largest ratio of answer to query length, for malformed and for well-formed packets.
`slowest_ms`: the largest CPU time for one packet.

    BENCH_PACKETS=100000    number of packets instead of a million
    BENCH_SEED=2            other packets
    BENCH_CASES=udp,tcp     run only cases whose name begins with one of these
"""

from __future__ import annotations

import os
import re
import select
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import dns.message
import psutil

from naming.dns.zones.directory import Status, ZoneDirectory
from naming.table.table import NameTable
from tests.bench.dns import guarded, running
from tests.bench.dns_resolver import CELL, JOBS, TENANT, ZONE, address_of, machine_of, news
from tests.bench.wanted import wanted
from tests.bombarded import Bombarded, Findings
from tests.malformed import Packet, packets, questions

SHARES = {"in-process": 1, "limited": 10, "udp": 5, "tcp": 20}
BATCH, MOST_UNREAD = 24, 60_000  # packets and octets that fit into the buffer of a socket
MOST_GROWTH = 64 * 2**20  # bytes of memory, during the last nine tenths of the packets
_SENTINEL = 0xFFFF
_WAIT_S, _TRIES = 2.0, 5
_COMPLAINT = re.compile(rb"not answered|Traceback|never retrieved|\berror\b")


def measure() -> Iterator[dict[str, Any]]:
    number = int(os.environ.get("BENCH_PACKETS", "1000000"))
    runs: dict[str, Callable[[int], dict[str, Any]]] = {
        "in-process": _in_process,
        "limited": _limited,
        "udp": _udp,
        "tcp": _tcp,
    }
    for case in wanted(list(SHARES)):
        found = runs[case](number // SHARES[case])
        yield {"case": case, "unit": "packets/s", "better": "higher", **found}


def _made() -> Iterator[Packet]:
    job = f"job{JOBS - 1}"
    return packets(int(os.environ.get("BENCH_SEED", "1")), questions(cell=CELL, tenant=TENANT, job=job))


def _bombarded(rate: int = 0) -> Bombarded:
    table = NameTable(CELL)
    for event in news():
        table.apply(event, 1)
    table.ready = True
    directory = ZoneDirectory(zone=ZONE, cells={CELL: table}, loaded=True, status=Status.OK)
    return Bombarded(directory, rate=rate)


def _in_process(number: int) -> dict[str, Any]:
    resolver = _bombarded()
    took_s, grown = 0.0, 0
    for position, packet in enumerate(islice(_made(), number)):
        if position == number // 10:
            grown = -_memory()
        began = time.perf_counter()
        resolver.take(packet)
        took_s += time.perf_counter() - began
    (answer,) = resolver.take(Packet("question", _question(1)))
    right = answer.endswith(_address())
    slow_s, slowest = resolver.findings.slowest
    return _result(resolver.findings, number / took_s, grown + _memory(), answers_after=right) | {
        "slowest_ms": round(1000 * slow_s, 2),
        "slowest_kind": slowest.kind if slowest else "",
    }


def _limited(number: int) -> dict[str, Any]:
    resolver = _bombarded(rate=1)
    longer, worst = 0, 0.0
    began = time.monotonic()
    for packet in islice(_made(), number):
        sent = sum(map(len, resolver.take(packet)))
        longer += sent > len(packet.wire)
        worst = max(worst, sent / len(packet.wire) if packet.wire else 0.0)
    took_s = time.monotonic() - began
    result = _result(resolver.findings, number / took_s, 0, answers_after=True)
    result |= {"longer_than_question": longer, "seconds": round(took_s, 1)}
    if longer > took_s + 1:
        result["failed"] = f"{longer} answers longer than their questions in {took_s:.0f} s at 1 a second"
    return result


def _udp(number: int) -> dict[str, Any]:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.settimeout(_WAIT_S)
        return _over(lambda port, batch, findings: _send_datagrams(sock, port, batch, findings), number)


def _tcp(number: int) -> dict[str, Any]:
    return _over(_send_streams, number)


def _batches(number: int) -> Iterator[list[Packet]]:
    """Yield `number` packets in batches of at most 24. The DNS id of each packet is its position in the batch."""
    batch: list[Packet] = []
    size = 0
    for packet in islice(_made(), number):
        wire = packet.wire[:65_507]
        if batch and (len(batch) == BATCH or size + len(wire) > MOST_UNREAD):
            yield batch
            batch, size = [], 0
        wire = struct.pack("!H", len(batch)) + wire[2:] if len(wire) > 1 else wire
        batch.append(packet._replace(wire=wire))
        size += len(wire)
    if batch:
        yield batch


def _send_datagrams(sock: socket.socket, port: int, batch: list[Packet], findings: Findings) -> None:
    """Send a batch over UDP, then a valid query. When that is answered, all other answers have arrived too."""
    to = ("127.0.0.1", port)
    for packet in batch:
        sock.sendto(packet.wire, to)
    answers: dict[int, list[bytes]] = {}
    for _ in range(_TRIES):
        sock.sendto(_question(_SENTINEL), to)
        try:
            while (identity := int.from_bytes((answer := sock.recv(65_535))[:2])) != _SENTINEL:
                answers.setdefault(identity, []).append(answer)
            break
        except TimeoutError:
            continue
    else:
        findings.failed["no answer to a question after a batch"] += 1
    while select.select([sock], [], [], 0)[0]:  # answers to queries that were repeated
        sock.recv(65_535)
    for number, packet in enumerate(batch):
        findings.note(packet, answers.get(number, []))


def _send_streams(port: int, batch: list[Packet], findings: Findings) -> None:
    """Send a batch over TCP. After a packet that the server does not answer, send the rest over a new connection."""
    answers: dict[int, list[bytes]] = {}
    done = 0
    while done < len(batch):
        wires = [packet.wire for packet in batch[done:]] + [_question(_SENTINEL)]
        last = done - 1
        with socket.create_connection(("127.0.0.1", port), _WAIT_S * _TRIES) as sock:
            with suppress(BrokenPipeError, ConnectionResetError):  # the answers can still be read
                sock.sendall(b"".join(len(wire).to_bytes(2) + wire for wire in wires))
            stream = sock.makefile("rb")
            while (answer := _message(stream)) is not None:
                last = int.from_bytes(answer[:2])
                answers.setdefault(last, []).append(answer)
                if last == _SENTINEL:
                    break
        done = len(batch) if last == _SENTINEL else last + 2
    for number, packet in enumerate(batch):
        findings.note(packet, answers.get(number, []))


def _message(stream: Any) -> bytes | None:
    try:
        length = stream.read(2)
        return stream.read(int.from_bytes(length)) if len(length) == 2 else None
    except ConnectionResetError:
        return None


def _over(exchange: Callable[[int, list[Packet], Findings], None], number: int) -> dict[str, Any]:
    findings = Findings()
    with (
        tempfile.TemporaryDirectory(prefix="borg-bench-fuzz-") as folder,
        running(Path(folder) / "resolver", guarded) as server,
    ):
        before = 0
        began = time.monotonic()
        for batch in _batches(number):
            exchange(server.port, batch, findings)
            if not before and findings.packets >= number // 10:
                before = server.rss_bytes()
        took_s = time.monotonic() - began
        grown = server.rss_bytes() - before
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.settimeout(_WAIT_S)
            sock.sendto(_question(1), ("127.0.0.1", server.port))
            right = sock.recv(4_096).endswith(_address()) and server.process.poll() is None
        for line in (Path(folder) / "resolver" / "log").read_bytes().splitlines():
            if _COMPLAINT.search(line):
                findings.failed[line.decode(errors="replace")[:200]] += 1
    return _result(findings, number / took_s, grown, answers_after=right)


def _question(identity: int) -> bytes:
    query = dns.message.make_query(f"0.job0.{TENANT}.{CELL}.{ZONE}.", "A", use_edns=-1)
    query.id = identity
    return query.to_wire()


def _address() -> bytes:
    """Return the address in the correct answer to `_question`, as four bytes."""
    return socket.inet_aton(address_of(machine_of(0, 0)))


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)


def _result(findings: Findings, speed: float, grown: int, *, answers_after: bool) -> dict[str, Any]:
    problems = findings.problems()
    if not answers_after:
        problems.append("a question right after was not answered as before")
    if grown > MOST_GROWTH:
        problems.append(f"{grown >> 20} MiB more memory")
    result: dict[str, Any] = {
        "value": round(speed),
        "packets": findings.packets,
        "answered": findings.answered,
        "well_formed": findings.well_formed,
        "exceptions": sum(findings.failed.values()),
        "largest_malformed": round(findings.largest[False][0], 2),
        "largest_ordinary": round(findings.largest[True][0], 2),
        "grown_mib": round(grown / 2**20, 1),
    }
    return result | ({"failed": "; ".join(problems[:5])} if problems else {})
