"""The tasks of a job, and the choice of tasks for a DNS answer: the serving ones, or all if none serves. Pure.

Each task is chosen with a probability that is proportional to its weight, and at most once per answer. Therefore the
number of tasks in an answer is limited to the sum of the weights divided by the greatest weight (systematic sampling
with unequal probabilities, Madow 1949). If all weights are equal, this limit is the number of all tasks.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import NamedTuple, Protocol


@dataclass(slots=True)
class MachineAddress:
    """The host name and the address of a machine. All tasks on the machine refer to the same object."""

    machine_id: int
    hostname: str
    address: str  # IPv4 or IPv6 as text
    family: int  # 4 or 6; 0 for text that is not an address, so that its tasks have no address record


class Owner(Protocol):
    """The attributes of a job that are read through `PlacedTask.job`. `naming.table.jobs.NamedJob` implements them."""

    @property
    def tenant(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def port_names(self) -> tuple[str, ...]: ...

    @property
    def track(self) -> str: ...

    def all_port_names(self) -> set[str]: ...

    def ttl_s_or(self, otherwise: int) -> int: ...


@dataclass(slots=True, eq=False)
class PlacedTask:
    """A task that is placed on a machine. `ports`: the port numbers, in the order of `port_names`."""

    job: Owner
    index: int
    incarnation: int
    machine: MachineAddress
    port_names: tuple[str, ...]
    ports: tuple[int, ...]
    phase: str = "assigned"
    health: str = "unknown"
    serves: bool = False
    revision: int = 0  # the revision of its last change
    own_address: str = ""  # its address if it has its own network; otherwise empty
    weight: int = 1

    @property
    def address(self) -> str:
        """Return the address at which clients reach the task."""
        return self.own_address or self.machine.address

    @property
    def family(self) -> int:
        """Return the IP version of the task's address: 4, 6, or 0 if the task has no IP address."""
        return family_of(self.own_address) if self.own_address else self.machine.family

    def named_ports(self) -> list[tuple[str, int]]:
        return list(zip(self.port_names, self.ports, strict=False))


def own_weight(task: PlacedTask) -> int:
    """Return the weight of a task in the answers for its own name and for its job."""
    return task.weight


def family_of(address: str) -> int:
    """Return the version of the IP address, 4 or 6. Return 0 for text that is not an IP address."""
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 0


Weigh = Callable[[PlacedTask], int]  # returns the weight of a task in the answers for a name


class Stratum(NamedTuple):
    """Tasks of one job that have the same weight in an answer. Callers must not change `tasks`, or store it for
    later.
    """

    weight: int
    tasks: Sequence[PlacedTask]


@dataclass(frozen=True, slots=True)
class Answering:
    """The tasks that a DNS answer for a name may contain, grouped by weight. Tasks of weight 0 are included only if all
    tasks have weight 0. `spare`: the tasks of weight 0 that are left out because of this.
    """

    strata: Sequence[Stratum]
    spare: Sequence[Stratum] = ()

    @classmethod
    def of(cls, strata: Iterable[Stratum]) -> Answering:
        found = [stratum for stratum in strata if stratum.tasks]
        weighed = [stratum for stratum in found if stratum.weight]
        return cls(weighed, [stratum for stratum in found if not stratum.weight]) if weighed else cls(found)

    @classmethod
    def serving_or_placed(cls, *, serving: Iterable[Stratum], placed: Iterable[Stratum]) -> Answering:
        """Return the serving tasks of a name. If none serves, return all placed tasks (fail open)."""
        found = cls.of(serving)
        return found if found.strata else cls.of(placed)

    def narrowed(self, keep: Callable[[Stratum], Stratum]) -> Answering:
        """Return the tasks that `keep` returns of each stratum. Tasks of weight 0 take the place of the others if none
        of the others is kept.
        """
        return Answering.of(map(keep, (*self.strata, *self.spare)))

    def __len__(self) -> int:
        return sum(len(tasks) for _, tasks in self.strata)

    def __iter__(self) -> Iterator[PlacedTask]:
        return chain.from_iterable(tasks for _, tasks in self.strata)

    @property
    def even(self) -> bool:
        """Return whether all tasks that DNS answers may contain have the same weight."""
        return len({weight for weight, _ in self.strata}) < 2

    def of_family(self, family: int) -> Answering:
        return self.narrowed(lambda one: Stratum(one.weight, [task for task in one.tasks if task.family == family]))

    def sample(self, most: int, rng: Random) -> list[PlacedTask]:
        """Return at most `most` tasks in random order. A task is chosen with a probability that is proportional to its
        weight.
        """
        if len(self.strata) == 1:
            tasks = self.strata[0].tasks
            return rng.sample(tasks, min(most, len(tasks)))
        return _in_proportion([Stratum(weight or 1, tasks) for weight, tasks in self.strata], most, rng)

    def any(self, most: int, rng: Random) -> list[PlacedTask]:
        """Return at most `most` tasks in random order. Each task is chosen with the same probability. SRV answers use
        this method, because SRV records contain the weights.
        """
        tasks = list(self)
        return rng.sample(tasks, min(most, len(tasks)))


def _in_proportion(strata: Sequence[Stratum], most: int, rng: Random) -> list[PlacedTask]:
    """Choose at most `most` tasks. A task is chosen with a probability that is proportional to its weight.

    Imagine a line on which each task has a segment as long as its weight. The function chooses the tasks at equally
    spaced points of the line; the first point is random. No segment is longer than the distance between two points, so
    no task is chosen twice. The function uses whole numbers, so the probabilities are exact.
    """
    if not strata:
        return []
    total = sum(weight * len(tasks) for weight, tasks in strata)
    points = min(most, total // max(weight for weight, _ in strata))
    start = rng.randrange(total)  # point `j` is at (start + j * total) / points
    found: list[PlacedTask] = []
    begins, before = 0, 0
    for weight, tasks in strata:
        begins += weight * len(tasks)
        upto = min(points, max(0, -((start - points * begins) // total)))
        found.extend(rng.sample(tasks, upto - before))
        before = upto
    rng.shuffle(found)
    return found


class Bag:
    """A set of tasks of one job. Adding or removing a task takes O(1)."""

    __slots__ = ("_at", "_tasks")

    def __init__(self) -> None:
        self._tasks: list[PlacedTask] = []
        self._at: dict[int, int] = {}  # index of the task -> its place in the list

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, index: int) -> bool:
        return index in self._at

    def __iter__(self) -> Iterator[PlacedTask]:
        return iter(self._tasks)

    @property
    def tasks(self) -> Sequence[PlacedTask]:
        """Return the tasks in any order. Callers must not change the list, or store it for later."""
        return self._tasks

    def get(self, index: int) -> PlacedTask | None:
        at = self._at.get(index)
        return None if at is None else self._tasks[at]

    def put(self, task: PlacedTask) -> PlacedTask | None:
        """Add a task. If the set had a task with the same index, remove and return that task. Otherwise, return
        None.
        """
        at = self._at.get(task.index)
        if at is None:
            self._at[task.index] = len(self._tasks)
            self._tasks.append(task)
            return None
        before, self._tasks[at] = self._tasks[at], task
        return before

    def discard(self, index: int) -> PlacedTask | None:
        """Remove and return the task with this index. Return None if the task does not exist."""
        at = self._at.pop(index, None)
        if at is None:
            return None
        task, last = self._tasks[at], self._tasks.pop()
        if last is not task:
            self._tasks[at] = last
            self._at[last.index] = at
        return task


class Pool(Bag):
    """A set of tasks of one job that can also group the tasks by weight. Adding or removing a task takes O(1).

    The weight of a task must change only while the task is in no `Pool`.
    """

    __slots__ = ("_by_weight",)

    def __init__(self) -> None:
        super().__init__()
        self._by_weight: dict[int, Bag] | None = None

    def put(self, task: PlacedTask) -> PlacedTask | None:
        before = Bag.put(self, task)
        if self._by_weight is None:
            if task.weight == 1:
                return before
            self._by_weight = {}
            for each in self._tasks:
                self._weigh(each)
        else:
            if before is not None:
                self._unweigh(before)
            self._weigh(task)
        return before

    def discard(self, index: int) -> PlacedTask | None:
        task = Bag.discard(self, index)
        if task is not None and self._by_weight is not None:
            self._unweigh(task)
        return task

    def _weigh(self, task: PlacedTask) -> None:
        assert self._by_weight is not None
        self._by_weight.setdefault(task.weight, Bag()).put(task)

    def _unweigh(self, task: PlacedTask) -> None:
        assert self._by_weight is not None
        alike = self._by_weight[task.weight]
        alike.discard(task.index)
        if not alike:
            del self._by_weight[task.weight]

    def strata(self, weigh: Callable[[int], int] | None = None) -> list[Stratum]:
        """Return the tasks grouped by weight. `weigh`: returns the weight that tasks have in an answer, instead of this
        weight of their own.
        """
        found = {1: self._tasks} if self._by_weight is None else {w: bag.tasks for w, bag in self._by_weight.items()}
        return [Stratum(weigh(weight) if weigh else weight, tasks) for weight, tasks in found.items()]

    def any_on(self, machine: MachineAddress) -> bool:
        return any(task.machine is machine for task in self._tasks)
