"""The machines that a shard serves, and their cells."""

from __future__ import annotations

import asyncio
import random

from scheduling.link.shard.connection import GOING_AWAY, Connection
from scheduling.link.shard.inbox import Inbox, superseded
from scheduling.link.shard.metrics import ShardMetrics
from scheduling.link.shard.polls import Polls
from scheduling.machines.poll_times import poll_interval
from scheduling.models import Cell
from scheduling.policy import cell_settings


class Roster:
    """The machines and connections of a shard. All parts of the shard share them. Use them only in the event loop."""

    def __init__(self, rng: random.Random) -> None:
        self.connections: dict[int, Connection] = {}  # by machine
        self.cells: dict[int, Cell] = {}
        self.settings: dict[int, cell_settings.CellSettings] = {}
        self.inbox = Inbox()
        self.heard: set[Connection] = set()  # those that have reported since the last heartbeat
        self.wake = asyncio.Event()
        self.attaching_turn_s = 0.0  # how long the last turn took, if many machines connected in it; else 0
        self.figures = ShardMetrics(lambda: len(self.connections))
        self.rng = rng
        self.polls = Polls(self.figures, rng, interval_s=self._interval_s, refresh=self.refresh, hang_up=self._hang_up)

    def refresh(self, machine_id: int) -> None:
        """Request that the next round of database work reads the desired state of a machine again."""
        self.inbox.dirty.add(machine_id)
        self.wake.set()

    def detach(self, gone: Connection) -> None:
        self.polls.drop(gone)
        self.heard.discard(gone)
        self.inbox.news.pop(gone, None)
        self.inbox.offers.pop(gone, None)
        self.inbox.windows.pop(gone, None)
        if self.connections.get(gone.machine_id) is gone:
            del self.connections[gone.machine_id]

    def supersede(self, machine_id: int, session: int) -> None:
        """Close the connection of a machine if its session is older than `session`, the machine's newest session at
        any shard.
        """
        held = self.connections.get(machine_id)
        if held is not None and held.session < session:
            held.reject(superseded(held.hostname))
            self.detach(held)

    def _interval_s(self, held: Connection) -> float:
        cell = self.settings.get(held.cell_id)
        return poll_interval(len(self.connections), cell.poll_interval_s if cell else 0.0)

    def _hang_up(self, held: Connection, reason: str) -> None:
        held.close(GOING_AWAY, reason)
        self.detach(held)
