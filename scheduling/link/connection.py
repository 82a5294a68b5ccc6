"""One machine's connection at this shard: what was asked, what was said, and what is still to be sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

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
    Welcome,
    encode,
)
from scheduling.link.diff import View
from scheduling.link.identities import Identified
from scheduling.link.pace import Patience
from scheduling.link.rotation import Rotation

log = structlog.get_logger(__name__)

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

POLICY_VIOLATION, GOING_AWAY, INVALID_DATA = 1008, 1001, 1007
# Frames waiting for a machine that doesn't read: beyond these it is asked nothing more.
_BACKLOG = 4


@dataclass(eq=False, slots=True)
class Connection:
    """Belongs to the event loop. Times are the loop's, in seconds.

    Sequence numbers: `asked` of the last poll, `answered` of the last report. `told`: of the last poll that
    carried a desired state. `acknowledged`: the generation its Borglet says is in force. `reminded`: the one sent
    again because of leftovers.
    """

    machine_id: int
    cell_id: int
    hostname: str
    session: int
    send: Send
    heard_at: float
    view: View | None = None
    desired: Desired | None = None
    report: Report | None = None
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
    patience: Patience = field(default_factory=Patience)
    logs: list[LogRequest] = field(default_factory=list)
    logs_asked: set[str] = field(default_factory=set)  # requests whose answers are welcome
    rotation: Rotation = field(default_factory=Rotation)
    identified: Identified = field(default_factory=Identified)
    identities: list[TaskIdentity] = field(default_factory=list)  # to be said with the next poll
    shells: list[ShellGrant] = field(default_factory=list)
    _outbox: deque[MutableMapping[str, Any]] = field(default_factory=deque)
    _sender: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> bool:
        """A poll is out and not answered."""
        return self.asked > self.answered

    @property
    def behind(self) -> bool:
        """Its Borglet hasn't got the desired state, and none is on its way to it."""
        return (
            self.desired is not None
            and self.acknowledged != self.desired.generation
            and (self.told_generation != self.desired.generation or self.told <= self.answered)
        )

    @property
    def congested(self) -> bool:
        return len(self._outbox) >= _BACKLOG

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
        self.post(Poll(self.asked, self.hold_s, desired, logs, identities, rotate, accepted, shells))

    def wanted_logs(self, report: Report) -> Report | None:
        """The report with the logs that this machine was asked for, each once: it can't answer for others."""
        wanted = [chunk for chunk in report.logs if chunk.request_id in self.logs_asked]
        if len(wanted) < len(report.logs):
            log.warning("logs nobody asked for", machine=self.hostname, chunks=len(report.logs) - len(wanted))
        self.logs_asked -= {chunk.request_id for chunk in wanted}
        return msgspec.structs.replace(report, logs=wanted) if wanted else None

    def post(self, message: Welcome | Refusal | Poll) -> None:
        if not self.closing:
            self._put({"type": "websocket.send", "text": encode(message).decode()})

    def refuse(self, refusal: Refusal, code: int = POLICY_VIOLATION) -> None:
        """Say why, then close."""
        log.warning(
            "refused", machine=self.hostname, code=refusal.code, field=refusal.field, detail=refusal.detail
        )
        self.post(refusal)
        self.close(code, refusal.code)

    def close(self, code: int, reason: str) -> None:
        if not self.closing:
            self.closing = True
            self._put({"type": "websocket.close", "code": code, "reason": reason})

    def let_go(self) -> None:
        """The connection has ended."""
        self.closing = True
        self._outbox.clear()
        if self._sender is not None:
            self._sender.cancel()

    def _put(self, event: MutableMapping[str, Any]) -> None:
        self._outbox.append(event)
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._outbox:
                await self.send(self._outbox.popleft())
        except OSError as error:
            # Its reader meets the same end and clears up.
            log.info("not sent", machine=self.hostname, error=str(error) or type(error).__name__)
            self._outbox.clear()
        finally:
            self._sender = None
