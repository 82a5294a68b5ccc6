"""A link shard has the connections of many Borglets, polls each Borglet, and stores the changes in its reports (§3.3).

    Borglet ── Report ─► compare it with the stored state ─► inbox: changes, new sessions
                                                               │
    Borglet ◄─ Poll ─── desired state ◄─── pump, in turns ◄────┘
                                           └─► database thread: begin sessions, write changes, read the journal,
                                               and load the desired state of the machines that it affects

The pump is the loop of database work (`turns`). One round of the loop is a turn. A turn handles everything that arrived
during the turn before it. So an idle shard writes at once, and a busy shard writes large batches. Polls do not wait for
the database.

Parts: `roster` (the machines), `inbox` (work for the next turn), `report_intake`, `turns` (the pump), `database`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from django.conf import settings

from borglet.messages import OLDEST_PROTOCOL, Hello, LogRequest, ShellGrant, Welcome, common_protocol
from scheduling.link.shard.connection import GOING_AWAY, TRY_ELSEWHERE, Connection, Wire
from scheduling.link.shard.database import Database
from scheduling.link.shard.inbox import HelloRejected, superseded
from scheduling.link.shard.report_intake import ReportIntake
from scheduling.link.shard.roster import Roster
from scheduling.link.shard.task_tokens import Identities
from scheduling.link.shard.turns import Turns
from scheduling.link.shard.writer import Known
from scheduling.link.transport.accepting import LoopProgress


class Shard:
    """A link shard, which serves the machines that connect to it.

    Call `start` first and `stop` last. For each connection, call `authenticate`, `greet` and `attach` in this order,
    then `heard` for each report, and `detach` at the end. `zone`: the DNS zone that is sent to Borglets.
    `cell_names`: the cells to serve; if it is empty, all cells are served.
    """

    def __init__(self, *, cell_names: list[str], zone: str, rng: random.Random | None = None, name: str = "") -> None:
        self.name = name
        self.roster = roster = Roster(rng or random.Random())
        self.connections, self.figures = roster.connections, roster.figures
        self.freshly_held: dict[int, set[int]] = {}  # cell -> machines, for the next heartbeat
        self.progress = LoopProgress()
        self.on_session: Callable[[int, int], None] | None = None
        self.identities = Identities(settings.PORTAL_URL)
        self._zone = zone
        self.hearing = ReportIntake(roster)
        self._database = Database("link-database")
        self._turns = Turns(roster, self.hearing, self._database, self.identities, cell_names=cell_names)
        self._pump: asyncio.Task[None] | None = None
        self.heard, self.notice = self.hearing.heard, self._turns.notice
        self.detach, self.supersede, self.refresh = roster.detach, roster.supersede, roster.refresh

    # -- life

    @property
    def cell_ids(self) -> list[int]:
        return list(self.roster.cells)

    async def start(self) -> None:
        """Read the cells and begin to serve. Raises `DatabaseAway` if PostgreSQL cannot be reached."""
        await self._turns.start()
        self.progress.start()
        self._pump = asyncio.create_task(self._turns.forever())

    async def stop(self) -> None:
        for held in list(self.connections.values()):
            held.close(GOING_AWAY, "this shard stops")
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        self.roster.polls.stop()
        await self.progress.stop()
        await self._database.close()

    # -- a connection's life

    async def authenticate(self, hostname: str, secret: str) -> Known | None:
        """Return the machine with this hostname and secret, or None if they are wrong. Raises `DatabaseAway` if
        PostgreSQL cannot be reached.
        """
        future: asyncio.Future[Known | None] = asyncio.get_running_loop().create_future()
        self.roster.inbox.asks.append(((hostname, secret), future))
        self.roster.wake.set()
        return await future

    async def greet(self, known: Known, hello: Hello) -> int:
        """Begin a new session of a machine. Return the number of the session. `hello`: the machine's first message.
        Raises `HelloRejected` if the hello is rejected or the machine has sent a newer one, and `DatabaseAway` if
        PostgreSQL cannot be reached.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        earlier = self.roster.inbox.hellos.get(known.machine_id)
        if earlier is not None and not earlier[2].done():
            earlier[2].set_exception(HelloRejected(superseded(known.hostname)))
        self.roster.inbox.hellos[known.machine_id] = (known, hello, future)
        self.roster.wake.set()
        return await future

    def attach(self, known: Known, session: int, wire: Wire, hello: Hello) -> Connection:
        """Add the connection of a machine, which the shard serves from now on. An older connection of the same
        machine is closed.
        """
        now = asyncio.get_running_loop().time()
        returning = hello.history_id == known.history_id
        made = Connection(known.machine_id, known.cell_id, known.hostname, session, wire, now, returning)
        if (cell := self.roster.settings.get(known.cell_id)) is not None:
            made.rotation.plan(known.secret_age_s, cell.rotate_secrets_s, now, self.roster.rng)
        self.supersede(known.machine_id, session)
        self.connections[known.machine_id] = made
        self.freshly_held.setdefault(known.cell_id, set()).add(known.machine_id)
        if self.on_session is not None:
            self.on_session(known.machine_id, session)
        pem, digest = self._turns.authorities
        made.post(
            Welcome(
                common_protocol(hello) or OLDEST_PROTOCOL,
                session,
                known.cell,
                known.history_id,
                self._zone,
                authority=pem if hello.authority not in ("", digest) else "",
                api_url=self.identities.issuer,
            )
        )
        self.refresh(known.machine_id)
        if returning:
            self.roster.polls.probe(made)
        else:
            # If the database is slow, the first poll has no desired state, but keeps the machine in contact.
            self.roster.polls.schedule(made, now + 2.0)
        return made

    def send_away(self, number: int) -> None:
        """Close the connections of `number` randomly chosen machines. These machines then connect again, to any
        shard.
        """
        for held in self.roster.rng.sample(list(self.connections.values()), min(number, len(self.connections))):
            held.close(TRY_ELSEWHERE, "this shard has too many machines; connect again")
            self.detach(held)

    def request_log(self, machine_id: int, request: LogRequest) -> bool:
        """Send a machine a request for part of a log. Return False if the machine is not connected to this shard."""
        return self._poll_with(machine_id, lambda held: held.logs.append(request))

    def offer_shell(self, machine_id: int, grant: ShellGrant) -> bool:
        """Send a machine the permission to open a shell. Return False if the machine is not connected to this shard."""
        return self._poll_with(machine_id, lambda held: held.shells.append(grant))

    def _poll_with(self, machine_id: int, add: Callable[[Connection], None]) -> bool:
        held = self.connections.get(machine_id)
        if held is None or held.closing:
            return False
        add(held)
        self.roster.polls.ask(held)
        return True
