"""A copy in Redis of the capacity and reservations of a cell's machines, as the master has them in memory. Plans
read it: a plan tries where a job would be placed, and changes nothing (§2.6).

    master ─► ViewPublisher ─► borg:view:<cell>, a hash in Redis ─► read ─► plans in all web processes

Reading the same data from database rows takes half a second in a cell of 10,000 machines. The copy may be some seconds
old.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
import redis

from scheduling.core.cell.attributes import Attributes
from scheduling.core.vocabulary.events import PoolSet
from scheduling.core.vocabulary.kernel_arrays import Bools, Ints
from scheduling.journal import wakeups

if TYPE_CHECKING:  # the import costs a process 45 MB of memory
    from scheduling.core.cell.state import CellState

KEEP_S = 3600
# A view of an earlier revision is used for this long. A busy master publishes each second.
FRESH_S = 30.0
# Publishing takes at most this share of a master's time, so a large cell is published less often.
_SHARE = 0.01
_HELD, _FACTS = "held", "facts"


class _Held(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a `CellView`. Each array has one row per machine, in order of the machine ids, and is stored
    as bytes. `facts`: the `version` of the stored `_Facts` of the same machines. `pools`: the machine pools.
    """

    facts: str
    revision: int
    at: float
    axis: int
    up: bytes  # bool[N]
    capacity: bytes  # int64[N, R], as are the following
    reserved: bytes
    prod_limit: bytes
    pools: tuple[PoolSet, ...] = ()


class _Facts(msgspec.Struct, frozen=True, array_like=True):
    """The stored attributes of the machines. `columns`: for each name of an attribute, the codes of its values (bytes
    of an int32 array with one code per machine), and the value for each code (see `Attributes.columns`).
    """

    version: str
    columns: dict[str, tuple[bytes, list[str]]]


@dataclass(frozen=True, slots=True)
class CellView:
    """The machines of a cell at one moment: arrays over N machines (in order of their ids) and R resources.

    `reserved` [N, R]: the sum of the tasks' reservations. `prod_limit` [N, R]: the sum of the limits of the tasks that
    are placed by limit (§5.5). `at`: when the view was stored, in seconds since the epoch. `revision`: the newest
    revision in the view. `pools`: the machine pools, by name.
    """

    revision: int
    at: float
    up: Bools
    capacity: Ints
    reserved: Ints
    prod_limit: Ints
    attributes: Attributes
    pools: tuple[PoolSet, ...] = ()


class ViewPublisher:
    """Stores the `CellView` of one cell in Redis whenever the cell has changed. It runs in the cell's master."""

    def __init__(self, cell_id: int) -> None:
        self._cell_id = cell_id
        self._token = uuid.uuid4().hex
        self._number = 0
        self._known: tuple[CellState, int] | None = None  # the state and the layout of the facts as published
        self._revision = -1
        self._due = 0.0

    def publish(self, state: CellState) -> None:
        """Store the view if the cell has changed since the last call and enough time has passed."""
        began = time.monotonic()
        if state.revision == self._revision or began < self._due:
            return
        machines, slots = state.machines, state.machines.order
        fields: dict[str, bytes] = {}
        if self._known is None or self._known[0] is not state or self._known[1] != machines.layout:
            self._number += 1
            columns = machines.attributes.columns(slots)
            coded = {name: (codes.tobytes(), values) for name, (codes, values) in columns.items()}
            fields[_FACTS] = msgspec.msgpack.encode(_Facts(self._version, coded))
        held = _Held(
            self._version,
            state.revision,
            time.time(),
            state.axis,
            machines.up[slots].tobytes(),
            machines.capacity[slots].tobytes(),
            machines.reserved[slots].tobytes(),
            machines.prod_limit[slots].tobytes(),
            tuple(state.pools.pools[name] for name in sorted(state.pools.pools)),
        )
        fields[_HELD] = msgspec.msgpack.encode(held)
        if wakeups.send("view", lambda client: _store(client, _key(self._cell_id), fields)):
            self._known, self._revision = (state, machines.layout), state.revision
        else:
            self._known = None
        self._due = time.monotonic() + (time.monotonic() - began) / _SHARE

    @property
    def _version(self) -> str:
        return f"{self._token}.{self._number}"


# cell id -> the version of its attributes and the attributes, because decoding them and their masks costs most.
_attributes: dict[int, tuple[str, Attributes]] = {}


def read(cell_id: int, *, revision: int) -> CellView | None:
    """Return the stored view of a cell if it is recent, or if its revision is `revision` or later. Otherwise return
    None. Also return None if Redis cannot be reached.
    """
    if not wakeups.answers():
        return None
    packed = _field(cell_id, _HELD)
    if packed is None:
        return None
    held = msgspec.msgpack.decode(packed, type=_Held)
    if held.revision < revision and time.time() - held.at > FRESH_S:
        return None
    attributes = _attributes_of(cell_id, held.facts, len(held.up))
    if attributes is None:
        return None
    return CellView(
        revision=held.revision,
        at=held.at,
        up=np.frombuffer(held.up, np.bool_),
        capacity=_array(held.capacity, held.axis),
        reserved=_array(held.reserved, held.axis),
        prod_limit=_array(held.prod_limit, held.axis),
        attributes=attributes,
        pools=held.pools,
    )


def is_published(cell_id: int) -> bool:
    """Return whether a master has published a view of the cell in the last hour."""
    return wakeups.answers() and bool(wakeups.client().hexists(_key(cell_id), _HELD))


def _attributes_of(cell_id: int, version: str, size: int) -> Attributes | None:
    known = _attributes.get(cell_id)
    if known is None or known[0] != version:
        packed = _field(cell_id, _FACTS)
        facts = msgspec.msgpack.decode(packed, type=_Facts) if packed is not None else None
        if facts is None or facts.version != version:
            return None  # a new master is just publishing
        columns = {name: (np.frombuffer(codes, np.int32), values) for name, (codes, values) in facts.columns.items()}
        known = _attributes[cell_id] = (version, Attributes.of_columns(columns, size))
    return known[1]


def _store(client: redis.Redis, key: str, fields: dict[str, bytes]) -> None:
    with client.pipeline() as pipeline:
        pipeline.hset(key, mapping=fields)  # type: ignore[arg-type]
        pipeline.expire(key, KEEP_S)
        pipeline.execute()


def _array(raw: bytes, axis: int) -> Ints:
    """Return the array whose bytes are `raw`. Its shape is [N, R]; `axis` is the number R of resources."""
    return np.frombuffer(raw, np.int64).reshape(-1, axis)


def _field(cell_id: int, name: str) -> bytes | None:
    return cast("bytes | None", wakeups.client().hget(_key(cell_id), name))


def _key(cell_id: int) -> str:
    return f"borg:view:{cell_id}"
