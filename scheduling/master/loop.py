"""The master of a cell (§3.1). It keeps the state of the cell in memory, and schedules in passes.

    journal.tail ─► CellState ─► schedule_pass ─► commit ─► journal
                        ▲                           │
                        └────────── news ───────────┘

A call of `Master.run` loads the state, takes or renews the lease, and works for some time. The state stays in this
process for the next call. While another process holds the lease, `Master.stand_by` keeps the state up to date. Several
processes may run the master at once, because the commit checks each assignment again. A cell may have several
schedulers (`scheduling.master.schedulers`), each for its own jobs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections, connection, transaction
from django.utils import timezone

from quota.admission import admission
from quota.vocabulary.permissions import system
from scheduling.allocs.kept_allocs import release_late
from scheduling.brakes import stored_brakes
from scheduling.core.booking.bookings import machines_booked
from scheduling.core.cell.state import CellState
from scheduling.core.explaining.explain import ExplainBudget, Explainer
from scheduling.core.explaining.forecast import Ends
from scheduling.core.pass_ import schedule_pass
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.placing.waking_events import may_let_place
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Booking, Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.warm import compile_kernels, release_compiler
from scheduling.cures.answering import Answerer
from scheduling.cures.asking import questions_key
from scheduling.jobs import updates
from scheduling.jobs.deadlines import jobs_end_overdue
from scheduling.jobs.dependencies.turn import dependencies_settle
from scheduling.jobs.update_gates import update_gates_check
from scheduling.journal import journal, wakeups
from scheduling.machines.evacuation import tasks_leave
from scheduling.machines.pool_clearing import PoolClearer
from scheduling.machines.silent_machines import Silence
from scheduling.maintenance.window_keeper import WindowKeeper
from scheduling.master import lease, pass_log, schedulers, standbys
from scheduling.master.commit import CommitOutcome, commit
from scheduling.master.reclamation import Reclaimer
from scheduling.master.schedulers import DEFAULT, Scheduler
from scheduling.master.snapshot import load_state
from scheduling.models import Cell
from scheduling.policy import cell_settings
from scheduling.repacking.repacker import Repacker
from scheduling.services.switch_turn import switches_turn
from scheduling.tasks import pending_verdicts
from scheduling.tasks.disruption_rates import left_in_cell
from scheduling.usage.cell_view import ViewPublisher

log = structlog.get_logger(__name__)

# What stays pending is looked at again after this long even without news: back-offs and crashed pairs run out.
RETRY_EVERY_S = 5.0
# From the time at which a booked gang should start, a pass looks so often whether it can.
BOOKED_EVERY_S = 1.0
HOUSEKEEPING_EVERY_S = 1.0
# While classes that were left over have not been examined, passes come at least this often, and examine this many.
EXPLAIN_EVERY_S = 0.2
IDLE_CLASSES = 32
# Tasks placed by one pass. Tasks that arrive meanwhile, however urgent, wait for that pass and its commit.
PLACED_AT_ONCE = 2_500
# For some time after a job has arrived that is more urgent than the tasks of a long queue, a pass places fewer tasks
# and an update adds fewer. So the next urgent job waits for less.
_FEWER_AT_ONCE, _FEWER_FOR_S = 1_000, 1.0
_AWAY_S = 1.0
# A standby looks whether the lease is free, and whether the holder's process on this host still exists.
_LEASE_EVERY_S, _HOLDER_EVERY_S = 0.5, 0.1
_NEVER = threading.Event()
_READ_ONLY = "25006"  # the SQLSTATE of a write to a standby server
# A warm state that was not advanced for this long is loaded again: reading rows is then faster than the journal.
_KEEP_WARM_S = 600.0
# After this many passes in a row of which the commit took nothing, the next waits for news.
_FRUITLESS = 3
# After the first of them, the next is made under the cell's lock, and places this many at most.
_UNDER_LOCK = 1_000


@dataclass(slots=True)
class Master:
    """The master: one object per cell, scheduler and process. `state`: the cell's state in memory; None before the
    first call of `run` and after an unexpected error.

    A master loads the state before it takes the lease, and keeps the state when it loses the lease. `load`: a function
    that reads the state of a cell from database rows. `holder`: the name with which the master takes the lease.
    `lease_ttl_s`: the seconds until the lease expires. `alive`: called regularly, to show that the master works.
    """

    cell_id: int
    scheduler: Scheduler = DEFAULT
    load: Callable[[int], CellState] = load_state
    holder: str = field(default_factory=lease.own_holder)
    lease_ttl_s: float = lease.TTL_S
    alive: Callable[[], None] = lambda: None
    state: CellState | None = None
    wanted: bool = True  # by the cell's settings, as last read; false if the cell was deleted
    _name: str = ""
    _policy: Policy | None = None
    _settings: cell_settings.CellSettings = field(default_factory=cell_settings.CellSettings)
    _rng: np.random.Generator = field(default_factory=np.random.default_rng)
    _renewed: float = 0.0
    _noted: float = 0.0
    _advanced: float = 0.0
    _passed: float = 0.0
    _fruitless: int = 0  # passes in a row of which the commit took nothing
    _placeable: bool = True  # something happened since the last pass that may let a pending task be placed
    _starts_at: float = math.inf  # when further pending tasks may be placed (`start_after`), in seconds since the epoch
    _kept: float = 0.0
    _updating: bool = False  # updates changed something when they were last advanced: there may be more to do
    _left_over: int | None = None  # priority of the tasks that the last pass left over because it had placed enough
    _hurried: float = 0.0  # until this time (monotonic), passes and updates are short
    _silence: Silence = field(default_factory=Silence)
    _explainer: Explainer = field(default_factory=Explainer)
    _memory: PassCache = field(default_factory=PassCache)
    _book: pending_verdicts.VerdictCache = field(default_factory=pending_verdicts.VerdictCache)
    _own: dict[int, list[journal.JournalRecord]] = field(default_factory=dict)  # committed here, not yet applied
    _reclaimer: Reclaimer | None = None
    _view: ViewPublisher | None = None
    _repacker: Repacker | None = None
    _windows: WindowKeeper | None = None
    _pools: PoolClearer | None = None
    _bookings: tuple[Booking, ...] | None = None  # of the last pass over this state; None: there was none
    _answerer: Answerer | None = None

    def prepare(self) -> None:
        """Load the state before the first call of `run`, so that a restarted master can place tasks sooner."""
        self._warm()
        self._advanced = time.monotonic()

    def run(self, seconds: float, stopping: threading.Event = _NEVER) -> bool:
        """Work for `seconds` seconds, or until `stopping` is set. Return False as soon as another process holds the
        lease, or the cell's settings no longer list this scheduler. Otherwise return True.
        """
        self._kept, self.wanted = 0.0, True
        waiter = wakeups.Waiter([self.cell_id], also=[questions_key(self.cell_id)])
        until = time.monotonic() + seconds
        renewed = lease.renewed(
            self.cell_id,
            scheduler=self.scheduler.name,
            holder=self.holder,
            ttl_s=self.lease_ttl_s,
            needed=self._is_busy,
        )
        with renewed, contextlib.closing(waiter):
            while True:
                self.alive()
                try:
                    if not self._hold_lease():
                        return False
                    again = self.tick()
                    if not self.wanted:
                        self._retire()
                        return False
                except DatabaseError as error:
                    if not _is_away(error):
                        raise
                    log.warning("the database is unreachable", cell_id=self.cell_id, error=str(error).strip())
                    again = False
                    self._placeable = True  # a pass may have been lost
                    self._renewed = 0.0
                    connection.close()
                    time.sleep(_AWAY_S)
                if time.monotonic() >= until or stopping.is_set():
                    return True
                if not again:
                    left_s = min(until - time.monotonic(), self._starts_at - time.time())
                    waiter.wait(min(wakeups.POLL_S, max(0.0, left_s)))
                    if stopping.is_set():
                        return True
                close_old_connections()

    def stand_by(self, seconds: float, stopping: threading.Event = _NEVER) -> None:
        """Keep the state and the history of the tasks' usage up to date, without the lease. Return after `seconds`
        seconds, or as soon as the lease is free, the cell's settings no longer list this scheduler, or `stopping` is
        set.
        """
        until = time.monotonic() + seconds
        self._renewed = 0.0
        self._view, self._memory, self._bookings = None, PassCache(), None  # free the memory that only passes need
        while not stopping.is_set():
            self.alive()
            try:
                self._advance()
                self._read_settings()
                if not self.wanted:
                    self._retire()
                    return
                self._observe()
                self._note_standby()
                if self._wait_for_lease(wakeups.POLL_S, stopping):
                    return
            except DatabaseError as error:
                if not _is_away(error):
                    raise
                log.warning("the database is unreachable", cell_id=self.cell_id, error=str(error).strip())
                connection.close()
                stopping.wait(_AWAY_S)
            if time.monotonic() >= until:
                return
            close_old_connections()

    def _wait_for_lease(self, seconds: float, stopping: threading.Event) -> bool:
        """Wait until the lease is free, but at most `seconds` seconds. Return whether it is free."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until and not stopping.is_set():
            holder, _ = lease.in_force(self.cell_id).get(self.scheduler.name, ("", 0))
            if not holder:
                return True
            ask_again = min(until, now + _LEASE_EVERY_S)
            while time.monotonic() < ask_again and not stopping.is_set():
                if lease.is_gone(holder):
                    return True
                stopping.wait(_HOLDER_EVERY_S)
        return False

    def _note_standby(self) -> None:
        """Record from time to time that this master stands by, so that an SRE can see it."""
        now = time.monotonic()
        if now - self._noted >= standbys.NOTE_EVERY_S:
            revision = self._warm().revision
            standbys.note(self.cell_id, scheduler=self.scheduler.name, holder=self.holder, revision=revision)
            self._noted = now

    def _observe(self) -> None:
        """Read the usage of the tasks, so that this master need not observe them for 300 s after it has taken over."""
        if self.scheduler.keeps_house and wakeups.answers():
            self._reclaimer = self._reclaimer or Reclaimer(self.cell_id, self._name)
            self._reclaimer.observe(self._warm(), self._settings, now=time.monotonic())

    def _is_busy(self) -> bool:
        """Return whether the running call of `tick` takes so long that the lease could expire before the call ends."""
        return self.lease_ttl_s / 3 < time.monotonic() - self._renewed < lease.STUCK_AFTER_S

    def tick(self) -> bool:
        """Read the journal, do the maintenance that is due, and run a pass if a pending task may be placed. Return
        whether there is more work to do at once.
        """
        news = self._advance()
        now = time.monotonic()
        keep_house = now - self._kept >= HOUSEKEEPING_EVERY_S
        if keep_house:
            self._kept = now
            self._read_settings()
            if not self.wanted:
                return False
        # Tasks that can be placed do not wait for the maintenance.
        placed_first = keep_house and self._is_waited_for
        if placed_first:
            self._place(now)
        if keep_house and self.scheduler.keeps_house:
            news |= self._run_maintenance()
        if (news or self._updating) and self.scheduler.keeps_house:
            most = _FEWER_AT_ONCE if self._in_hurry else journal.CHUNK
            self._updating = updates.updates_advance(self.cell_id, most=most)
            if self._updating:
                self._advance()
        if not placed_first:
            self._place(now)
        answered = self._answer()
        state = self._warm()
        return answered or self._updating or (self._placeable and state.pending > 0 and self._fruitless < _FRUITLESS)

    @property
    def _in_hurry(self) -> bool:
        """Return whether a job has arrived recently that is more urgent than the pending tasks of a long queue. Passes
        are then short.
        """
        return time.monotonic() < self._hurried

    @property
    def _is_waited_for(self) -> bool:
        """Return whether a pending task may be placed now."""
        return self._placeable and self._warm().pending > 0

    def _place(self, now: float) -> None:
        """Run a pass if a pending task may be placed, or if the reasons why tasks are pending have to be found."""
        state = self._warm()
        if time.time() >= self._starts_at:
            self._starts_at, self._placeable = math.inf, True
        waited = now - self._passed
        due = self._placeable or waited >= RETRY_EVERY_S
        if state.pending and (due or (self._explainer.behind and waited >= EXPLAIN_EVERY_S)):
            # A pass that can place nothing has time to explain.
            self._explainer.budget = ExplainBudget() if self._placeable else ExplainBudget(classes=IDLE_CLASSES)
            self._passed, self._placeable = now, False
            at = time.time()
            self._starts_at = min(self._pass(state), state.tasks.next_start(at))

    def _retire(self) -> None:
        """Release the lease and discard the state in memory. Called when the cell's settings no longer list this
        scheduler, or the cell was deleted.
        """
        lease.release(self.cell_id, scheduler=self.scheduler.name, holder=self.holder)
        standbys.forget(self.cell_id, scheduler=self.scheduler.name, holder=self.holder)
        self._renewed = self._noted = 0.0
        self.state = None
        log.info("the cell no longer uses this scheduler", cell_id=self.cell_id, scheduler=self.scheduler.name)

    def _hold_lease(self) -> bool:
        """Renew the lease, or take it if it is free. Return False if another master holds it."""
        now = time.monotonic()
        if now - self._renewed < self.lease_ttl_s / 3:
            return True
        name, holder, ttl_s = self.scheduler.name, self.holder, self.lease_ttl_s
        if lease.renew(self.cell_id, scheduler=name, holder=holder, ttl_s=ttl_s) is None:
            other, _ = lease.in_force(self.cell_id).get(name, ("", 0))
            if other and not lease.is_gone(other):
                return False
            self._advance()  # a master that loads while it holds the lease would lose it to the next one
            self._read_settings()
            if not self.wanted:
                return False
            epoch = lease.take(self.cell_id, scheduler=name, holder=holder, ttl_s=ttl_s, instead_of=other)
            if epoch is None:
                return False
            # Another master has written to these rows and to Redis meanwhile.
            self._view, self._book = None, pending_verdicts.VerdictCache()
            self._placeable, self._fruitless = True, 0
            self._updating = True  # the other master may have ended between two steps of an update
            standbys.forget(self.cell_id, scheduler=name, holder=holder)
            log.info("the master took the lease of the cell", cell_id=self.cell_id, scheduler=name, epoch=epoch)
        # PostgreSQL computed the end of the lease before it committed, and a commit may wait for a standby for long.
        self._renewed = now
        return True

    def _warm(self) -> CellState:
        if self.state is None:
            compile_kernels()  # from the cache: the first pass must not wait for it
            release_compiler()
            started = time.perf_counter()
            self.state = self.load(self.cell_id)
            seen = self._explainer.seen
            if seen is None or seen.limit.shape[1] != self.state.axis:
                seen = Ends(self.state.axis)
            self._explainer = Explainer(ExplainBudget(), seen=seen)
            self._memory, self._bookings = PassCache(), None
            self._own = {}
            log.info(
                "the master loaded the state of the cell",
                cell_id=self.cell_id,
                revision=self.state.revision,
                seconds=round(time.perf_counter() - started, 3),
            )
        return self.state

    def _advance(self) -> bool:
        """Apply the new events of the journal to the state in memory. Return whether there were new events."""
        now = time.monotonic()
        kept_s, self._advanced = now - self._advanced, now
        if self.state is not None and kept_s <= _KEEP_WARM_S:
            before = self.state.revision
            if self._follow(self.state):
                return self.state.revision != before
        self.state = None
        self._warm()
        self._advanced = time.monotonic()
        self._placeable = True
        return True

    def _follow(self, state: CellState) -> bool:
        """Apply new journal events to the state. Return False if the state has to be loaded from database rows
        instead. An unexpected error discards the state.
        """
        try:
            while records := journal.tail(self.cell_id, after=state.revision, known=self._own):
                try:
                    state.apply_all(self._news(state, records))
                except _Unfollowable as gap:
                    log.warning("reading rows", cell_id=self.cell_id, reason=str(gap))
                    return False
            self._own = {}
        except DatabaseError:
            raise
        except Exception:
            # A state that could not follow must not be used again; the next tick loads it from the rows.
            self.state = None
            raise
        return True

    def _news(
        self, state: CellState, records: list[journal.JournalRecord]
    ) -> Iterator[tuple[events.Event, int, float]]:
        """Yield (event, revision, time) of each record. Raises `_Unfollowable` if the next event cannot be applied to
        `state`.
        """
        lived_in = set(np.unique(state.tasks.job_alloc_set).tolist())
        for record in records:
            if record.revision > state.revision + 1:
                # A new history, or a part is archived: what is warm may never have been.
                raise _Unfollowable(
                    f"the journal in PostgreSQL has no event of revision {state.revision + 1}, so the rows are read"
                    " again"
                )
            if _widens(record.event, state):
                raise _Unfollowable("a resource was added to the cell, so the rows are read again")
            time = record.time.timestamp()
            if self._explainer.seen is not None:
                self._explainer.seen.observe(state, record.event, time)
            if isinstance(record.event, events.JobSubmitted):
                self._hurry_for(record.event)
            self._placeable |= may_let_place(record.event, lived_in)
            yield record.event, record.revision, time

    def _hurry_for(self, job: events.JobSubmitted) -> None:
        """Make the next passes and updates short if `job` is more urgent than the tasks that the last pass did not
        consider, because it had already placed enough.
        """
        if self._left_over is not None and job.priority > self._left_over:
            self._hurried = time.monotonic() + _FEWER_FOR_S

    def _read_settings(self) -> None:
        cell = Cell.objects.only("name", "settings", "extra_resources", "deleted_at").get(pk=self.cell_id)
        self._name, self._settings = cell.name, cell_settings.load(cell.settings)
        self.wanted = cell.deleted_at is None and self.scheduler in schedulers.wanted(self._settings)
        self._policy = Policy(
            bands=tuple(admission.bands()),
            scorer=self._settings.scorer,
            batch_in_prod_by_reservation=self._settings.batch_in_prod_by_reservation,
            crashed_pair_s=self._settings.crashed_pair_s,
            maintenance_horizon_s=self._settings.maintenance_horizon_s,
            max_assignments=PLACED_AT_ONCE,
            workload=self.scheduler.workload,
        )

    def _run_maintenance(self) -> bool:
        """Do the regular work of the cell besides placement and updates, such as drains. Return whether there were new
        journal events. Only one scheduler of a cell does this work. Between its steps, the scheduler places tasks that
        have just been submitted.
        """
        news, backlog = self._advance(), self._is_waited_for
        for part in (self._find_silent_machines, self._evacuate, self._publish_view, self._reclaim, self._repack):
            part()
            news |= self._advance()
            if self._is_waited_for and not backlog:
                self._place(time.monotonic())
                news |= self._advance()
        return news

    def _find_silent_machines(self) -> None:
        self._silence.sweep(self.cell_id, self._settings)

    def _evacuate(self) -> None:
        tasks_leave(self.cell_id, self._settings, seconds=HOUSEKEEPING_EVERY_S, late=self._silence.late)
        self._pools = self._pools or PoolClearer(self.cell_id)
        self._pools.turn(self._settings, seconds=HOUSEKEEPING_EVERY_S)
        self._windows = self._windows or WindowKeeper(self.cell_id)
        self._windows.turn(self._settings)
        stored_brakes.stops_settle(self.cell_id)
        release_late(self.cell_id)
        jobs_end_overdue(self.cell_id)
        dependencies_settle(self.cell_id)
        self._updating |= update_gates_check(self.cell_id)
        switches_turn(self.cell_id)

    def _publish_view(self) -> None:
        self._view = self._view or ViewPublisher(self.cell_id)
        self._view.publish(self._warm())

    def _reclaim(self) -> None:
        assert self._policy is not None
        self._reclaimer = self._reclaimer or Reclaimer(self.cell_id, self._name)
        if wakeups.answers():
            self._reclaimer.turn(self._warm(), self._policy.bands, self._settings, now=self._kept)

    def _repack(self) -> None:
        assert self._policy is not None
        state = self._warm()
        if self._bookings is None and state.pending:
            return  # the next pass finds out what is booked
        self._repacker = self._repacker or Repacker(self.cell_id)
        self._repacker.turn(
            state,
            self._policy,
            patience_s=self._settings.drain_patience_s,
            booked=machines_booked(state, self._bookings or ()),
        )

    def _answer(self) -> bool:
        """Answer a question about a pending job, and return whether there was one. Passes come between the answers."""
        if self._policy is None or not self.scheduler.keeps_house or self._in_hurry:
            return False
        self._answerer = self._answerer or Answerer(self.cell_id)
        return self._answerer.turn(self._warm(), self._policy, bookings=self._bookings or ())

    def _pass(self, state: CellState) -> float:
        """Run a pass and commit its plan. Return the time at which a booked gang can start, in seconds since the epoch,
        or inf.
        """
        assert self._policy is not None
        policy, done = self._policy, None
        if self._in_hurry:
            policy = dataclasses.replace(policy, max_assignments=min(PLACED_AT_ONCE, _FEWER_AT_ONCE))
        if self._fruitless:
            # Others commit without a pause, and touch every machine meanwhile. Now they wait for us, not long.
            policy = dataclasses.replace(policy, max_assignments=_UNDER_LOCK)
            with transaction.atomic():
                Cell.objects.select_for_update().only("id").get(pk=self.cell_id)
                if self._follow(state):
                    done = self._decide(state, policy)
        else:
            done = self._decide(state, policy)
        if done is None:
            return math.inf  # nothing pending is this scheduler's, or the state has to be read again
        plan, outcome, one = done
        self._own = outcome.records
        last = state.tasks.jobs.get(plan.assignments[-1].job_id) if plan.assignments else None
        self._left_over = last.priority if last is not None and (plan.stats.cut or self._updating) else None
        pending_verdicts.store(self.cell_id, plan, book=self._book, now=time.monotonic())
        pass_log.record(self.cell_id, self._name, self.scheduler.name, one)
        log.info("pass", cell_id=self.cell_id, scheduler=self.scheduler.name, **msgspec.structs.asdict(one))
        self._fruitless = self._fruitless + 1 if outcome.refused and not outcome.applied else 0
        if outcome.refused or plan.stats.cut:
            self._placeable = True  # look again as soon as the news is in
        at = min((booking.at for booking in plan.bookings), default=math.inf)
        return max(at, time.time() + BOOKED_EVERY_S)

    def _decide(self, state: CellState, policy: Policy) -> tuple[Plan, CommitOutcome, pass_log.Pass] | None:
        """Make a plan and commit it. Return None if this scheduler has no pending task."""
        at, started = time.time(), time.perf_counter()
        # The state does not contain evictions after its revision, but the commit sees them in the journal.
        state.limit_disruptions(left_in_cell(self.cell_id))
        plan = schedule_pass(
            state, policy, now=timezone.now().timestamp(), rng=self._rng, memory=self._memory, explainer=self._explainer
        )
        self._bookings = plan.bookings
        if plan.stats.pending == 0:
            return None
        decided = time.perf_counter()
        outcome = commit(self.cell_id, plan, principal=system("scheduler"), chunk=self.scheduler.chunk)
        took = time.perf_counter() - decided
        return plan, outcome, pass_log.of(plan, outcome, at=at, pass_s=decided - started, commit_s=took)


def _is_away(error: DatabaseError) -> bool:
    """Return whether the database cannot be reached or does not accept writes now, as during a failover."""
    return (
        isinstance(error, OperationalError | InterfaceError) or getattr(error.__cause__, "sqlstate", "") == _READ_ONLY
    )


class _Unfollowable(Exception):
    """Raised if journal events cannot be applied to the state in memory. The state must then be loaded from database
    rows.
    """


def _widens(event: events.Event, state: CellState) -> bool:
    """Return whether the event adds a resource to the cell. The state must then be created again, because its arrays
    have one column per resource.
    """
    return (
        isinstance(event, events.CellSet)
        and event.extra_resources is not None
        and event.extra_resources != state.extra_resources
    )
