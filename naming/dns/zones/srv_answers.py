"""Builds SRV answers. The library dnspython is not used, because it would need 100 ms per 1,000 tasks. Pure.

    message without records ─► header, question │ SRV of each task │ its address │ EDNS

The records are the same as those of `naming.dns.zones.records`. Tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from random import Random
from typing import NamedTuple

from naming.dns.protocol import wire
from naming.dns.zones.directory import ZoneDirectory
from naming.table.answering_tasks import Owner, PlacedTask, Weigh, own_weight

STEP = 50  # tasks
_HEADER = 12  # octets
_FIXED = 4  # octets of a question after its name: type and class
_OWNER = b"\xc0\x0c"  # a pointer to the name of the question
_TC = 0x02  # in the third octet


class Services(NamedTuple):
    """The contents of an SRV answer. `tasks`: tasks of the cell `cell`. `port`: the port to list for each task; None:
    all ports. `weigh`: returns the weight of a task in its records.
    """

    tasks: Sequence[PlacedTask]
    port: str | None
    ttl_s: int
    cell: str
    weigh: Weigh = own_weight


Choose = Callable[[int, Random], Services]  # (most tasks, random source) -> the chosen tasks


def message(
    bare: bytes, services: Services, directory: ZoneDirectory, most_bytes: int
) -> Generator[None, None, bytes | None]:
    """Build an answer of at most `most_bytes` octets, in steps of about 0.1 ms. Return None if there are no SRV
    records.

    `bare`: the answer without records, but with the question and EDNS. If the SRV records do not fit, the answer has no
    records and the TC bit. After the SRV records, the answer has as many address records as fit.
    """
    parts = _Parts(bare, services, directory)
    for start in range(0, len(services.tasks), STEP):
        if start:
            yield
        parts.add(services.tasks[start : start + STEP])
    if not parts.records:
        return None
    answer = b"".join(parts.records)
    left = most_bytes - len(bare) - len(answer)
    if left < 0:
        return bare[:2] + bytes((bare[2] | _TC,)) + bare[3:]
    fitting = 0
    for address in parts.addresses:
        left -= len(address)
        if left < 0:
            break
        fitting += 1
    number = int.from_bytes(bare[10:12]) + fitting
    counts = len(parts.records).to_bytes(2) + bytes(2) + number.to_bytes(2)
    ends = parts.ends
    return b"".join((bare[:6], counts, bare[_HEADER:ends], answer, *parts.addresses[:fitting], bare[ends:]))


class _OfJob(NamedTuple):
    """Parts of the records, as bytes, that are equal for all tasks of a job. In a record, the index of the task comes
    before them.

    `target`: the target of SRV records. `owner`: the owner of address records, whose end is a compression pointer to
    the name in the question.
    """

    target: bytes
    owner: bytes
    ttl_s: int


class _Parts:
    """Collects the records of an answer. `ends`: the offset in the answer at which the question ends."""

    def __init__(self, bare: bytes, services: Services, directory: ZoneDirectory) -> None:
        self.records: list[bytes] = []
        self.addresses: list[bytes] = []
        at, self._starts = _HEADER, list[int]()
        while bare[at]:
            self._starts.append(at)
            at += bare[at] + 1
        self._name = bare[: at + 1].lower()
        self.ends = at + 1 + _FIXED
        self._port, self._port_ttl_s, self._weigh = services.port, services.ttl_s, services.weigh
        self._zone = wire.name((services.cell, *directory.labels)) + b"\0"
        self._ttl_s = directory.ttl_s
        self._jobs: dict[Owner, _OfJob] = {}

    def add(self, tasks: Iterable[PlacedTask]) -> None:
        port, ttl_s = self._port, self._port_ttl_s
        for task in tasks:
            target, owner, address_ttl_s = self._jobs.get(task.job) or self._of(task.job)
            if port is None:
                numbers: Iterable[int] = dict.fromkeys(task.ports[: len(task.port_names)])
            else:
                numbers = [number for name, number in task.named_ports() if name == port]
            if not numbers:
                continue
            index, weight = wire.label(str(task.index)), self._weigh(task)
            for number in numbers:
                self.records.append(_OWNER + wire.srv(ttl_s, weight, number, index + target))
            if task.family:
                self.addresses.append(index + owner + wire.address(task.address, address_ttl_s))

    def _of(self, job: Owner) -> _OfJob:
        target = wire.name((job.name, job.tenant)) + self._zone
        known = self._jobs[job] = _OfJob(target, self._pointing(target), job.ttl_s_or(self._ttl_s))
        return known

    def _pointing(self, name: bytes) -> bytes:
        """Return `name` (a name as bytes), but with its end replaced by a compression pointer. The end is as long as
        possible, so that it is also the end of the name in the question.
        """
        for start in self._starts:
            end = self._name[start:]
            if name.endswith(end):
                return name[: -len(end)] + (0xC000 | start).to_bytes(2)
        return name
