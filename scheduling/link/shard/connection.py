"""The connection of one machine: the open poll, the last report, and messages still to be sent."""

from __future__ import annotations

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
    Welcome,
    encode,
)
from scheduling.link.shard.identities import Identified
from scheduling.link.shard.rotation import Rotation
from scheduling.link.views.diff import View
from scheduling.link.views.last_report import LastReport
from scheduling.machines.pace import EarlyAnswerPace

log = structlog.get_logger(__name__)

POLICY_VIOLATION, GOING_AWAY, INVALID_DATA, TRY_ELSEWHERE = 1008, 1001, 1007, 1012


class Wire(Protocol):
    """The transport of messages to a machine. No method waits, and nothing is sent after `close`."""

    @property
    def congested(self) -> bool:
        """Return whether so much output waits for the machine that no further message should be sent."""

    def send(self, content: bytes) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


_MOST_LEFT = 256


@dataclass(eq=False, slots=True)
class Connection:
    """The connection of one machine. Only the event loop uses it. Times are the loop's, in seconds.

    Sequence numbers: `asked` is that of the last poll, `answered` of the last report, `told` of the last poll with a
    desired state. Generations: `acknowledged` is the one that the Borglet reports, `generation` the one that it should
    have, `reminded` the one that was sent again because of leftover tasks. `desired` is dropped once the first two are
    equal.
    """

    machine_id: int
    cell_id: int
    hostname: str
    session: int
    wire: Wire
    heard_at: float
    view: View | None = None
    generation: str = ""
    desired: Desired | None = None
    said: LastReport | None = None
    asked: int = 0
    answered: int = 0
    told: int = 0
    told_generation: str = ""
    acknowledged: str = ""
    asked_at: float = 0.0
    hold_s: float = 0.0
    down: bool = False
    closing: bool = False
    reminded: str = ""
    refused_at: float = float("-inf")
    patience: EarlyAnswerPace = field(default_factory=EarlyAnswerPace)
    logs: list[LogRequest] = field(default_factory=list)
    logs_asked: set[str] = field(default_factory=set)  # requests that are not answered yet
    rotation: Rotation = field(default_factory=Rotation)
    identified: Identified = field(default_factory=Identified)
    identities: list[TaskIdentity] = field(default_factory=list)  # to be sent with the next poll
    windows_until: int = 0  # end of the newest stored window of usage, until it is sent
    left: dict[TaskKey, int] = field(default_factory=dict)  # tasks that were here recently, and their ids
    shells: list[ShellGrant] = field(default_factory=list)

    @property
    def waiting(self) -> bool:
        """Return whether a poll has been sent and not answered."""
        return self.asked > self.answered

    @property
    def behind(self) -> bool:
        """Return whether the Borglet lacks the desired state and none is on its way."""
        return (
            self.view is not None
            and self.acknowledged != self.generation
            and (self.told_generation != self.generation or self.told <= self.answered)
        )

    @property
    def congested(self) -> bool:
        return self.wire.congested

    def ask(self, now: float, hold_s: float) -> None:
        """Send the next poll, with the desired state if its Borglet lacks it."""
        self.asked += 1
        desired = self.desired if self.behind else None
        if desired is not None:
            self.told, self.told_generation = self.asked, desired.generation
        logs, self.logs = self.logs, []
        self.logs_asked |= {request.request_id for request in logs}
        shells, self.shells = self.shells, []
        self.asked_at, self.hold_s = now, 0.0 if logs else hold_s
        rotate, accepted = self.rotation.say(now)
        identities, self.identities = self.identities, []
        until, self.windows_until = self.windows_until, 0
        self.post(Poll(self.asked, self.hold_s, desired, logs, identities, rotate, accepted, shells, until))

    def take_view(self, view: View) -> None:
        """Replace the tasks that should run here. Tasks that leave are kept for a while, because their usage is still
        reported.
        """
        if self.view is not None:
            for key, expected in self.view.run.items():
                if key not in view.run:
                    self.left[key] = expected.task_id
            while len(self.left) > _MOST_LEFT:
                del self.left[next(iter(self.left))]
        self.view = view

    def task_of(self, key: TaskKey) -> int | None:
        """Return the id of a task that is, or was recently, on this machine."""
        if self.view is None:
            return None
        expected = self.view.run.get(key)
        return expected.task_id if expected is not None else self.view.stop.get(key, self.left.get(key))

    def wanted_logs(self, report: Report) -> Report | None:
        """Return the report with only the logs that were requested from this machine, each once. None without logs."""
        wanted = [chunk for chunk in report.logs if chunk.request_id in self.logs_asked]
        if len(wanted) < len(report.logs):
            log.warning(
                "the machine sent logs that were not requested",
                machine=self.hostname,
                chunks=len(report.logs) - len(wanted),
            )
        self.logs_asked -= {chunk.request_id for chunk in wanted}
        return msgspec.structs.replace(report, logs=wanted) if wanted else None

    def post(self, message: Welcome | Refusal | Poll) -> None:
        if not self.closing:
            self.wire.send(encode(message))

    def refuse(self, refusal: Refusal, code: int = POLICY_VIOLATION) -> None:
        """Send the reason and close the connection."""
        log.warning("refused", machine=self.hostname, code=refusal.code, field=refusal.field, detail=refusal.detail)
        self.post(refusal)
        self.close(code, refusal.code)

    def close(self, code: int, reason: str) -> None:
        if not self.closing:
            self.closing = True
            self.wire.close(code, reason)
