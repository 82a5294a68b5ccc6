"""The database work that a shard must do next, and errors about rejected connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from borglet.messages import Hello, Refusal
from scheduling.link.shard.connection import Connection
from scheduling.link.shard.writer import Known, MachineReportChanges
from scheduling.usage.usage_windows import TaskWindow


@dataclass(slots=True)
class Inbox:
    """The work that a shard's next turn does. A turn is one round of database work. `asks`: (hostname, secret) of each
    machine that wants to connect.

    `news`: changes from reports. `dirty`: ids of machines whose desired state must be read again.
    """

    asks: list[tuple[tuple[str, str], asyncio.Future[Known | None]]] = field(default_factory=list)
    hellos: dict[int, tuple[Known, Hello, asyncio.Future[int]]] = field(default_factory=dict)
    news: dict[Connection, MachineReportChanges] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    offers: dict[Connection, str] = field(default_factory=dict)  # digests of next secrets
    windows: dict[Connection, tuple[int, list[TaskWindow]]] = field(default_factory=dict)  # with their last end


class HelloRejected(Exception):
    """Raised when the hello (first message) of a machine is rejected. `refusal`: the message to send to the machine."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


def superseded(hostname: str) -> Refusal:
    """Return the message that rejects a connection because its machine has opened a newer connection."""
    return Refusal(
        "superseded", "session", f"machine {hostname} has a newer session; check that only one Borglet uses its secret"
    )


def removed(hostname: str) -> Refusal:
    """Return the message that rejects a machine, because it was removed from its cell."""
    detail = f"machine {hostname} was removed from the cell; join it again with a new token"
    return Refusal("removed", "hostname", detail, retry=False)
