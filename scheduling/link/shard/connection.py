"""The connection of a machine to a shard: the poll without an answer, the last report, and the messages to send."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import structlog

from borglet.messages import (
    Desired,
    LogRequest,
    Poll,
    Refusal,
    Report,
    ShellGrant,
    TaskIdentity,
    TaskKey,
    ToBorglet,
    encode,
)
from scheduling.link.shard.secret_rotation import Rotation
from scheduling.link.views.flaps import FlapDamper
from scheduling.link.views.last_report import LastReport
from scheduling.link.views.machine_cpu import PLAIN, MachineCpu
from scheduling.link.views.report_changes import View
from scheduling.machines.poll_times import EarlyAnswerPace

log = structlog.get_logger(__name__)

POLICY_VIOLATION, GOING_AWAY, INVALID_DATA, TRY_ELSEWHERE = 1008, 1001, 1007, 1012


class Wire(Protocol):
    """Sends messages to a machine. No method blocks. After `close`, nothing is sent."""

    @property
    def congested(self) -> bool:
        """Return whether too much output is waiting to be sent to the machine, so that no further message should be
        sent.
        """

    def send(self, content: bytes) -> None:
        """Send a message."""

    def close(self, code: int, reason: str) -> None:
        """Close the connection with a WebSocket close code."""


# Largest number of tasks that have left a machine and whose usage is still taken.
_MOST_LEFT = 256


@dataclass(eq=False, slots=True)
class Connection:
    """The connection of one machine. Use it only in the event loop. Times are seconds of the loop's clock.

    `asked`: number of the last poll. `answered`: number of the last poll that was answered. `desired_sent`: number of
    the last poll that contained a desired state. A generation is the version of a desired state. `generation`: the
    one that the Borglet should have. `generation_sent`: the one that was sent last. `acknowledged`: the one that the
    Borglet reports. `generation_repeated`: the one that was sent twice, because a report still contained ended tasks.
    `returning`: the Borglet has a desired state from an earlier session.
    """

    machine_id: int
    cell_id: int
    hostname: str
    session: int
    wire: Wire
    heard_at: float
    returning: bool = False
    view: View | None = None
    generation: str = ""
    desired: Desired | None = None
    last_report: LastReport | None = None
    asked: int = 0
    answered: int = 0
    desired_sent: int = 0
    generation_sent: str = ""
    acknowledged: str = ""
    asked_at: float = 0.0
    hold_s: float = 0.0
    down: bool = False
    closing: bool = False
    generation_repeated: str = ""
    rejected_at: float = -math.inf  # when the Borglet last rejected its desired state
    early_pace: EarlyAnswerPace = field(default_factory=EarlyAnswerPace)
    logs: list[LogRequest] = field(default_factory=list)
    logs_asked: set[str] = field(default_factory=set)  # requests that are not answered yet
    rotation: Rotation = field(default_factory=Rotation)
    renew_identities_at: float = math.inf
    identities: list[TaskIdentity] = field(default_factory=list)  # to be sent with the next poll
    windows_until: int = 0  # end of the newest stored window of usage, until it is sent
    left: dict[TaskKey, int] = field(default_factory=dict)  # tasks that were here recently, and their ids
    shells: list[ShellGrant] = field(default_factory=list)
    flaps: FlapDamper = field(default_factory=FlapDamper)
    cpu: MachineCpu = PLAIN  # converts between normalised CPU and that of the machine

    @property
    def waiting(self) -> bool:
        """Return whether a poll was sent that is not answered yet."""
        return self.asked > self.answered

    @property
    def probed(self) -> bool:
        """Return whether a Borglet that came back with an earlier desired state has not answered its first poll yet.
        The answer will show which desired state it has.
        """
        return self.returning and self.asked == 1 and self.answered == 0

    @property
    def behind(self) -> bool:
        """Return whether the next poll must contain the desired state. It must if the Borglet does not have this
        state and no unanswered poll contains it.
        """
        return (
            self.view is not None
            and self.acknowledged != self.generation
            and (self.generation_sent != self.generation or self.desired_sent <= self.answered)
        )

    def ask(self, now: float, hold_s: float) -> None:
        """Send the next poll. It contains the desired state if the Borglet lacks it. `hold_s`: for how many seconds the
        Borglet may wait for a change of its state before it answers.
        """
        self.asked += 1
        self.asked_at = now
        desired = self.desired if self.behind else None
        if desired is not None:
            self.desired_sent, self.generation_sent = self.asked, desired.generation
        logs, identities, shells, until = self.logs, self.identities, self.shells, self.windows_until
        if logs:
            self.logs, hold_s = [], 0.0
            self.logs_asked |= {request.request_id for request in logs}
        if identities:
            self.identities = []
        if shells:
            self.shells = []
        self.hold_s, self.windows_until = hold_s, 0
        rotate, accepted = self.rotation.next_poll(now)
        self.post(Poll(self.asked, hold_s, desired, logs, identities, rotate, accepted, shells, until))

    def take_view(self, view: View) -> None:
        """Set the view of the machine: its incarnations as the database describes them. Add the tasks that are not in
        the new view to `left`, the tasks that have left the machine.
        """
        if self.view is not None:
            for key, expected in self.view.run.items():
                if key not in view.run:
                    self.left[key] = expected.task_id
            while len(self.left) > _MOST_LEFT:
                del self.left[next(iter(self.left))]
        self.view = view

    def task_of(self, key: TaskKey) -> int | None:
        """Return the id of a task that is or recently was on this machine, or None."""
        if self.view is None:
            return None
        expected = self.view.run.get(key)
        return expected.task_id if expected is not None else self.view.stop.get(key, self.left.get(key))

    def wanted_logs(self, report: Report) -> Report | None:
        """Return the report without those log parts that this shard did not request. Return None if no log parts
        remain.
        """
        wanted = [chunk for chunk in report.logs if chunk.request_id in self.logs_asked]
        if len(wanted) < len(report.logs):
            log.warning(
                "the machine sent logs without a request; they are dropped",
                machine=self.hostname,
                chunks=len(report.logs) - len(wanted),
            )
        self.logs_asked -= {chunk.request_id for chunk in wanted}
        return msgspec.structs.replace(report, logs=wanted) if wanted else None

    def post(self, message: ToBorglet) -> None:
        if not self.closing:
            self.wire.send(encode(message))

    def reject(self, refusal: Refusal, code: int = POLICY_VIOLATION) -> None:
        """Send a rejection to the machine and close the connection. `code`: the WebSocket close code."""
        log.warning(
            "rejected a machine; its connection is closed",
            machine=self.hostname,
            code=refusal.code,
            field=refusal.field,
            detail=refusal.detail,
        )
        self.post(refusal)
        self.close(code, refusal.code)

    def close(self, code: int, reason: str) -> None:
        if not self.closing:
            self.closing = True
            self.wire.close(code, reason)
