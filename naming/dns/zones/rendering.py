"""Renders the records of each name of a cell's zone as bytes. Pure.

The records are the same as those of `naming.dns.zones.records`, but this module builds them faster and does not limit
the number of records per name.

After a change of one task, the records of its job and of its service must be built again. They have a record for every
task. The library dnspython would be slow, so this module writes the bytes of these records itself. Machines and the
zone itself change seldom, so dnspython builds their records.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from dns.rdatatype import AAAA, CAA, NS, TXT, A

from naming.dns.protocol import wire
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.nodes import AnswerLimits
from naming.dns.zones.records import about, about_task, in_cell, with_port
from naming.table.answering_tasks import PlacedTask, Weigh, own_weight
from naming.table.jobs import NamedJob, NamedService
from naming.table.names import SERVICE, is_service, parse_index
from naming.table.table import NameTable

_WITHOUT_LIMITS = AnswerLimits(addresses=2**31, services=2**31, pointers=0, whole=True)
_RNG = Random(0)  # the order of records in a zone does not matter
MOST_KNOWN = 500_000  # tasks; if there are more, all stored records are removed
_LONGEST = 255  # octets of a name (RFC 1035 §2.3.4); names of ports may be longer

Owner = tuple[str, ...]  # labels below the apex; () is the apex
Data = tuple[bytes, ...]  # records without their owner, without duplicates


class _Services(NamedTuple):
    """The stored SRV records of one task, and the weight in these records. The records of a placed task change only if
    its weight changes.
    """

    weight: int
    all: Data
    by_port: dict[str, bytes]


class Renderer:
    """Renders the records of the names in one table. It stores the SRV records of each task, and also uses them for the
    names of the task's job and service.
    """

    def __init__(self, directory: ZoneDirectory, table: NameTable) -> None:
        self._directory = directory
        self._table = table
        # By TTL, and by whether the weights are those of a service.
        self._known: dict[tuple[int, bool], dict[PlacedTask, _Services]] = {}
        self._zone = wire.name((table.cell, *directory.labels)) + b"\0"
        self._longest = _LONGEST - len(self._zone)

    def render(self, owner: Owner) -> Data:
        """Return the records of the name `owner`. The result is empty if the name does not exist or is too long for
        DNS.
        """
        if sum(map(len, owner)) + len(owner) > self._longest:
            return ()
        if not owner or owner[-1] == "machine":
            return self._found(owner)
        tenant, above = owner[-1], owner[:-1]
        if len(above) > 1 and above[-1] == SERVICE and is_service(above[-2]):
            service = self._table.service(tenant, above[-2])
            return () if service is None else self._several(service, above[:-2])
        job = self._table.job(tenant, above[-1])
        if job is None:
            return ()
        above = above[:-1]
        if not above or above[-1] == "_tcp":
            return self._several(job, above)
        index = parse_index(above[-1])
        return self._task(job, index, above[:-1]) if index in job.indexes else ()

    def _found(self, owner: Owner) -> Data:
        node = in_cell(self._directory, self._table, list(owner))
        made: list[bytes] = []
        for rdtype in (A, AAAA) if owner else (NS, CAA, TXT):
            records = node.read(rdtype, _WITHOUT_LIMITS, _RNG)
            made += [wire.data(int(rdtype), records.ttl_s, each.to_wire() or b"") for each in records.rdatas]
        return tuple(made)

    def _several(self, named: NamedJob | NamedService, above: Owner) -> Data:
        """Return the records of a job or service. If `above` is not empty, its first label is `_` and a port name. Then
        return only the SRV records of this port.
        """
        ttl_s = named.ttl_s_or(self._directory.ttl_s)
        if above:
            port = above[0][1:]
            if port not in named.all_port_names():
                return ()
            return tuple(self._services(with_port(named.answering, port), port, ttl_s, named.weigh_in_answers()))
        tasks = list(named.answering)
        addresses = dict.fromkeys(wire.address(task.address, ttl_s) for task in tasks if task.family)
        records = self._services(tasks, None, ttl_s, named.weigh_in_answers())
        return (*addresses, *records, wire.texts(ttl_s, about(named)))

    def _task(self, job: NamedJob, index: int, above: Owner) -> Data:
        task = job.placed.get(index)
        ttl_s = job.ttl_s_or(self._directory.ttl_s)
        if above:
            known = task is not None and above[0][1:] in job.all_port_names()
            return tuple(self._services([task], above[0][1:], ttl_s)) if known and task else ()
        if task is None:
            return (wire.texts(ttl_s, about_task(None, ttl_s)),)
        addresses = [wire.address(task.address, ttl_s)] if task.family else []
        return (*addresses, *self._services([task], None, ttl_s), wire.texts(ttl_s, about_task(task, ttl_s)))

    def _services(
        self, tasks: Iterable[PlacedTask], port: str | None, ttl_s: int, weigh: Weigh = own_weight
    ) -> list[bytes]:
        """Return the SRV records of these tasks. `port`: the port of the records; None for all ports. `weigh`: returns
        the weight of a task in them.
        """
        made: list[bytes] = []
        known = self._known.setdefault((ttl_s, weigh is not own_weight), {})
        if len(known) > MOST_KNOWN:
            known.clear()
        for task in tasks:
            kept, weight = known.get(task), weigh(task)
            if kept is None or kept.weight != weight:
                kept = known[task] = self._made(task, ttl_s, weight)
            if port is None:
                made += kept.all
            elif (one := kept.by_port.get(port)) is not None:
                made.append(one)
        return made

    def _made(self, task: PlacedTask, ttl_s: int, weight: int) -> _Services:
        job = task.job
        target = wire.label(str(task.index)) + wire.name((job.name, job.tenant)) + self._zone
        by_port = {
            name: wire.srv(ttl_s, weight, number, target)
            for name, number in zip(task.port_names, task.ports, strict=False)
        }
        return _Services(weight, tuple(dict.fromkeys(by_port.values())), by_port)
