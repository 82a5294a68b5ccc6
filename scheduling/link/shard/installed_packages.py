"""Machines whose installed packages differ from what the journal last recorded. Pure.

The scheduler prefers machines that have a task's packages (§3.2). It is a hint, so it is written late and in batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from borglet.messages import MAX_REPORTED_PACKAGES
from scheduling.link.shard.connection import Connection
from scheduling.packages.installed import InstalledReport
from scheduling.spec import package_names

# Interval and size of the batches.
TELL_EVERY_S = 5.0
MOST_AT_ONCE = 1_000


class InstalledIntake:
    """The machines whose installed packages must be written to the database.

    `due` returns them, `taken` marks them as written. After a failed write, `due` returns its machines again.
    """

    def __init__(self) -> None:
        self.every_s = TELL_EVERY_S
        self._last: dict[int, tuple[int, Sequence[str]]] = {}  # machine -> session, and what it reported
        self._due_at = float("-inf")

    def due(self, connections: Mapping[int, Connection], now: float) -> dict[int, dict[int, InstalledReport]]:
        """Return the changes by cell and machine; none before the interval has passed."""
        if now < self._due_at:
            return {}
        self._due_at = now + self.every_s
        self._last = {machine: last for machine, last in self._last.items() if machine in connections}
        found: dict[int, dict[int, InstalledReport]] = defaultdict(dict)
        number = 0
        for machine, held in connections.items():
            if held.said is None or self._last.get(machine) == (held.session, held.said.wire.packages):
                continue
            found[held.cell_id][machine] = InstalledReport(held.session, held.said.wire.packages)
            number += 1
            if number == MOST_AT_ONCE:
                break
        return found

    def taken(self, told: Mapping[int, InstalledReport]) -> None:
        for machine, one in told.items():
            self._last[machine] = one.session, one.digests


def readable(told: Mapping[int, InstalledReport]) -> dict[int, InstalledReport]:
    """Return the digests to store: at most as many as a machine may report, and valid ones only."""
    return {
        machine: InstalledReport(
            one.session, [text for text in one.digests[:MAX_REPORTED_PACKAGES] if package_names.is_digest(text)]
        )
        for machine, one in told.items()
    }
