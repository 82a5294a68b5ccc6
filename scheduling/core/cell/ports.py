"""The port numbers of one machine: which task holds each port, and which ports are free."""

from __future__ import annotations

from collections.abc import Iterable

Holder = tuple[int, int]  # task id, incarnation


class PortMap:
    """The ports from `low` to `high`, both included. A task that holds a port keeps it until the port is released.

    Each search for a free port starts after the port that was given last. A port that has just become free is therefore
    not reused at once. So late packets for the previous task do not reach another task.
    """

    __slots__ = ("_held", "_inside", "_next", "high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self._held: dict[int, set[Holder]] = {}
        self._inside = 0  # how many of those held lie in the range
        self._next = low

    @property
    def free(self) -> int:
        """Return how many ports of the range are free."""
        return max(0, self.high - self.low + 1 - self._inside)

    def set_range(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self._inside = sum(low <= port <= high for port in self._held)
        self._next = min(max(self._next, low), high)

    def hold(self, holder: Holder, ports: Iterable[int]) -> None:
        last = 0
        for port in ports:
            holders = self._held.get(port)
            if holders is None:
                self._held[port] = {holder}
                self._inside += self.low <= port <= self.high
            else:
                holders.add(holder)
            last = port
        if last:
            self._next = last + 1 if last < self.high else self.low

    def release(self, holder: Holder, ports: Iterable[int]) -> None:
        for port in ports:
            holders = self._held.get(port)
            if holders is not None:
                holders.discard(holder)
                if not holders:
                    del self._held[port]
                    self._inside -= self.low <= port <= self.high

    def offer(self, number: int, taken: set[int]) -> tuple[int, ...]:
        """Return the next `number` free ports that are not in `taken`, and add them to `taken`. Raises `LookupError`
        if there are too few.
        """
        found: list[int] = []
        size = self.high - self.low + 1
        start = max(self._next, max(taken) + 1) if taken else self._next
        for step in range(size):
            if len(found) == number:
                break
            port = self.low + (start - self.low + step) % size
            if port not in self._held and port not in taken:
                found.append(port)
        if len(found) < number:
            raise LookupError(
                f"the task needs {number} ports, but only {len(found)} of the ports {self.low}-{self.high} are free; "
                "place it on another machine"
            )
        taken.update(found)
        return tuple(found)

    def held(self) -> dict[int, set[Holder]]:
        return self._held
