"""Compares the reports of machines with the state in the database, and puts the differences into the shard's inbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from borglet.messages import Phase, Refusal, Report, UsageWindow, WireReport
from scheduling.link.shard.connection import Connection
from scheduling.link.shard.roster import Roster
from scheduling.link.shard.writer import MachineReportChanges
from scheduling.link.views.last_report import merge_report
from scheduling.link.views.report_changes import ReportChanges, compare
from scheduling.machines.poll_times import GAP_S, early_rate
from scheduling.usage import usage_windows
from scheduling.usage.usage_windows import TaskWindow

log = structlog.get_logger(__name__)

# A desired state that the Borglet rejected is sent again after this time.
OFFER_AGAIN_S = 2.0


class ReportIntake:
    """Receives the reports of machines. `on_logs` is called with the parts of logs that this shard requested."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self.on_logs: Callable[[Report], None] | None = None
        self._flapping: set[Connection] = set()  # the connections with changes that are held back

    def heard(self, held: Connection, report: WireReport) -> None:
        """Handle a report that has arrived. Ignore a report that answers no open poll, or that belongs to another
        session. Raises `MalformedMessage` if a field of the report is not valid.
        """
        now = asyncio.get_running_loop().time()
        if report.session != held.session or not held.answered < report.sequence <= held.asked:
            log.info(
                "the shard ignores a report that answers no open poll of this session",
                machine=held.hostname,
                sequence=report.sequence,
            )
            return
        report_now = merge_report(held.last_report, report)
        self._roster.figures.polls += 1
        held.heard_at = now
        self._roster.heard.add(held)
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
            held.last_report, held.acknowledged = report_now, report.generation
            self._roster.figures.settled += report_now.settled
            if held.acknowledged == held.generation:
                held.desired = None
            if held.down or not report_now.settled:
                self.compare(held, answers=True)
        if held.waiting or held.closing:
            return
        early = now - held.asked_at < 0.5 * held.hold_s or held.hold_s == 0.0
        pause_s = 0.0
        if early:
            per_s = early_rate(len(self._roster.connections))
            pause_s = held.early_pace.gap_s(now, per_s=per_s, turn_s=self._roster.attaching_turn_s)
        if held.behind:
            pause_s = OFFER_AGAIN_S if report.refused is not None else GAP_S
        if pause_s > 0:
            self._roster.polls.schedule(held, now + pause_s)
        else:
            self._roster.polls.due(held, now)

    def _take_windows(self, held: Connection, windows: Sequence[UsageWindow]) -> None:
        """Queue the reported usage of tasks, so that it is stored. Usage of tasks that were not on the machine
        recently is ignored.
        """
        now = time.time()
        wanted = [
            TaskWindow(held.cell_id, held.machine_id, task, held.cpu.normalised_window(window))
            for window in windows
            if usage_windows.sensible(window, now) and (task := held.task_of(window.key)) is not None
        ]
        if len(wanted) < len(windows):
            log.info(
                "the shard ignores reported usage of tasks that are not on the machine, or with impossible values",
                machine=held.hostname,
                windows=len(windows) - len(wanted),
            )
        until = max(window.start + window.span_s for window in windows)
        self._roster.inbox.windows[held] = until, wanted
        self._roster.wake.set()

    def _refused(self, held: Connection, refusal: Refusal) -> None:
        held.rejected_at = held.heard_at
        log.warning(
            "the Borglet rejected its desired state",
            machine=held.hostname,
            code=refusal.code,
            field=refusal.field,
            detail=refusal.detail,
        )
        self._roster.refresh(held.machine_id)

    def _foreign(self, held: Connection, report: Report) -> None:
        """Ignore a report about another history of the cell, for example from before its database was restored. Close
        the connection if the machine sent the report after it received the desired state of the current history.
        """
        assert held.view is not None
        held.last_report, held.acknowledged = None, ""
        if report.history_id and 0 < held.desired_sent <= report.sequence:
            held.reject(
                Refusal(
                    "other-history",
                    "history_id",
                    f"the report belongs to history {report.history_id}, and the cell has history"
                    f" {held.view.history_id}; connect again to receive the desired state",
                )
            )

    def compare(self, held: Connection, *, answers: bool = False) -> None:
        """Compare the last report of a machine with its stored state, and put the differences into the inbox.
        `answers`: whether the report has just arrived, which shows that the machine is up.
        """
        if held.view is None or held.last_report is None:
            return
        held.last_report.settled = False
        held.last_report.assign(held.view, held.machine_id)
        changes = compare(held.view, held.last_report.opened())
        if changes.seen:
            changes.seen = held.flaps.passed(changes.seen, asyncio.get_running_loop().time())
            if held.flaps.holds:
                self._flapping.add(held)
        returned = answers and held.down
        if changes or returned:
            self._put(held, changes, returned=returned)
        elif self._has_leftovers(held):
            # The Borglet forgets an ended incarnation when a later desired state omits it, so send that state again.
            held.generation_repeated = held.view.generation
            held.acknowledged = ""
            self._roster.refresh(held.machine_id)
        if not changes:
            held.last_report.settle()

    def release(self) -> None:
        """Put changes of flapping tasks into the inbox if they were held back for long enough."""
        now = asyncio.get_running_loop().time()
        for held in list(self._flapping):
            if self._roster.connections.get(held.machine_id) is held and (due := held.flaps.due(now)):
                self._put(held, ReportChanges(seen=due), returned=False)
            if self._roster.connections.get(held.machine_id) is not held or not held.flaps.holds:
                self._flapping.discard(held)

    def _put(self, held: Connection, changes: ReportChanges, *, returned: bool) -> None:
        """Put changes into the inbox, from which the next round of database work writes them. `returned`: whether the
        machine was down and answers again.
        """
        assert held.view is not None
        news = self._roster.inbox.news.get(held)
        if news is None:
            news = MachineReportChanges(held.machine_id, held.session, held.view.history_id)
            self._roster.inbox.news[held] = news
        news.changes.extend(changes)
        news.returned |= returned
        self._roster.wake.set()

    def _has_leftovers(self, held: Connection) -> bool:
        """Return whether the machine still reports ended incarnations that are no longer in its desired state."""
        assert held.view is not None
        assert held.last_report is not None
        view, report = held.view, held.last_report.opened()
        return (
            held.generation_repeated != view.generation
            and report.generation == view.generation
            and any(
                task.phase is Phase.ENDED and task.key not in view.run and task.key not in view.stop
                for task in report.tasks
            )
        )
