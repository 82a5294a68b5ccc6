"""The common question over ready bytes: addresses of a task or a job, asked over UDP. Pure.

    datagram ─► known? ────────────────► id + flags + counts + question as asked + ready answer
                  └─ no ─► parsed by hand ─► addresses | NODATA | NXDOMAIN   (addresses are kept)
                                └─ anything else: None, and the long path (`naming.resolver`) answers

A question is known by its bytes in lower case behind the message's id: flags, counts, name, type, class and EDNS. Lower
case changes nothing but names: lengths of labels are below 64, and of header and EDNS only forms that hold no capital
letter are kept. A kept answer names its job and the job's revision, and is stale when that has moved on (no question
comes between two events of one revision); where a table is replaced the directory's `generation` drops all of them.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final, NamedTuple

from naming.directory import Directory
from naming.names import InvalidName, parse_index
from naming.records import EXPIRE_S, REFRESH_S, RETRY_S
from naming.resolver import UDP_LIMITS, UDP_PAYLOAD
from naming.table import Job, NameTable

MOST_KEPT = 500_000  # answers; then all are dropped: who asked for them once may never ask again
# Of one shuffle of a job's addresses, each use beginning at another of them.
USES = 64

_FLAGS: Final = {bytes((rd, rest)) for rd in (0, 1) for rest in (0x00, 0x10, 0x20, 0x30)}  # RD, AD, CD
_ALONE, _WITH_EDNS = b"\0\1\0\0\0\0\0\0", b"\0\1\0\0\0\0\0\1"  # counts
_FAMILIES: Final = {b"\0\1\0\1": 4, b"\0\x1c\0\1": 6}  # by type and class
_OPT: Final = b"\0\0\x29" + UDP_PAYLOAD.to_bytes(2) + bytes(6)
_QR_AA = 0x84
_NXDOMAIN = 3
_QUESTION_AT = 12
_LONGEST = 10 + 255 + 4 + len(_OPT)  # of what is read here, without its id
_IN_KEY = 2  # octets of the message that a key is without: its id


class Question(NamedTuple):
    """`labels`: in lower case, without the root. `ends`: behind its class, in the message. `edns`: it has OPT."""

    labels: list[bytes]
    ends: int
    fixed: bytes  # type and class
    recursion: int  # RD, which is sent back
    edns: bool

    def head(self, rcode: int, *, answers: int, authority: int) -> bytes:
        return struct.pack(
            "!BB4H", _QR_AA | self.recursion, rcode, 1, answers, authority, int(self.edns)
        )  # fmt: skip

    @property
    def tail(self) -> bytes:
        return _OPT if self.edns else b""


@dataclass(slots=True)
class _Shuffled:
    """Addresses of a job, `size` octets each, `sent` of them at a time; as many more at the end as make it a ring."""

    job: Job
    revision: int
    head: bytes
    ends: int
    ring: bytes
    size: int
    sent: int
    tail: bytes
    left: int = USES

    def take(self) -> bytes:
        self.left -= 1
        places = len(self.ring) // self.size - self.sent + 1
        first = self.left % places * self.size
        return self.ring[first : first + self.sent * self.size] + self.tail


class ShortPath:
    """Answers of one directory. `rng` shuffles what a job's name answers with."""

    def __init__(self, directory: Directory, rng: Random) -> None:
        self._directory = directory
        self._rng = rng
        self._generation = directory.generation
        self._tasks: dict[bytes, tuple[Job, int, bytes, int, bytes]] = {}
        self._jobs: dict[bytes, _Shuffled] = {}

    def __len__(self) -> int:
        """How many answers are kept."""
        return len(self._tasks) + len(self._jobs)

    def answer(self, query: bytes) -> bytes | None:
        """The response to a datagram, or None: the long path knows."""
        if self._generation != self._directory.generation:
            self._drop()
        key = query[_IN_KEY:].lower()
        known = self._tasks.get(key)
        if known is not None:
            job, revision, head, ends, answer = known
            if job.revision == revision:
                return query[:2] + head + query[12:ends] + answer
            return self._find(query, key)
        several = self._jobs.get(key)
        if several is not None and several.left and several.job.revision == several.revision:
            return query[:2] + several.head + query[12 : several.ends] + several.take()
        return self._find(query, key)

    def _drop(self) -> None:
        self._tasks.clear()
        self._jobs.clear()
        self._generation = self._directory.generation

    def _find(self, query: bytes, key: bytes) -> bytes | None:
        question = read(key)
        if question is None:
            return None
        labels, directory = question.labels, self._directory
        depth = len(labels) - len(directory.labels)
        if depth not in (3, 4) or tuple(labels[depth:]) != directory.labels or labels[0][:1] == b"_":
            return None
        job_name, tenant, cell = (label.decode("latin-1") for label in labels[depth - 3 : depth])
        table = directory.cells.get(cell)
        if table is None or not table.ready or tenant == "machine":
            return None
        job = table.job(tenant, job_name)
        index = _index(labels[0]) if depth == 4 else None
        if job is None or (depth == 4 and (index is None or index not in job.indexes)):
            return self._negative(query, question, table, _NXDOMAIN)
        family = _FAMILIES[question.fixed]
        if index is None:
            # Those of the other family would have to be told apart.
            if len(table.families) > 1:
                return None
            chosen = job.answering.sample(USES + UDP_LIMITS.addresses, self._rng)
        else:
            task = job.placed.get(index)
            chosen = [task] if task is not None else []
        # Tasks of one machine share its address, and no record may be there twice (RFC 2181 §5).
        shown = dict.fromkeys(task.address for task in chosen if task.family == family)
        addresses = [packed(address, family) for address in shown]
        if not addresses:
            return self._negative(query, question, table, 0)
        if len(self) >= MOST_KEPT:
            self._drop()
        return self._keep(query, key, question, job, addresses, one=index is not None)

    def _keep(
        self, query: bytes, key: bytes, question: Question, job: Job, addresses: list[bytes], *, one: bool
    ) -> bytes:
        # The owner is a pointer to the question.
        owner = b"\xc0\x0c" + question.fixed + self._directory.ttl_s.to_bytes(4)
        records = [owner + len(address).to_bytes(2) + address for address in addresses]
        sent = min(len(records), UDP_LIMITS.addresses)
        head = question.head(0, answers=sent, authority=0)
        asked = query[_QUESTION_AT : question.ends]
        if one:
            answer = records[0] + question.tail
            self._tasks[key] = (job, job.revision, head, question.ends, answer)
            return query[:2] + head + asked + answer
        ring = b"".join([*records, *records[: sent - 1]])
        several = _Shuffled(
            job, job.revision, head, question.ends, ring, len(records[0]), sent, question.tail
        )
        self._jobs[key] = several
        return query[:2] + head + asked + several.take()

    def _negative(self, query: bytes, question: Question, table: NameTable, rcode: int) -> bytes:
        """With the SOA that says for how long (RFC 2308 §3), its names as pointers into the question."""
        directory = self._directory
        above = question.labels[: -len(directory.labels)]
        apex = _QUESTION_AT + sum(len(label) + 1 for label in above[:-1])
        zone = apex + 1 + len(above[-1])
        times = (REFRESH_S, RETRY_S, EXPIRE_S, directory.negative_ttl_s)
        soa = (
            b"\x02ns" + _pointer(zone) + b"\x0ahostmaster" + _pointer(apex)
            + struct.pack("!5I", table.serial, *times)
        )  # fmt: skip
        return (
            query[:2]
            + question.head(rcode, answers=0, authority=1)
            + query[_QUESTION_AT : question.ends]
            + _pointer(apex)
            + struct.pack("!HHIH", 6, 1, directory.negative_ttl_s, len(soa))
            + soa
            + question.tail
        )


def read(key: bytes) -> Question | None:
    """A question for addresses, from a message without its id, in lower case; None for anything else there may be."""
    flags, counts = key[:2], key[2:10]
    if flags not in _FLAGS or (counts != _ALONE and counts != _WITH_EDNS):
        return None
    labels, at, size = [], 10, len(key)
    if size > _LONGEST:
        return None
    while at < size and (length := key[at]):
        if length > 63:
            return None
        labels.append(key[at + 1 : at + 1 + length])
        at += length + 1
    fixed, rest = key[at + 1 : at + 5], key[at + 5 :]
    if fixed not in _FAMILIES or at - 10 >= 255:
        return None
    edns = counts == _WITH_EDNS
    if edns:
        # Version 0, without options; an extended RCODE has no meaning in a question.
        if len(rest) != len(_OPT) or rest[:3] != _OPT[:3] or rest[5:7] != b"\0\0" or rest[9:] != b"\0\0":
            return None
    elif rest:
        return None
    return Question(labels, at + 5 + _IN_KEY, fixed, flags[0], edns)


@lru_cache(maxsize=65_536)
def packed(address: str, family: int) -> bytes:
    return socket.inet_pton(socket.AF_INET if family == 4 else socket.AF_INET6, address)


def _index(label: bytes) -> int | None:
    try:
        return parse_index(label.decode("latin-1"))
    except InvalidName:
        return None


def _pointer(at: int) -> bytes:
    return (0xC000 | at).to_bytes(2)
