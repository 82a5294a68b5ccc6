"""Intake of a machine's reports: compare them with the rows, and put changes into the inbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from borglet.messages import Phase, Refusal, Report, UsageWindow, WireReport
from scheduling.link.shard.connection import Connection
from scheduling.link.shard.inbox import merge
from scheduling.link.shard.roster import Roster
from scheduling.link.shard.writer import MachineReportChanges
from scheduling.link.views.diff import compare
from scheduling.link.views.last_report import merge_report
from scheduling.machines.pace import GAP_S
from scheduling.usage import usage_windows
from scheduling.usage.usage_windows import TaskWindow

log = structlog.get_logger(__name__)

# A desired state that was rejected is offered again after this long.
OFFER_AGAIN_S = 2.0


class ReportIntake:
    """The intake of reports. `on_logs` receives the parts of logs that this shard requested."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self.on_logs: Callable[[Report], None] | None = None

    def heard(self, held: Connection, report: WireReport) -> None:
        """A report came. Late ones and those of another session change nothing. Raises `MalformedMessage`."""
        now = asyncio.get_running_loop().time()
        if report.session != held.session or not held.answered < report.sequence <= held.asked:
            log.info("late report ignored", machine=held.hostname, sequence=report.sequence)
            return
        now_said = merge_report(held.said, report)
        self._roster.figures.polls += 1
        held.heard_at = now
        held.answered = report.sequence
        if report.logs and self.on_logs is not None and (wanted := held.wanted_logs(report)) is not None:
            self.on_logs(wanted)
        if report.refused is not None:
            self._refused(held, report.refused)
        if report.windows:
            self._take_windows(held, report.windows)
        if report.offer and held.rotation.asked:
            self._roster.inbox.offers[held] = report.offer
            self._roster.wake.set()
        if held.view is not None and report.history_id != held.view.history_id:
            self._foreign(held, report)
        else:
            held.said, held.acknowledged = now_said, report.generation
            self._roster.figures.settled += now_said.settled
            if held.acknowledged == held.generation:
                held.desired = None
            if held.down or not now_said.settled:
                self.compare(held, answers=True)
        if held.waiting or held.closing:
            return
        early = now - held.asked_at < 0.5 * held.hold_s or held.hold_s == 0.0
        pause_s = held.patience.gap_s(now) if early else 0.0
        if held.behind:
            pause_s = OFFER_AGAIN_S if report.refused is not None else GAP_S
        if pause_s > 0:
            self._roster.polls.schedule(held, now + pause_s)
        else:
            self._roster.polls.due(held, now)

    def _take_windows(self, held: Connection, windows: Sequence[UsageWindow]) -> None:
        """Queue the windows of usage of tasks that are or recently were on the machine."""
        now = time.time()
        wanted = [
            TaskWindow(held.cell_id, held.machine_id, task, window)
            for window in windows
            if usage_windows.sensible(window, now) and (task := held.task_of(window.key)) is not None
        ]
        if len(wanted) < len(windows):
            log.info("usage of others", machine=held.hostname, windows=len(windows) - len(wanted))
        until = max(window.start + window.span_s for window in windows)
        self._roster.inbox.windows[held] = until, wanted
        self._roster.wake.set()

    def _refused(self, held: Connection, refusal: Refusal) -> None:
        held.refused_at = held.heard_at
        log.warning(
            "desired state refused",
            machine=held.hostname,
            code=refusal.code,
            field=refusal.field,
            detail=refusal.detail,
        )
        self._roster.refresh(held.machine_id)

    def _foreign(self, held: Connection, report: Report) -> None:
        """A report of another history is not applied. One that comes after ours was offered is rejected."""
        assert held.view is not None
        held.said, held.acknowledged = None, ""
        if report.history_id and 0 < held.told <= report.sequence:
            held.refuse(
                Refusal(
                    "other-history",
                    "history_id",
                    f"the report is of history {report.history_id}, this cell's is {held.view.history_id};"
                    " the report was not used; the desired state is sent again after the reconnection",
                )
            )

    def compare(self, held: Connection, *, answers: bool = False) -> None:
        """Note what the last report changes. `answers`: it came just now, so the machine is there."""
        if held.view is None or held.said is None:
            return
        held.said.settled = False
        held.said.assign(held.view, held.machine_id)
        changes = compare(held.view, held.said.opened())
        returned = answers and held.down
        if changes or returned:
            news = self._roster.inbox.news.get(held)
            if news is None:
                news = MachineReportChanges(held.machine_id, held.session, held.view.history_id)
                self._roster.inbox.news[held] = news
            merge(news.changes, changes)
            news.returned |= returned
            self._roster.wake.set()
        elif self._has_leftovers(held):
            # An ended incarnation is forgotten when a desired state received later doesn't list it: say it again.
            held.reminded = held.view.generation
            held.acknowledged = ""
            self._roster.refresh(held.machine_id)
        if not changes:
            held.said.settle()

    def _has_leftovers(self, held: Connection) -> bool:
        assert held.view is not None
        assert held.said is not None
        view, report = held.view, held.said.opened()
        return (
            held.reminded != view.generation
            and report.generation == view.generation
            and any(
                task.phase is Phase.ENDED and task.key not in view.run and task.key not in view.stop
                for task in report.tasks
            )
        )
