"""Reserve whole CPU cores for latency-sensitive tasks that request whole cores (§6.2).

a task with whole_cores     ─► reserved cores, while it runs
other latency-sensitive     ─► the other cores, which they share
batch                       ─► every core, also reserved ones, so that no core stays idle
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from borglet.messages import RunTask, TaskKey


class NoCores(Exception):
    """The error if the machine has too few free cores. The message has the number of free cores and what to do."""


@dataclass
class CorePool:
    """The cores of one machine, and the tasks that own them. `places`: core number -> (NUMA node, physical core)."""

    cores: frozenset[int]
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    owned: dict[TaskKey, frozenset[int]] = field(default_factory=dict)
    sharing: set[TaskKey] = field(default_factory=set)

    @property
    def shared(self) -> frozenset[int]:
        """Return the cores that no task has reserved."""
        return self.cores.difference(*self.owned.values())

    def of(self, key: TaskKey) -> frozenset[int]:
        """Return the cores that a task is restricted to; empty without a restriction."""
        if key in self.owned:
            return self.owned[key]
        return self.shared if key in self.sharing and self.owned else frozenset()

    def admit(self, task: RunTask) -> bool:
        """Choose the cores of a new or changed task. Return whether the cores of other tasks changed.

        Raises `NoCores` if too few cores are free, and then changes nothing.
        """
        wanted = task.limit.get("cpu", 0) // 1000 if task.whole_cores and task.latency_sensitive else 0
        before = self.owned.get(task.key)
        if before is not None and len(before) == wanted:
            return False
        if wanted:
            self.owned[task.key] = self._choose(task.key, wanted, before or frozenset())
            self.sharing.discard(task.key)
            return True
        if task.latency_sensitive:
            if before is None and self.cores and not self.shared:
                owners = len(self.owned)
                raise NoCores(
                    f"whole_cores: {owners} other tasks reserve all {len(self.cores)} cores of this machine;"
                    " place latency-sensitive tasks on another machine"
                )
            self.sharing.add(task.key)
        return self.owned.pop(task.key, None) is not None

    def adopt(self, task: RunTask, cores: frozenset[int]) -> None:
        """Add a task that an earlier Borglet started. `cores`: the cores to which the kernel restricts the task."""
        wanted = task.limit.get("cpu", 0) // 1000
        if task.whole_cores and task.latency_sensitive and len(cores) == wanted and cores <= self.shared:
            self.owned[task.key] = cores
        elif task.latency_sensitive:
            self.sharing.add(task.key)

    def release(self, key: TaskKey) -> bool:
        """Release the cores of an ended task. Return whether the cores of other tasks changed."""
        self.sharing.discard(key)
        return self.owned.pop(key, None) is not None

    def _choose(self, key: TaskKey, count: int, before: frozenset[int]) -> frozenset[int]:
        free = self.shared | before
        others = self.sharing - {key}
        # The other latency-sensitive tasks on this machine need at least one core.
        most = len(free) - 1 if others else len(free)
        if count > most:
            raise NoCores(
                f"whole_cores: the task asks for {count} core{'s' * (count != 1)}, and"
                f" {max(0, most)} of {len(self.cores)} are free"
                f" ({len(self.cores) - len(free)} reserved by other tasks"
                f"{', one kept for the other latency-sensitive tasks here' if others else ''});"
                " ask for fewer cores, or for machines with more cores"
            )
        return frozenset(sorted(free, key=lambda core: self._rank(core, free, before))[:count])

    def _rank(self, core: int, free: frozenset[int], before: frozenset[int]) -> tuple[int, ...]:
        """Return the sort key of a core; the lowest is chosen first. Cores that the task already has (`before`) come
        first, then cores whose physical core is free, then cores of the NUMA node with the most free cores, then high
        numbers.
        """
        node, physical = self.places.get(core, (0, core))
        split = sum(1 for c in self.cores - free if self.places.get(c, (0, c)) == (node, physical))
        crowd = -sum(1 for c in free if self.places.get(c, (0, c))[0] == node)
        return core not in before, split, crowd, -node, -physical, -core
