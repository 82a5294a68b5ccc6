"""Finds the machines whose installed packages have changed and are not stored in the database yet. No I/O.

The scheduler prefers machines that have a task's packages (§3.2). The changes are not urgent, so they are stored in
batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from borglet.messages import MAX_REPORTED_PACKAGES
from scheduling.link.shard.connection import Connection
from scheduling.packages.installed import InstalledReport
from scheduling.spec import package_names

# Interval and size of the batches.
WRITE_EVERY_S = 5.0
MOST_AT_ONCE = 1_000


class InstalledIntake:
    """The machines whose installed packages must be written to the database.

    `due` returns the reports of these machines. Call `written` when they are stored; otherwise `due` returns them
    again.
    """

    def __init__(self) -> None:
        self.every_s = WRITE_EVERY_S
        self._last: dict[int, InstalledReport] = {}  # by machine
        self._due_at = float("-inf")

    def due(self, connections: Mapping[int, Connection], now: float) -> dict[int, dict[int, InstalledReport]]:
        """Return the reports of installed packages that are not written yet: {cell id: {machine id: report}}. The
        result is empty if the last batch was returned less than `every_s` seconds ago. `connections`: this shard's
        connections by machine id.
        """
        if now < self._due_at:
            return {}
        self._due_at = now + self.every_s
        self._last = {machine: last for machine, last in self._last.items() if machine in connections}
        found: dict[int, dict[int, InstalledReport]] = defaultdict(dict)
        number = 0
        for machine, held in connections.items():
            if held.last_report is None:
                continue
            report = InstalledReport(held.session, held.last_report.wire.packages)
            if self._last.get(machine) == report:
                continue
            found[held.cell_id][machine] = report
            number += 1
            if number == MOST_AT_ONCE:
                break
        return found

    def written(self, reports: Mapping[int, InstalledReport]) -> None:
        """Mark reports as written to the database."""
        self._last.update(reports)


def readable(reports: Mapping[int, InstalledReport]) -> dict[int, InstalledReport]:
    """Return the reports without invalid digests. If a report has too many digests, it is cut to the allowed number."""
    return {
        machine: InstalledReport(
            one.session, [text for text in one.digests[:MAX_REPORTED_PACKAGES] if package_names.is_digest(text)]
        )
        for machine, one in reports.items()
    }
