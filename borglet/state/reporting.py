"""Build the reports of a machine to the master, and record which reported ends of tasks the master has received.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from borglet.messages import LogChunk, Phase, Refusal, Removal, TaskKey, TaskReport, Usage, WireReport, sealed
from borglet.state.machine_state import Holdings


class Reporter:
    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self.refused: Refusal | None = None  # for the next report only
        self.removals: tuple[Removal, ...] = ()
        self._session = 0
        self._awaits_acknowledgement = False  # a report contained ends, and no poll has arrived since
        # Tasks and allocs of the last report, and the addresses in it. None if an event has changed them.
        self._sealed: tuple[msgspec.Raw, msgspec.Raw, dict[TaskKey, str]] | None = None

    def changed(self) -> None:
        """Record that the last report is outdated, so that the next one is built again."""
        self._sealed = None

    def asked(self, session: int, sequence: int) -> None:
        """Record that a poll of the master arrived. It shows that the master has received all earlier reports of the
        same session, so the Borglet need not send the ends of tasks in these reports again.
        """
        incarnations = self._holdings.by_key.values()
        if session != self._session:
            self._session = session
            for inc in incarnations:
                # The last report of a lost connection may not have arrived, so the ends are reported again.
                inc.end_report = None
        self._awaits_acknowledgement = False
        for inc in incarnations:
            if inc.end_report is not None and sequence > inc.end_report[1]:
                inc.acknowledged = True
            elif inc.end_report is not None:
                self._awaits_acknowledgement = True

    def unmoved_by(self, session: int) -> bool:
        """Return whether a poll of this session without a desired state would change nothing here. This is true if the
        session is not new and the master has acknowledged every reported end of a task.
        """
        return session == self._session and not self._awaits_acknowledgement

    def wire_report(
        self,
        *,
        session: int,
        sequence: int,
        logs: list[LogChunk] | None = None,
        packages: list[str] | None = None,
        addresses: Mapping[TaskKey, str] = MappingProxyType({}),
    ) -> WireReport:
        """Return the full state of the machine, as the answer to one poll. Record which ends of tasks this answer
        contains.

        `addresses`: the addresses of the tasks that have their own network.
        """
        if self._sealed is None or self._sealed[2] != addresses:
            self._mark_ends_reported(session, sequence)
            reports = self._tasks(addresses)
            self._sealed = (sealed(reports), sealed(list(self._holdings.allocs)), dict(addresses))
        tasks, allocs, _ = self._sealed
        columns, usages = _figures([inc.usage for inc in self._holdings.by_key.values()])
        refused, self.refused = self.refused, None
        desired = self._holdings.desired
        return WireReport(
            session=session,
            sequence=sequence,
            history_id=self._holdings.history_id,
            generation=desired.generation if desired is not None else "",
            revision=desired.revision if desired is not None else 0,
            logs=logs or [],
            refused=refused,
            removals=[removal for removal in self.removals if removal.key in self._holdings.run],
            packages=packages or [],
            tasks=tasks,
            allocs=allocs,
            usage_columns=columns,
            usages=usages,
        )

    def _tasks(self, addresses: Mapping[TaskKey, str]) -> list[TaskReport]:
        return [
            inc.report(expected=self._holdings.listed(inc.key), address=addresses.get(inc.key, ""))
            for inc in self._holdings.by_key.values()
        ]

    def _mark_ends_reported(self, session: int, sequence: int) -> None:
        """Record, for each newly ended incarnation, that the report (`session`, `sequence`) is the first to contain its
        end.
        """
        for inc in self._holdings.by_key.values():
            if inc.phase is Phase.ENDED and inc.end_report is None:
                inc.end_report = (session, sequence)
                self._awaits_acknowledgement = True


def _figures(usages: Sequence[Usage]) -> tuple[int, list[int]]:
    """Convert usages of tasks to a table of numbers. Return its number of columns, and one list with all rows, one
    after the other: first a row with the sums of all tasks, then one row per task.

    The last columns are omitted if they contain only zeros.
    """
    rows = [msgspec.structs.astuple(usage) for usage in usages]
    sums = [sum(column) for column in zip(*rows, strict=True)]
    columns = max((n for n, value in enumerate(sums, 1) if value), default=1)
    result = sums[:columns] or [0]
    for row in rows:
        result += row[:columns]
    return columns, result
