"""Build reports of the holdings, and track which of them the shard has received. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from borglet.messages import LogChunk, Phase, Refusal, Removal, Report, TaskKey, TaskReport, WireReport, sealed
from borglet.state.holdings import Holdings
from borglet.state.usages import figures, total


class Reporter:
    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self.refused: Refusal | None = None  # told with the next report, once
        self.removals: tuple[Removal, ...] = ()
        self._session = 0
        self._awaits_acknowledgement = False  # a report told of ends, and no poll came since
        # Tasks and allocs as reported last, with these addresses; None since something happened.
        self._sealed: tuple[msgspec.Raw, msgspec.Raw, dict[TaskKey, str]] | None = None

    def changed(self) -> None:
        """Mark the last report as outdated."""
        self._sealed = None

    def asked(self, session: int, sequence: int) -> None:
        """A poll came: the ends told of before it are acknowledged."""
        incarnations = self._holdings.incarnations.values()
        if session != self._session:
            self._session = session
            for inc in incarnations:
                # Whether the last report of a lost connection arrived, nobody knows: tell it again.
                inc.end_report = None
        self._awaits_acknowledgement = False
        for inc in incarnations:
            if inc.end_report is not None and sequence > inc.end_report[1]:
                inc.acknowledged = True
            elif inc.end_report is not None:
                self._awaits_acknowledgement = True

    def unmoved_by(self, session: int) -> bool:
        """Whether a poll of this session without a desired state changes nothing here: no end waits to be
        acknowledged."""
        return session == self._session and not self._awaits_acknowledgement

    def report(
        self,
        *,
        session: int,
        sequence: int,
        logs: list[LogChunk] | None = None,
        packages: list[str] | None = None,
        addresses: Mapping[TaskKey, str] = MappingProxyType({}),
    ) -> Report:
        """The full state, as the answer to one poll. Remembers which ends it told of, and tells a rejection once.

        `addresses`: of tasks that have one of their own."""
        self._mark_ends_reported(session, sequence)
        tasks = self.tasks(addresses)
        return Report(
            **self._common_fields(session, sequence, logs, packages),
            tasks=tasks,
            usage=total(task.usage for task in tasks),
            allocs=list(self._holdings.allocs),
        )

    def wire_report(
        self,
        *,
        session: int,
        sequence: int,
        logs: list[LogChunk] | None = None,
        packages: list[str] | None = None,
        addresses: Mapping[TaskKey, str] = MappingProxyType({}),
    ) -> WireReport:
        """`report` as it travels from protocol 2 on: parts that did not change are reused."""
        if self._sealed is None or self._sealed[2] != addresses:
            self._mark_ends_reported(session, sequence)
            reports = self.tasks(addresses, measured=False)
            self._sealed = (sealed(reports), sealed(list(self._holdings.allocs)), dict(addresses))
        tasks, allocs, _ = self._sealed
        columns, usages = figures([inc.usage for inc in self._holdings.incarnations.values()])
        return WireReport(
            **self._common_fields(session, sequence, logs, packages),
            tasks=tasks,
            allocs=allocs,
            usage_columns=columns,
            usages=usages,
        )

    def tasks(self, addresses: Mapping[TaskKey, str], *, measured: bool = True) -> list[TaskReport]:
        """`measured`: with their usage."""
        return [
            inc.report(expected=self._holdings.listed(inc.key), measured=measured, address=addresses.get(inc.key, ""))
            for inc in self._holdings.incarnations.values()
        ]

    def _mark_ends_reported(self, session: int, sequence: int) -> None:
        """Record this report as the first one that contains each new end."""
        for inc in self._holdings.incarnations.values():
            if inc.phase is Phase.ENDED and inc.end_report is None:
                inc.end_report = (session, sequence)
                self._awaits_acknowledgement = True

    def _common_fields(
        self, session: int, sequence: int, logs: list[LogChunk] | None, packages: list[str] | None
    ) -> dict[str, Any]:
        refused, self.refused = self.refused, None
        desired = self._holdings.desired
        return {
            "session": session,
            "sequence": sequence,
            "history_id": self._holdings.history_id,
            "generation": desired.generation if desired is not None else "",
            "revision": desired.revision if desired is not None else 0,
            "logs": logs or [],
            "refused": refused,
            "removals": [removal for removal in self.removals if removal.key in self._holdings.run],
            "packages": packages or [],
        }
