"""The machines of a cell as arrays. The index of a machine in these arrays is its slot. A new machine may get the slot
of a removed machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from quota.vocabulary.resources import ACCELERATORS, CPU
from scheduling.core.cell.attributes import Attributes
from scheduling.core.cell.installed import InstalledPackages
from scheduling.core.cell.ports import PortMap
from scheduling.core.kernels.devices import WHOLE
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Bools, Ints, Ints32
from scheduling.core.vocabulary.states import MachineStatus

Kind = TypeVar("Kind", bound=np.generic)

# States by code; a slot with code FREE holds no machine.
FREE = 0
STATUS_CODES: dict[str, int] = {status.value: code for code, status in enumerate(MachineStatus, start=1)}
UP = STATUS_CODES[MachineStatus.UP.value]
MOST_CORES = 2**20
# Facts that constraints may name beside the machine's own attributes, which win over them.
IMPLIED = ("hostname", "platform", "rack", "power_domain")


class MachineTable:
    """The machines as arrays. Axes: M slots, R resources, D devices. `CellState` updates the sums when tasks start or
    stop.

    Sums over the tasks on each machine: `reserved`, their reservations; `limits`, their limits; `prod_limit`, the
    limits of tasks that are placed by limit (§5.5). `devices`: the free thousandths of each accelerator. `cores`: how
    many whole cores the machine can reserve for tasks. `head`: slot of the first task on the machine; `TaskTable.next`
    has the slot of the next task.
    """

    def __init__(self, axis: int, slots: int = 64) -> None:
        self.axis = axis
        self.slot: dict[int, int] = {}  # machine id -> slot
        self.id: Ints = np.zeros(slots, dtype=np.int64)
        self.status: NDArray[np.int8] = np.zeros(slots, dtype=np.int8)
        self.capacity: Ints = np.zeros((slots, axis), dtype=np.int64)
        self.reserved: Ints = np.zeros((slots, axis), dtype=np.int64)
        self.prod_limit: Ints = np.zeros((slots, axis), dtype=np.int64)
        self.limits: Ints = np.zeros((slots, axis), dtype=np.int64)
        self.rack: Ints32 = np.full(slots, -1, dtype=np.int32)
        self.power: Ints32 = np.full(slots, -1, dtype=np.int32)
        self.ports_free: Ints = np.zeros(slots, dtype=np.int64)
        self.head: Ints32 = np.full(slots, -1, dtype=np.int32)
        self.tasks: Ints32 = np.zeros(slots, dtype=np.int32)
        self.devices: Ints32 = np.zeros((slots, 0), dtype=np.int32)
        self.cores: Ints32 = np.zeros(slots, dtype=np.int32)
        # Readers that follow along (`memory.py`): `changed[slot]` is the tick of the last change of a machine,
        # `layout` counts the changes of which machines there are, or of their facts.
        self.tick = 0
        self.layout = 0
        self.changed: Ints = np.zeros(slots, dtype=np.int64)
        self.attributes = Attributes()
        self.attributes.grow(slots)
        self.installed = InstalledPackages()
        self.ports: dict[int, PortMap] = {}  # by slot
        self.facts: dict[int, events.MachineSet] = {}  # by slot, as last announced
        self._racks: dict[str, int] = {}
        self._powers: dict[str, int] = {}
        self._free: list[int] = list(range(slots - 1, -1, -1))
        self._order: Ints32 | None = None

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def order(self) -> Ints32:
        """Return the slots of all machines, sorted by machine id."""
        if self._order is None:
            slots = np.fromiter(self.slot.values(), dtype=np.int32, count=len(self.slot))
            self._order = slots[np.argsort(self.id[slots])].astype(np.int32)
        return self._order

    @property
    def up(self) -> Bools:
        result: Bools = self.status == UP
        return result

    def set(self, event: events.MachineSet, vector: Sequence[int]) -> int:
        """Add the machine of `event`, or change its data if it exists already. Return its slot."""
        slot = self.slot.get(event.machine_id)
        if slot is None:
            if not self._free:
                self._grow()
            slot = self._free.pop()
            self.slot[event.machine_id] = slot
            self.id[slot] = event.machine_id
            self.ports[slot] = PortMap(event.port_low, event.port_high)
            self._order = None
        self._set_devices(slot, int(self.capacity[slot, ACCELERATORS]), vector[ACCELERATORS])
        self.capacity[slot] = vector
        self.cores[slot] = whole_cores(event.attributes, vector[CPU])
        self.layout += 1
        self.status[slot] = STATUS_CODES[event.state]
        self.rack[slot] = _code(self._racks, event.rack)
        self.power[slot] = _code(self._powers, event.power_domain)
        implied = {name: getattr(event, name) for name in IMPLIED if getattr(event, name)}
        self.attributes.set(slot, {**implied, **event.attributes})
        self.ports[slot].set_range(event.port_low, event.port_high)
        self.ports_free[slot] = self.ports[slot].free
        self.facts[slot] = msgspec.structs.replace(event, reason="") if event.reason else event
        return slot

    def remove(self, machine_id: int) -> int:
        """Remove a machine, and return its slot. The caller must first remove the machine's tasks."""
        slot = self.slot.pop(machine_id)
        for array in (self.id, self.status, self.capacity, self.reserved, self.prod_limit, self.limits):
            array[slot] = 0
        self.rack[slot] = self.power[slot] = self.head[slot] = -1
        self.ports_free[slot] = self.tasks[slot] = 0
        self.devices[slot] = self.cores[slot] = 0
        self.layout += 1
        self.attributes.set(slot, {})
        self.installed.forget(slot)
        del self.ports[slot], self.facts[slot]
        self._free.append(slot)
        self._order = None
        return slot

    def touch(self, slot: int) -> None:
        """Mark the machine in `slot` as changed, so that users of this table read its values again."""
        self.tick += 1
        self.changed[slot] = self.tick

    def _set_devices(self, slot: int, before: int, after: int) -> None:
        """Change the capacity of a machine's accelerators. `before`, `after`: the old and the new capacity in
        thousandths of a device. If the capacity is not a whole number of devices, the last device is smaller. Tasks
        keep the accelerators that they hold.
        """
        number = -(-after // WHOLE)
        if number > self.devices.shape[1]:
            missing = number - self.devices.shape[1]
            self.devices = np.pad(self.devices, ((0, 0), (0, missing)))
        for d in range(self.devices.shape[1]):
            self.devices[slot, d] += min(WHOLE, max(0, after - d * WHOLE)) - min(WHOLE, max(0, before - d * WHOLE))

    def hold(self, slot: int, task: int, incarnation: int, ports: Sequence[int]) -> None:
        self.ports[slot].hold((task, incarnation), ports)
        self.ports_free[slot] = self.ports[slot].free
        self.touch(slot)

    def count_free_ports(self, slots: NDArray[np.int64]) -> None:
        """Count the free ports of the machines in `slots` again, after their `ports` have changed."""
        self.ports_free[slots] = [self.ports[slot].free for slot in slots.tolist()]
        self.tick += 1
        self.changed[slots] = self.tick

    def release(self, slot: int, task: int, incarnation: int, ports: Sequence[int]) -> None:
        self.ports[slot].release((task, incarnation), ports)
        self.ports_free[slot] = self.ports[slot].free
        self.touch(slot)

    def _grow(self) -> None:
        old, new = len(self.id), 2 * len(self.id)
        for name in (
            "id",
            "status",
            "capacity",
            "reserved",
            "prod_limit",
            "limits",
            "ports_free",
            "tasks",
            "devices",
            "changed",
            "cores",
        ):
            setattr(self, name, grown(getattr(self, name), new, 0))
        for name in ("rack", "power", "head"):
            setattr(self, name, grown(getattr(self, name), new, -1))
        self.attributes.grow(new)
        self._free = list(range(new - 1, old - 1, -1))


def whole_cores(attributes: Mapping[str, str], cpu_milli: int) -> int:
    """Return how many whole cores a machine can reserve for tasks. This is the number that the machine reports in its
    attributes. If it reports none, it is the CPU capacity in whole cores.
    """
    if attributes.get("isolation.cores") == "none":
        return 0
    said = attributes.get("cores", "")
    return min(int(said), MOST_CORES) if said.isascii() and said.isdecimal() else cpu_milli // 1000


def grown(array: NDArray[Kind], size: int, fill: int) -> NDArray[Kind]:
    """Return a copy of `array` with `size` elements along the first axis. `fill`: the value of new elements."""
    larger: NDArray[Kind] = np.full((size, *array.shape[1:]), fill, dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def _code(codes: dict[str, int], name: str) -> int:
    """Return the code of the rack or power domain `name`, or -1 for an empty name. A new name gets the next code."""
    return codes.setdefault(name, len(codes)) if name else -1
