"""Answers UDP queries for addresses of a task, a job or a service from prepared bytes (the *short path*). Pure.

    datagram ─► prepared? ─ yes ─► id + flags + counts + question of the query + prepared answer
                  └─ no ─► parse ─► addresses | NODATA | NXDOMAIN   (answers with addresses are stored)
                             └─ any other query: None, and the long path (`naming.dns.resolver`) answers

The key of a prepared answer is the query without its id, in lower case. It contains flags, counts, name, type, class
and EDNS. An answer is not stored if the conversion to lower case would change anything except the name.

A prepared answer is valid until the revision of its job or service changes. If the directory's `generation` changes,
all prepared answers are removed.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final, NamedTuple

from naming.dns.resolver import UDP_PAYLOAD, addresses_fitting
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.nodes import EXPIRE_S, REFRESH_S, RETRY_S
from naming.table.jobs import NamedJob, NamedService
from naming.table.names import SERVICE, is_service
from naming.table.table import NameTable

MOST_KEPT = 500_000  # answers; if there are more, all are removed, because many are requested only once
MOST_OCTETS = 64 * 2**20  # of all shuffled records (`_Shuffled`); if there are more, all are removed
# Answers from one shuffle of a job's addresses, each of which begins with another address. If weights differ, one draw
# (`naming.table.answering_tasks`) serves as many answers as it has addresses.
USES = 64

_FLAGS: Final = {bytes((rd, rest)) for rd in (0, 1) for rest in (0x00, 0x10, 0x20, 0x30)}  # RD, AD, CD
_ALONE, _WITH_EDNS = b"\0\1\0\0\0\0\0\0", b"\0\1\0\0\0\0\0\1"  # counts
_FAMILIES: Final = {b"\0\1\0\1": 4, b"\0\x1c\0\1": 6}  # by type and class
_OPT: Final = b"\0\0\x29" + UDP_PAYLOAD.to_bytes(2) + bytes(6)
_OPT_DO: Final = _OPT[:7] + b"\x80" + _OPT[8:]  # RFC 3225 §3: an answer repeats the DO flag
_QR_AA = 0x84
_NXDOMAIN = 3
_QUESTION_AT = 12
_LONGEST = 10 + 255 + 4 + len(_OPT)  # octets of a query without its id
_ANSWERS_AT = 4  # offset of the number of answers in a header without its id
_ID_SIZE = 2  # octets of the message id, which a key does not contain
_BESIDE_RING = 700  # octets of the key, the header and the objects of an entry, approximately
_WITHOUT_EDNS = 512  # octets of a datagram (RFC 1035 §2.3.4)


class Question(NamedTuple):
    """A parsed DNS question for the addresses of a name.

    `labels`: the labels of the name in lower case, without the root. `ends`: the offset in the message at which the
    question ends. `tail`: the OPT record that the answer must contain, or empty bytes. `most_bytes`: the maximum size
    of the answer.
    """

    labels: list[bytes]
    ends: int
    fixed: bytes  # type and class
    recursion: int  # the flag RD, which the answer repeats
    tail: bytes
    most_bytes: int

    def head(self, rcode: int, *, answers: int, authority: int) -> bytes:
        return struct.pack("!BB4H", _QR_AA | self.recursion, rcode, 1, answers, authority, int(bool(self.tail)))


@dataclass(slots=True)
class _Shuffled:
    """The address records of a job or service in random order, `size` octets each. An answer contains `sent` of them,
    one after the other in this order.

    `ring`: all records, followed by the first `sent - 1` records again. `left`: how many more answers may use this
    order. `repeats`: whether several tasks share an address; an answer contains each address only once.
    """

    named: NamedJob | NamedService
    revision: int
    head: bytes
    ends: int
    ring: bytes
    size: int
    sent: int
    tail: bytes
    left: int
    repeats: bool

    def take(self, query: bytes) -> bytes:
        """Return the answer to `query`. Each call takes the next part of `ring`, so that clients get different
        tasks.
        """
        self.left -= 1
        places = len(self.ring) // self.size - self.sent + 1
        first = self.left % places * self.size
        window = self.ring[first : first + self.sent * self.size]
        if self.repeats:
            size = self.size
            once = dict.fromkeys(window[at : at + size] for at in range(0, len(window), size))
            counts = self.head[:_ANSWERS_AT] + len(once).to_bytes(2) + self.head[_ANSWERS_AT + 2 :]
            return query[:2] + counts + query[_QUESTION_AT : self.ends] + b"".join(once) + self.tail
        return query[:2] + self.head + query[_QUESTION_AT : self.ends] + window + self.tail


class ShortPath:
    """A cache of prepared answers, so that frequent queries need not use `naming.dns.resolver`. `rng`: the random
    source that shuffles the records of jobs and services.
    """

    def __init__(self, directory: ZoneDirectory, rng: Random) -> None:
        self._directory = directory
        self._rng = rng
        self._generation = directory.generation
        self._tasks: dict[bytes, tuple[NamedJob, int, bytes, int, bytes]] = {}
        self._jobs: dict[bytes, _Shuffled] = {}
        self._octets = 0  # of the entries in `_jobs`

    def __len__(self) -> int:
        """Return the number of prepared answers."""
        return len(self._tasks) + len(self._jobs)

    def answer(self, query: bytes) -> bytes | None:
        """Return the response to the query `query`, or None if `naming.dns.resolver` must build the response."""
        if self._generation != self._directory.generation:
            self._drop()
        key = query[_ID_SIZE:].lower()
        known = self._tasks.get(key)
        if known is not None:
            job, revision, head, ends, answer = known
            if job.revision == revision:
                return query[:2] + head + query[12:ends] + answer
            return self._find(query, key)
        several = self._jobs.get(key)
        if several is not None and several.left and several.named.revision == several.revision:
            return several.take(query)
        return self._find(query, key)

    def _drop(self) -> None:
        self._tasks.clear()
        self._jobs.clear()
        self._octets = 0
        self._generation = self._directory.generation

    def _find(self, query: bytes, key: bytes) -> bytes | None:
        question = parse_question(key)
        if question is None:
            return None
        labels, directory = question.labels, self._directory
        depth = len(labels) - len(directory.labels)
        if depth not in (3, 4) or tuple(labels[depth:]) != directory.labels or labels[0][:1] == b"_":
            return None
        above = [label.decode("latin-1") for label in labels[:depth]]
        table, tenant = directory.cells.get(above[-1]), above[-2]
        if table is None or not table.ready or tenant == "machine":
            return None
        if depth == 4 and above[1] == SERVICE and is_service(above[0]):
            service = table.service(tenant, above[0])
            if service is None:
                return self._negative(query, question, table, _NXDOMAIN)
            return self._several(query, key, question, table, service)
        job = table.job(tenant, above[-3])
        if job is None:
            between = above[:-2] == [SERVICE] and tenant in table.services
            return self._negative(query, question, table, 0 if between else _NXDOMAIN)
        if depth == 3:
            return self._several(query, key, question, table, job)
        index = job.index_of(above[0])
        if index is None:
            return self._negative(query, question, table, _NXDOMAIN)
        return self._task(query, key, question, table, job, index)

    def _task(self, query: bytes, key: bytes, question: Question, table: NameTable, job: NamedJob, index: int) -> bytes:
        task, family = job.placed.get(index), _FAMILIES[question.fixed]
        if task is None or task.family != family:
            return self._negative(query, question, table, 0)
        self._limit_memory()
        head = question.head(0, answers=1, authority=0)
        answer = self._owner(question, job) + _data(packed(task.address, family)) + question.tail
        self._tasks[key] = (job, job.revision, head, question.ends, answer)
        return query[:2] + head + query[_QUESTION_AT : question.ends] + answer

    def _several(
        self, query: bytes, key: bytes, question: Question, table: NameTable, named: NamedJob | NamedService
    ) -> bytes | None:
        if len(table.families) > 1:
            return None  # only the long path filters tasks by address family
        family, answering = _FAMILIES[question.fixed], named.answering
        if family not in table.families or not answering.strata:
            return self._negative(query, question, table, 0)
        self._limit_memory()
        even = answering.even
        most = addresses_fitting(question.most_bytes - question.ends - len(question.tail), family)
        chosen = answering.sample(most + USES if even else most, self._rng)
        owner = self._owner(question, named)
        records = [owner + _data(packed(task.address, family)) for task in chosen]
        sent = min(len(records), most)
        several = _Shuffled(
            named,
            named.revision,
            question.head(0, answers=sent, authority=0),
            question.ends,
            b"".join([*records, *records[: sent - 1]]),
            len(records[0]),
            sent,
            question.tail,
            left=USES if even else sent,
            repeats=len(set(records)) < len(records),
        )
        before = self._jobs.get(key)
        self._octets += len(several.ring) - (len(before.ring) if before else -_BESIDE_RING)
        self._jobs[key] = several
        return several.take(query)

    def _limit_memory(self) -> None:
        if len(self) >= MOST_KEPT:
            self._drop()
        if self._octets >= MOST_OCTETS:
            self._jobs.clear()
            self._octets = 0

    def _owner(self, question: Question, named: NamedJob | NamedService) -> bytes:
        """Return the bytes with which each record of an answer begins: owner, type, class and TTL.

        The owner is a compression pointer to the name in the question.
        """
        return b"\xc0\x0c" + question.fixed + named.ttl_s_or(self._directory.ttl_s).to_bytes(4)

    def _negative(self, query: bytes, question: Question, table: NameTable, rcode: int) -> bytes:
        """Return a negative answer, which contains the SOA record of the zone (RFC 2308 §3). `rcode`: the response
        code.
        """
        directory = self._directory
        above = question.labels[: -len(directory.labels)]
        apex = _QUESTION_AT + sum(len(label) + 1 for label in above[:-1])
        zone = apex + 1 + len(above[-1])
        times = (REFRESH_S, RETRY_S, EXPIRE_S, directory.negative_ttl_s)
        soa = b"\x02ns" + _pointer(zone) + b"\x0ahostmaster" + _pointer(apex) + struct.pack("!5I", table.serial, *times)
        return (
            query[:2]
            + question.head(rcode, answers=0, authority=1)
            + query[_QUESTION_AT : question.ends]
            + _pointer(apex)
            + struct.pack("!HHIH", 6, 1, directory.negative_ttl_s, len(soa))
            + soa
            + question.tail
        )


def parse_question(key: bytes) -> Question | None:
    """Return the question of a message if it asks for addresses. Return None for any other message.

    `key`: the message without its id, in lower case.
    """
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
        # EDNS has version 0 and no options. An extended RCODE has no meaning in a query.
        if len(rest) != len(_OPT) or rest[:3] != _OPT[:3] or rest[5:7] != b"\0\0" or rest[9:] != b"\0\0":
            return None
    elif rest:
        return None
    # The conversion to lower case may have changed the size, so it only shows whether the size is at least UDP_PAYLOAD.
    most_bytes = UDP_PAYLOAD if edns and int.from_bytes(rest[3:5]) >= UDP_PAYLOAD else _WITHOUT_EDNS
    tail = (_OPT_DO if rest[7] & 0x80 else _OPT) if edns else b""
    return Question(labels, at + 5 + _ID_SIZE, fixed, flags[0], tail, most_bytes)


def _data(address: bytes) -> bytes:
    return len(address).to_bytes(2) + address


@lru_cache(maxsize=65_536)
def packed(address: str, family: int) -> bytes:
    """Return an IP address as octets. `family`: 4 or 6."""
    return socket.inet_pton(socket.AF_INET if family == 4 else socket.AF_INET6, address)


def _pointer(at: int) -> bytes:
    return (0xC000 | at).to_bytes(2)
