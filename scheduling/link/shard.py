"""A link shard: holds Borglets' connections, asks each at its pace, and writes down what changes (§3.3).

        Borglets                       event loop                          one database thread
    ── Report ──► heard ─ compare ─► changes ─┐                  ┌► greet, apply, look (journal), load
    ◄─ Poll ───── ask ◄─ timetable            ├─► pump, in turns ┤
                   ▲  ◄─ desired state ◄──────┘                  └► futures, stale sessions, Loaded
                   └── Redis: notices, log requests, sessions taken elsewhere

The pump works in turns: all that came in during one turn is one batch of the next. So an idle shard writes at
once, and a busy one writes large batches. Nothing waits for the database but what needs it: polls go on while
it is away.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections, connection

from borglet.messages import (
    OLDEST_PROTOCOL,
    Hello,
    LogRequest,
    Phase,
    Refusal,
    Report,
    ShellGrant,
    UsageWindow,
    Welcome,
    WireReport,
    authority_digest,
    common_protocol,
)
from quota.errors import Refused
from scheduling import config, usage_history
from scheduling.identities import SigningKey
from scheduling.link import news as journal_news
from scheduling.link import writer
from scheduling.link.authority import AuthorityBroken, bundle_pem
from scheduling.link.connection import GOING_AWAY, TRY_ELSEWHERE, Connection, Wire
from scheduling.link.desired import Loaded, Specs, load
from scheduling.link.diff import Changes, compare
from scheduling.link.identities import Identities
from scheduling.link.metrics import Figures
from scheduling.link.pace import GAP_S, poll_interval
from scheduling.link.polls import Polls
from scheduling.link.said import said
from scheduling.link.writer import CellFacts, Known, News
from scheduling.services.credentials import secrets_offered
from scheduling.services.identity_keys import signing_key
from scheduling.usage_history import TaskWindow

log = structlog.get_logger(__name__)
T = TypeVar("T")

# The journal is asked at least this often: notices are a courtesy.
LOOK_EVERY_S = 1.0
# The folder of the authority is looked at this often.
TRUST_EVERY_S = 60.0
# A desired state that was refused is offered again after this long.
OFFER_AGAIN_S = 2.0
_AWAY_S = 1.0
_BUSY_TURN_S = 0.02


class DatabaseAway(Exception):
    """PostgreSQL can't be reached; come back."""


@dataclass(slots=True)
class _Inbox:
    """What waits for the next turn of the pump."""

    asks: list[tuple[tuple[str, str], asyncio.Future[Known | None]]] = field(default_factory=list)
    hellos: dict[int, tuple[Known, Hello, asyncio.Future[int]]] = field(default_factory=dict)
    news: dict[Connection, News] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    offers: dict[Connection, str] = field(default_factory=dict)  # digests of next secrets
    windows: dict[Connection, tuple[int, list[TaskWindow]]] = field(
        default_factory=dict
    )  # with their last end


class Greeting(Exception):
    """A hello that was refused."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


class Shard:
    """`start`, then `authenticate`, `greet`, `attach`, `heard`, `detach` for each connection, then `stop`.

    `zone`: told to Borglets. `cell_names`: the cells served, none for all.
    """

    def __init__(
        self, *, cell_names: list[str], zone: str, rng: random.Random | None = None, name: str = ""
    ) -> None:
        self.name = name
        self.connections: dict[int, Connection] = {}
        self.freshly_held: dict[int, set[int]] = {}  # cell -> machines, for the next heartbeat
        self.on_logs: Callable[[Report], None] | None = None
        self.on_session: Callable[[int, int], None] | None = None
        self._cell_names, self._zone = cell_names, zone
        self._rng = rng or random.Random()
        self._cells: dict[int, CellFacts] = {}
        self._settings: dict[int, config.CellSettings] = {}
        self._seen: dict[int, int] = {}  # cell -> revision looked at
        self._inbox = _Inbox()
        self.figures = Figures(lambda: len(self.connections))
        self._polls = Polls(
            self.figures,
            self._rng,
            interval_s=self._interval_s,
            refresh=self.refresh,
            hang_up=self._hang_up,
        )
        self.identities = Identities(settings.PORTAL_URL)
        self._authorities = ("", "")  # PEM, and its digest
        self._trust_due = 0.0
        self._wake = asyncio.Event()
        self._specs = Specs()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="link-database")
        self._pump: asyncio.Task[None] | None = None
        self._looked = 0.0
        self._noticed = True

    # -- life

    @property
    def cell_ids(self) -> list[int]:
        return list(self._cells)

    async def start(self) -> None:
        """Raises `DatabaseAway`."""
        await self._look()
        await self._refresh_trust()
        self._pump = asyncio.create_task(self._pump_forever())

    async def stop(self) -> None:
        for held in list(self.connections.values()):
            held.close(GOING_AWAY, "this shard stops")
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        self._polls.stop()
        await asyncio.get_running_loop().run_in_executor(self._thread, _close_connection)
        self._thread.shutdown()

    # -- a connection's life

    async def authenticate(self, hostname: str, secret: str) -> Known | None:
        """None for an unknown machine or a wrong secret. Raises `DatabaseAway`."""
        future: asyncio.Future[Known | None] = asyncio.get_running_loop().create_future()
        self._inbox.asks.append(((hostname, secret), future))
        self._wake.set()
        return await future

    async def greet(self, known: Known, hello: Hello) -> int:
        """The number of the new session. Raises `Greeting` with a refusal, `DatabaseAway`."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        earlier = self._inbox.hellos.get(known.machine_id)
        if earlier is not None and not earlier[2].done():
            earlier[2].set_exception(Greeting(superseded(known.hostname)))
        self._inbox.hellos[known.machine_id] = (known, hello, future)
        self._wake.set()
        return await future

    def attach(self, known: Known, session: int, wire: Wire, hello: Hello) -> Connection:
        """Serve this connection from now on; one of the same machine here ends."""
        now = asyncio.get_running_loop().time()
        made = Connection(known.machine_id, known.cell_id, known.hostname, session, wire, now)
        if (cell := self._settings.get(known.cell_id)) is not None:
            made.rotation.plan(known.secret_age_s, cell.rotate_secrets_s, now, self._rng)
        self.supersede(known.machine_id, session)
        self.connections[known.machine_id] = made
        self.freshly_held.setdefault(known.cell_id, set()).add(known.machine_id)
        if self.on_session is not None:
            self.on_session(known.machine_id, session)
        pem, digest = self._authorities
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
        # Should the database be slow, the first poll goes out without a desired state: to keep in contact.
        self._polls.schedule(made, now + 2.0)
        return made

    def supersede(self, machine_id: int, session: int) -> None:
        """A machine has a newer session, here or at another shard."""
        held = self.connections.get(machine_id)
        if held is not None and held.session < session:
            held.refuse(superseded(held.hostname))
            self.detach(held)

    def detach(self, gone: Connection) -> None:
        self._polls.drop(gone)
        self._inbox.news.pop(gone, None)
        self._inbox.offers.pop(gone, None)
        self._inbox.windows.pop(gone, None)
        if self.connections.get(gone.machine_id) is gone:
            del self.connections[gone.machine_id]

    def send_away(self, number: int) -> None:
        """Hang up on so many machines, any of them: they dial again, and land where all do."""
        for held in self._rng.sample(list(self.connections.values()), min(number, len(self.connections))):
            held.close(TRY_ELSEWHERE, "machines spread over shards")
            self.detach(held)

    def refresh(self, machine_id: int) -> None:
        """What should be on a machine may have changed: read it again."""
        self._inbox.dirty.add(machine_id)
        self._wake.set()

    def notice(self) -> None:
        """The journal has news."""
        self._noticed = True
        self._wake.set()

    def request_log(self, machine_id: int, request: LogRequest) -> bool:
        """Ask a machine for part of a log, at once. False when it isn't connected here."""
        held = self.connections.get(machine_id)
        if held is None or held.closing:
            return False
        held.logs.append(request)
        self._polls.ask(held)
        return True

    def offer_shell(self, machine_id: int, grant: ShellGrant) -> bool:
        """Tell a machine of a shell, at once. False when it isn't connected here."""
        held = self.connections.get(machine_id)
        if held is None or held.closing:
            return False
        held.shells.append(grant)
        self._polls.ask(held)
        return True

    # -- reports

    def heard(self, held: Connection, report: WireReport) -> None:
        """A report came. Late ones and those of another session change nothing. Raises `MalformedMessage`."""
        now = asyncio.get_running_loop().time()
        if report.session != held.session or not held.answered < report.sequence <= held.asked:
            log.info("late report ignored", machine=held.hostname, sequence=report.sequence)
            return
        now_said = said(held.said, report)
        self.figures.polls += 1
        held.heard_at = now
        held.answered = report.sequence
        if report.logs and self.on_logs is not None and (wanted := held.wanted_logs(report)) is not None:
            self.on_logs(wanted)
        if report.refused is not None:
            self._refused(held, report.refused)
        if report.windows:
            self._take_windows(held, report.windows)
        if report.offer and held.rotation.asked:
            self._inbox.offers[held] = report.offer
            self._wake.set()
        if held.view is not None and report.history_id != held.view.history_id:
            self._foreign(held, report)
        else:
            held.said, held.acknowledged = now_said, report.generation
            self.figures.settled += now_said.settled
            if held.acknowledged == held.generation:
                held.desired = None
            if held.down or not now_said.settled:
                self._compare(held, answers=True)
        if held.waiting or held.closing:
            return
        early = now - held.asked_at < 0.5 * held.hold_s or held.hold_s == 0.0
        pause_s = held.patience.gap_s(now) if early else 0.0
        if held.behind:
            pause_s = OFFER_AGAIN_S if report.refused is not None else GAP_S
        if pause_s > 0:
            self._polls.schedule(held, now + pause_s)
        else:
            self._polls.due(held, now)

    def _take_windows(self, held: Connection, windows: Sequence[UsageWindow]) -> None:
        """Windows of usage are to be stored, those of tasks that are or lately were there."""
        now = time.time()
        wanted = [
            TaskWindow(held.cell_id, held.machine_id, task, window)
            for window in windows
            if usage_history.sensible(window, now) and (task := held.task_of(window.key)) is not None
        ]
        if len(wanted) < len(windows):
            log.info("usage of others", machine=held.hostname, windows=len(windows) - len(wanted))
        until = max(window.start + window.span_s for window in windows)
        self._inbox.windows[held] = until, wanted
        self._wake.set()

    def _refused(self, held: Connection, refusal: Refusal) -> None:
        held.refused_at = held.heard_at
        log.warning(
            "desired state refused",
            machine=held.hostname,
            code=refusal.code,
            field=refusal.field,
            detail=refusal.detail,
        )
        self.refresh(held.machine_id)

    def _foreign(self, held: Connection, report: Report) -> None:
        """A report of another history is not applied. One that comes after ours was offered is refused."""
        assert held.view is not None
        held.said, held.acknowledged = None, ""
        if report.history_id and 0 < held.told <= report.sequence:
            held.refuse(
                Refusal(
                    "other-history",
                    "history_id",
                    f"the report is of history {report.history_id}, this cell's is {held.view.history_id};"
                    " nothing was taken in, the desired state comes anew after reconnection",
                )
            )

    def _compare(self, held: Connection, *, answers: bool = False) -> None:
        """Note what the last report changes. `answers`: it came just now, so the machine is there."""
        if held.view is None or held.said is None:
            return
        held.said.settled = False
        held.said.assign(held.view, held.machine_id)
        changes = compare(held.view, held.said.opened())
        returned = answers and held.down
        if changes or returned:
            news = self._inbox.news.get(held)
            if news is None:
                news = News(held.machine_id, held.session, held.view.history_id)
                self._inbox.news[held] = news
            merge(news.changes, changes)
            news.returned |= returned
            self._wake.set()
        elif self._has_leftovers(held):
            # An ended incarnation is forgotten when a desired state received later doesn't list it: say it again.
            held.reminded = held.view.generation
            held.acknowledged = ""
            self.refresh(held.machine_id)
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

    # -- polls

    def _interval_s(self, held: Connection) -> float:
        cell = self._settings.get(held.cell_id)
        return poll_interval(len(self.connections), cell.poll_interval_s if cell else 0.0)

    def _hang_up(self, held: Connection, reason: str) -> None:
        held.close(GOING_AWAY, reason)
        self.detach(held)

    # -- the pump

    async def _pump_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                self._noticed = True
            self._wake.clear()
            started = time.perf_counter()
            try:
                await self._turn()
            except DatabaseAway as error:
                log.warning("database away", error=str(error))
                await asyncio.sleep(_AWAY_S)
            except Exception:
                log.exception("a turn failed; what it was about is read again")
                await asyncio.sleep(_AWAY_S)
            self.figures.turns.observe(time.perf_counter() - started)
            if time.perf_counter() - started > _BUSY_TURN_S:
                await asyncio.sleep(_BUSY_TURN_S)

    async def _turn(self) -> None:
        inbox, self._inbox = self._inbox, _Inbox()
        try:
            await self._authenticate(inbox)
            await self._greet(inbox)
            await self._take_offers(inbox)
            await self._apply(inbox)
            if self._noticed or time.monotonic() - self._looked >= LOOK_EVERY_S:
                self._noticed = False
                inbox.dirty |= await self._look()
            await self._refresh_trust()
            await self._load(inbox.dirty)
            await self._store_windows(inbox)
        except BaseException as error:
            self._put_back(inbox, error)
            raise

    def _put_back(self, inbox: _Inbox, error: BaseException) -> None:
        """A turn broke off. Who waits is told; what was to be written comes out of the rows and reports again."""
        away = error if isinstance(error, DatabaseAway) else DatabaseAway("the shard failed; come back")
        futures = [future for _, future in inbox.asks] + [entry[2] for entry in inbox.hellos.values()]
        for future in futures:
            if not future.done():
                future.set_exception(away)
        self._inbox.dirty |= inbox.dirty | {held.machine_id for held in inbox.news}
        self._noticed = True

    async def _authenticate(self, inbox: _Inbox) -> None:
        if not inbox.asks:
            return
        asks = [ask for ask, _ in inbox.asks]
        answers = await self._database(writer.authenticate, asks, self.cell_ids)
        for (_, future), answer in zip(inbox.asks, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    async def _greet(self, inbox: _Inbox) -> None:
        by_cell: dict[int, dict[int, Hello]] = {}
        for known, hello, _ in inbox.hellos.values():
            by_cell.setdefault(known.cell_id, {})[known.machine_id] = hello
        for cell_id, hellos in by_cell.items():
            answers = await self._database(writer.greet, cell_id, hellos)
            for machine_id in hellos:
                future = inbox.hellos[machine_id][2]
                answer = answers.get(machine_id)
                if future.done():
                    continue
                if isinstance(answer, int):
                    future.set_result(answer)
                else:
                    future.set_exception(Greeting(answer or removed(inbox.hellos[machine_id][0].hostname)))

    async def _refresh_trust(self) -> None:
        """Which authorities machines should trust, and the key that signs identities: both change over the months."""
        if time.monotonic() < self._trust_due:
            return
        self._trust_due = time.monotonic() + TRUST_EVERY_S
        try:
            self._authorities, self.identities.key = await self._database(_trust)
        except (OSError, AuthorityBroken):
            log.exception("the folder of the authority can't be used; what was known goes on")

    async def _take_offers(self, inbox: _Inbox) -> None:
        """What is lost here is asked for again."""
        by_cell: dict[int, dict[int, tuple[int, str]]] = {}
        for held, digest in inbox.offers.items():
            by_cell.setdefault(held.cell_id, {})[held.machine_id] = (held.session, digest)
        for cell_id, offers in by_cell.items():
            taken = await self._database(_secrets_offered, cell_id, offers)
            for held, digest in inbox.offers.items():
                if taken.get(held.machine_id) == digest and not held.closing:
                    held.rotation.accept(digest)
                    self._polls.ask(held)

    async def _store_windows(self, inbox: _Inbox) -> None:
        """What can't be stored is told again."""
        if not inbox.windows:
            return
        many = [window for _, windows in inbox.windows.values() for window in windows]
        try:
            await self._database(usage_history.store, many)
        except DatabaseAway:
            raise
        except Exception:
            log.exception("windows of usage can't be stored", windows=len(many))
            return
        for held, (until, _) in inbox.windows.items():
            held.windows_until = until

    async def _apply(self, inbox: _Inbox) -> None:
        by_cell: dict[int, list[News]] = {}
        for held, news in inbox.news.items():
            by_cell.setdefault(held.cell_id, []).append(news)
        for cell_id, many in by_cell.items():
            started = time.perf_counter()
            stale = await self._apply_or_isolate(cell_id, many)
            self.figures.written += sum(news.size - 1 for news in many)
            log.debug(
                "reports written",
                cell_id=cell_id,
                machines=len(many),
                changes=sum(news.size for news in many),
                ms=round(1000 * (time.perf_counter() - started), 1),
            )
            for news in many:
                held = self.connections.get(news.machine_id)
                if news.machine_id in stale and held is not None and held.session == news.session:
                    held.refuse(superseded(held.hostname))
                    self.detach(held)

    async def _apply_or_isolate(self, cell_id: int, many: list[News]) -> set[int]:
        """One machine whose news can't be written must not hold up the others."""
        try:
            return await self._database(writer.apply, cell_id, many)
        except DatabaseAway:
            raise
        except Exception:
            if len(many) == 1:
                log.exception("news of a machine can't be written", machine_id=many[0].machine_id)
                return set()
            log.exception("a batch can't be written; machine by machine now", machines=len(many))
        stale: set[int] = set()
        for news in many:
            stale |= await self._apply_or_isolate(cell_id, [news])
        return stale

    async def _look(self) -> set[int]:
        """Read which machines the journal's news concerns."""
        found, dirty, everywhere = await self._database(_look, self._cell_names, dict(self._seen))
        self._looked = time.monotonic()
        for cell in found:
            if self._cells.get(cell.id) is None or self._cells[cell.id].settings != cell.settings:
                self._settings[cell.id] = _settings(cell)
            self._seen[cell.id] = cell.revision
        self._cells = {cell.id: cell for cell in found}
        dirty |= {m for m, held in self.connections.items() if held.cell_id in everywhere}
        return dirty

    async def _load(self, dirty: set[int]) -> None:
        by_cell: dict[int, list[int]] = {}
        for machine_id in dirty:
            held = self.connections.get(machine_id)
            if held is not None:
                by_cell.setdefault(held.cell_id, []).append(machine_id)
        for cell_id, machine_ids in by_cell.items():
            loaded = await self._database(load, cell_id, machine_ids, self._specs)
            for machine_id in machine_ids:
                held = self.connections.get(machine_id)
                if held is not None:
                    self._take(held, loaded.get(machine_id))

    def _take(self, held: Connection, loaded: Loaded | None) -> None:
        """Rows were read: from now on reports are compared with these."""
        if loaded is None or loaded.removed:
            held.refuse(removed(held.hostname))
            self.detach(held)
            return
        if loaded.session != held.session:
            if loaded.session > held.session:
                held.refuse(superseded(held.hostname))
                self.detach(held)
            return
        now = asyncio.get_running_loop().time()
        held.identities += self.identities.due(held.identified, held.view, loaded, now, self._rng)
        held.take_view(loaded.view)
        held.desired, held.down = loaded.desired, loaded.down
        held.generation = loaded.desired.generation
        if loaded.rotation_asked:
            held.rotation.hurry(now)
        self._inbox.news.pop(held, None)  # told again by the comparison with the new view
        if held.said is not None and held.said.wire.history_id != held.view.history_id:
            held.said, held.acknowledged = None, ""
        if held.acknowledged == held.generation:
            held.desired = None
        self._compare(held)
        if held.behind or held.asked == 0:
            if now - held.refused_at < OFFER_AGAIN_S:
                self._polls.schedule(held, held.refused_at + OFFER_AGAIN_S)
            else:
                self._polls.ask(held)

    async def _database(self, function: Callable[..., T], *args: Any) -> T:
        """Run in the database thread. Raises `DatabaseAway`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _guarded, function, args)


def _guarded(function: Callable[..., T], args: tuple[Any, ...]) -> T:
    try:
        close_old_connections()
        return function(*args)
    except (OperationalError, InterfaceError) as error:
        connection.close()
        raise DatabaseAway(str(error).strip()) from error


def _trust() -> tuple[tuple[str, str], SigningKey]:
    pem = bundle_pem()
    return (pem, authority_digest(pem)), signing_key()


def _secrets_offered(cell_id: int, offers: dict[int, tuple[int, str]]) -> dict[int, str]:
    return secrets_offered(cell_id, offers, principal=writer.ME)


def _look(names: list[str], seen: dict[int, int]) -> tuple[list[CellFacts], set[int], set[int]]:
    found = writer.cells(names)
    dirty: set[int] = set()
    everywhere: set[int] = set()
    for cell in found:
        if cell.id in seen:
            news = journal_news.since(cell.id, seen[cell.id], newest=cell.revision)
            dirty |= news.machines
            if news.everywhere:
                everywhere.add(cell.id)
    return found, dirty, everywhere


def _settings(cell: CellFacts) -> config.CellSettings:
    try:
        return config.load(dict(cell.settings))
    except Refused as error:
        log.error("the cell's settings can't be read, defaults hold", cell=cell.name, error=error.detail)
        return config.CellSettings()


def merge(into: Changes, more: Changes) -> None:
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


def _close_connection() -> None:
    connection.close()
