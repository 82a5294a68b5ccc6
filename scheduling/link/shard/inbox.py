"""The work for the next turn of a shard's pump, and the reasons for rejected hellos."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from borglet.messages import Hello, Refusal
from scheduling.link.shard.connection import Connection
from scheduling.link.shard.writer import Known, MachineReportChanges
from scheduling.link.views.diff import ReportChanges
from scheduling.usage.usage_windows import TaskWindow


@dataclass(slots=True)
class Inbox:
    """The work for the next turn of the pump."""

    asks: list[tuple[tuple[str, str], asyncio.Future[Known | None]]] = field(default_factory=list)
    hellos: dict[int, tuple[Known, Hello, asyncio.Future[int]]] = field(default_factory=dict)
    news: dict[Connection, MachineReportChanges] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    offers: dict[Connection, str] = field(default_factory=dict)  # digests of next secrets
    windows: dict[Connection, tuple[int, list[TaskWindow]]] = field(default_factory=dict)  # with their last end


class HelloRejected(Exception):
    """A hello that was rejected."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


def merge(into: ReportChanges, more: ReportChanges) -> None:
    """Put the changes of a later report behind those of an earlier one."""
    into.seen += more.seen
    into.over += more.over
    into.lost += more.lost
    into.gone += more.gone
    into.unwanted += more.unwanted
    into.saved += more.saved
    into.dropped += more.dropped
    if more.strangers is not None:
        into.strangers = more.strangers


def superseded(hostname: str) -> Refusal:
    return Refusal(
        "superseded",
        "session",
        f"machine {hostname} has a newer session; if it is not the same Borglet, two run under one identity",
    )


def removed(hostname: str) -> Refusal:
    return Refusal("removed", "hostname", f"machine {hostname} was removed; join it again", retry=False)
