"""The database work of a shard, in rounds that are called turns. They run one after another in one thread.

A turn handles all messages that arrived during the turn before it, as one batch.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import structlog

from borglet.messages import Hello, authority_digest
from quota.vocabulary.errors import Rejected
from scheduling.identity.authority import AuthorityBroken, bundle_pem
from scheduling.identity.signing_keys import signing_key
from scheduling.identity.task_tokens import SigningKey
from scheduling.link.shard import writer
from scheduling.link.shard.connection import Connection
from scheduling.link.shard.database import Database, DatabaseAway
from scheduling.link.shard.inbox import HelloRejected, Inbox, removed, superseded
from scheduling.link.shard.report_intake import OFFER_AGAIN_S, ReportIntake
from scheduling.link.shard.roster import Roster
from scheduling.link.shard.task_tokens import Identities
from scheduling.link.shard.writer import MachineReportChanges
from scheduling.link.views.concerned_machines import concerned_machines
from scheduling.link.views.desired import Loaded, Specs, load
from scheduling.machines.credentials import secrets_offered
from scheduling.models import Cell
from scheduling.policy import cell_settings
from scheduling.usage import usage_windows

log = structlog.get_logger(__name__)

# The journal is read at least this often, because notices may be lost.
LOOK_EVERY_S = 1.0
# The folder of the authority is read at this interval.
TRUST_EVERY_S = 60.0
_AWAY_S = 1.0
_BUSY_TURN_S = 0.02
# While this many machines connect in one turn, the shard polls machines with changes less often.
_MANY_HELLOS = 8


class Turns:
    """The loop (pump) that does a shard's database work. One round of the loop is called a turn. `cell_names`: the
    cells that the shard serves; empty for all cells.
    """

    def __init__(
        self,
        roster: Roster,
        reports: ReportIntake,
        database: Database,
        identities: Identities,
        *,
        cell_names: list[str],
    ) -> None:
        self._roster, self._reports, self._database = roster, reports, database
        self._cell_names = cell_names
        self._identities = identities
        self.authorities = ("", "")  # PEM, and its digest
        self._seen: dict[int, int] = {}  # cell -> revision up to which its journal was read
        self._specs = Specs()
        self._trust_due = 0.0
        self._looked = 0.0
        self._noticed = True

    def notice(self) -> None:
        """Record that the journal has new events, and wake the loop. The next turn reads the events."""
        self._noticed = True
        self._roster.wake.set()

    async def start(self) -> None:
        """Read the cells, TLS authorities and the signing key. Raises `DatabaseAway` if PostgreSQL is unreachable."""
        await self._look()
        await self._refresh_trust()

    async def forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._roster.wake.wait()
            except TimeoutError:
                self._noticed = True
            self._roster.wake.clear()
            started = time.perf_counter()
            hellos = len(self._roster.inbox.hellos)
            try:
                await self._turn()
            except DatabaseAway as error:
                log.warning("the database is unreachable; the shard tries again", error=str(error))
                await asyncio.sleep(_AWAY_S)
            except Exception:
                log.exception(
                    "a round of reading and writing in the database failed; the shard reads the affected rows again"
                )
                await asyncio.sleep(_AWAY_S)
            took_s = time.perf_counter() - started
            self._roster.figures.turns.observe(took_s)
            self._roster.attaching_turn_s = took_s if hellos >= _MANY_HELLOS else 0.0
            if took_s > _BUSY_TURN_S:
                await asyncio.sleep(_BUSY_TURN_S)

    async def _turn(self) -> None:
        self._reports.release()
        inbox, self._roster.inbox = self._roster.inbox, Inbox()
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

    def _put_back(self, inbox: Inbox, error: BaseException) -> None:
        """Handle a failed turn. Callers that wait for its result get a `DatabaseAway` error. The stored state of the
        affected machines will be read again.

        No changes are lost, because this state is then compared with the last reports.
        """
        away = error if isinstance(error, DatabaseAway) else DatabaseAway("the shard failed; try again")
        futures = [future for _, future in inbox.asks] + [entry[2] for entry in inbox.hellos.values()]
        for future in futures:
            if not future.done():
                future.set_exception(away)
        self._roster.inbox.dirty |= inbox.dirty | {held.machine_id for held in inbox.news}
        self._noticed = True

    async def _authenticate(self, inbox: Inbox) -> None:
        if not inbox.asks:
            return
        asks = [ask for ask, _ in inbox.asks]
        answers = await self._database(writer.authenticate, asks, self._roster.cells)
        for (_, future), answer in zip(inbox.asks, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    async def _greet(self, inbox: Inbox) -> None:
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
                    future.set_exception(HelloRejected(answer or removed(inbox.hellos[machine_id][0].hostname)))

    async def _refresh_trust(self) -> None:
        """Read the authorities that machines should trust, and the key that signs identity tokens. Do nothing if they
        were read less than `TRUST_EVERY_S` seconds ago.
        """
        if time.monotonic() < self._trust_due:
            return
        self._trust_due = time.monotonic() + TRUST_EVERY_S
        try:
            self.authorities, self._identities.key = await self._database(_trust)
        except (OSError, AuthorityBroken):
            log.exception("cannot use the folder of the TLS authority; the previous authorities and key stay in use")

    async def _take_offers(self, inbox: Inbox) -> None:
        """Store the new secrets that machines offer in answer to a poll. If this fails, the machines are asked again
        later.
        """
        by_cell: dict[int, dict[int, tuple[int, str]]] = {}
        for held, digest in inbox.offers.items():
            by_cell.setdefault(held.cell_id, {})[held.machine_id] = (held.session, digest)
        for cell_id, offers in by_cell.items():
            taken = await self._database(partial(secrets_offered, principal=writer.ME), cell_id, offers)
            for held, digest in inbox.offers.items():
                if taken.get(held.machine_id) == digest and not held.closing:
                    held.rotation.accept(digest)
                    self._roster.polls.ask(held)

    async def _store_windows(self, inbox: Inbox) -> None:
        """Store the usage that machines have reported for their tasks. If this fails, machines report the same usage
        again.
        """
        if not inbox.windows:
            return
        many = [window for _, windows in inbox.windows.values() for window in windows]
        try:
            await self._database(usage_windows.store, many)
        except DatabaseAway:
            raise
        except Exception:
            log.exception(
                "cannot store the usage of tasks that machines reported; the machines report it again",
                windows=len(many),
            )
            return
        for held, (until, _) in inbox.windows.items():
            held.windows_until = until

    async def _apply(self, inbox: Inbox) -> None:
        by_cell: dict[int, list[MachineReportChanges]] = {}
        for held, news in inbox.news.items():
            by_cell.setdefault(held.cell_id, []).append(news)
        for cell_id, many in by_cell.items():
            started = time.perf_counter()
            stale = await self._apply_or_isolate(cell_id, many)
            self._roster.figures.written += sum(news.size - 1 for news in many)
            log.debug(
                "reports written",
                cell_id=cell_id,
                machines=len(many),
                changes=sum(news.size for news in many),
                ms=round(1000 * (time.perf_counter() - started), 1),
            )
            for news in many:
                held = self._roster.connections.get(news.machine_id)  # type: ignore[assignment]
                if news.machine_id in stale and held is not None and held.session == news.session:
                    held.reject(superseded(held.hostname))
                    self._roster.detach(held)

    async def _apply_or_isolate(self, cell_id: int, many: list[MachineReportChanges]) -> set[int]:
        """Write the changes of many machines together. If this fails, write them again, one machine at a time. Return
        the ids of the machines that have a newer session; their changes are not written.
        """
        try:
            return await self._database(writer.apply, cell_id, many)
        except DatabaseAway:
            raise
        except Exception:
            if len(many) == 1:
                log.exception("cannot store the changes that a machine reported", machine_id=many[0].machine_id)
                return set()
            log.exception("cannot store a batch of changes; trying one machine at a time", machines=len(many))
        stale: set[int] = set()
        for news in many:
            stale |= await self._apply_or_isolate(cell_id, [news])
        return stale

    async def _look(self) -> set[int]:
        """Read the cells and new journal events. Return the ids of machines whose desired state may have changed."""
        found, dirty, everywhere = await self._database(_look, self._cell_names, dict(self._seen))
        self._looked = time.monotonic()
        for cell in found:
            if self._roster.cells.get(cell.id) is None or self._roster.cells[cell.id].settings != cell.settings:
                self._roster.settings[cell.id] = _settings(cell)
            self._seen[cell.id] = cell.revision
        # The machines of a deleted cell were removed, so their connections are closed.
        everywhere |= self._roster.cells.keys() - {cell.id for cell in found}
        self._roster.cells = {cell.id: cell for cell in found}
        dirty |= {m for m, held in self._roster.connections.items() if held.cell_id in everywhere}
        return dirty

    async def _load(self, dirty: set[int]) -> None:
        by_cell: dict[int, list[int]] = {}
        for machine_id in dirty:
            held = self._roster.connections.get(machine_id)
            if held is not None:
                by_cell.setdefault(held.cell_id, []).append(machine_id)
        for cell_id, machine_ids in by_cell.items():
            loaded = await self._database(load, cell_id, machine_ids, self._specs)
            for machine_id in machine_ids:
                held = self._roster.connections.get(machine_id)
                if held is not None:
                    self._take(held, loaded.get(machine_id))

    def _take(self, held: Connection, loaded: Loaded | None) -> None:
        """Give the stored state `loaded` of a machine to its connection. Later reports are compared with this state."""
        if loaded is None or loaded.removed:
            held.reject(removed(held.hostname))
            self._roster.detach(held)
            return
        if loaded.session != held.session:
            if loaded.session > held.session:
                held.reject(superseded(held.hostname))
                self._roster.detach(held)
            return
        now = asyncio.get_running_loop().time()
        held.identities += self._identities.due(held, loaded, now, self._roster.rng)
        held.take_view(loaded.view)
        held.cpu = loaded.cpu
        held.flaps.rebase(loaded.view, now)
        held.desired, held.down = loaded.desired, loaded.down
        held.generation = loaded.desired.generation
        if loaded.rotation_asked:
            held.rotation.hurry(now)
        self._roster.inbox.news.pop(held, None)  # the comparison with the new view finds these changes again
        if held.last_report is not None and held.last_report.wire.history_id != held.view.history_id:  # type: ignore[union-attr]
            held.last_report, held.acknowledged = None, ""
        if held.acknowledged == held.generation:
            held.desired = None
        self._reports.compare(held)
        if held.probed and not held.identities:
            return  # the report follows, and shows whether the Borglet already has this state
        if held.behind or held.asked == 0:
            if now - held.rejected_at < OFFER_AGAIN_S:
                self._roster.polls.schedule(held, held.rejected_at + OFFER_AGAIN_S)
            else:
                self._roster.polls.ask(held)


def _trust() -> tuple[tuple[str, str], SigningKey]:
    pem = bundle_pem()
    return (pem, authority_digest(pem)), signing_key()


def _look(names: list[str], seen: dict[int, int]) -> tuple[list[Cell], set[int], set[int]]:
    found = writer.cells(names)
    dirty: set[int] = set()
    everywhere: set[int] = set()
    for cell in found:
        if cell.id in seen:
            concerned = concerned_machines(cell.id, seen[cell.id], newest=cell.revision)
            if concerned is None:
                everywhere.add(cell.id)
            else:
                dirty |= concerned
    return found, dirty, everywhere


def _settings(cell: Cell) -> cell_settings.CellSettings:
    try:
        return cell_settings.load(cell.settings)
    except Rejected as error:
        log.error("cannot read the settings of a cell; the defaults are used", cell=cell.name, error=error.detail)
        return cell_settings.CellSettings()
