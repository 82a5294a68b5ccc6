"""A brake limits how many tasks the cell moves or stops automatically (`scheduling.policy.brake_rules`). The cell sets
and lifts a brake automatically. While a brake holds tasks back, an SRE may release it, or confirm it (keep).

    brake `lost`:  master, each second ─► lost_allowance ─► number of tasks that may leave lost machines ─► lost_spend
    brake `stops`: preemption, shortage of machines, superseded tasks ─► stops_pass ─► stop the tasks | wait for an SRE
    SRE ─► brake_release | brake_keep

The state of a brake is only in its database row. So decisions stay the same after a change of the master, or if Redis
loses its data.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import structlog
from django.db.models import Sum
from django.db.models.functions import Now

from quota.vocabulary.errors import Conflict, NotFound, invalid
from quota.vocabulary.permissions import Action, Principal, require, system
from quota.vocabulary.resources import format_number
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import JobState
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import query
from scheduling.models import Brake, Cell, Job
from scheduling.policy import brake_rules, cell_settings
from scheduling.policy.brake_rules import BrakeKind, BrakeState, Bucket, Extent, StopsBrake
from scheduling.policy.cell_settings import CellSettings

log = structlog.get_logger(__name__)

LOST, STOPS = BrakeKind.LOST, BrakeKind.STOPS
# Default duration of an SRE's release of `stops`.
RELEASED_S = 600.0
_MOST_RELEASED_S = 86_400.0
_MASTER = system("master")


@dataclass(frozen=True, slots=True)
class _Losses:
    """The figures that decide the state of the brake `lost`, which limits how fast tasks of lost machines are placed
    elsewhere. `waiting`: number of tasks whose machines are down and that are not placed elsewhere yet.
    """

    extent: Extent
    waiting: int
    now: dt.datetime


# -- lost machines


def lost_allowance(cell_id: int, settings: CellSettings, *, late: int = 0) -> int:
    """Return how many tasks may now be moved from machines that are down. The brake `lost` limits this number. Change
    the state of the brake if needed.

    `late`: the number of live machines whose poll is overdue. These machines count as lost too. In a network partition,
    polls fail on one machine after the other.
    """
    look = _look(cell_id, late)
    brake = Brake.objects.filter(cell_id=cell_id, kind=LOST.value).first()
    before = BrakeState(brake.state) if brake is not None else BrakeState.OPEN
    if before is BrakeState.OPEN and not look.waiting:
        return journal.CHUNK if settings.evictions_per_s else 0
    held_s = (look.now - brake.since).total_seconds() if brake is not None else 0.0
    state = brake_rules.lost_state(look.extent, settings, before, calm_s=_calm_s(brake, look, settings), held_s=held_s)
    if state is not before:
        brake = _lost_turn(cell_id, settings, look, state)
    elif brake is not None and state is not BrakeState.OPEN and brake.wanted != look.waiting:
        Brake.objects.filter(pk=brake.pk).update(wanted=look.waiting)
    level = 0.0
    if brake is not None and state is not BrakeState.OPEN:
        level = _lost_bucket(brake, look.now, brake_rules.lost_rate(look.extent, settings)).level
    return brake_rules.lost_allowance(state, level, settings, most=journal.CHUNK)


def _calm_s(brake: Brake | None, look: _Losses, settings: CellSettings) -> float:
    """Return for how many seconds the number of lost machines has been small. Return 0 if this number is large now, or
    if the brake `lost` is not set.
    """
    if brake is None or brake.state == BrakeState.OPEN.value:
        return 0.0
    calm_since = (brake.calm_since or look.now) if brake_rules.few(look.extent, settings) else None
    if calm_since != brake.calm_since:
        brake.calm_since = calm_since
        Brake.objects.filter(pk=brake.pk).update(calm_since=calm_since)
    return (look.now - calm_since).total_seconds() if calm_since is not None else 0.0


def lost_spend(cell_id: int, settings: CellSettings, number: int) -> None:
    """Subtract `number` tasks from the number of tasks that may be evicted from lost machines. Call this after they
    were evicted. The caller holds the cell's lock.
    """
    brake = Brake.objects.filter(cell_id=cell_id, kind=LOST.value).exclude(state=BrakeState.OPEN.value).first()
    if brake is None or not number:
        return
    look = _look(cell_id, 0)
    bucket = _lost_bucket(brake, look.now, brake_rules.lost_rate(look.extent, settings))
    Brake.objects.filter(pk=brake.pk).update(level=bucket.level - number, at=look.now)


def _lost_bucket(brake: Brake, now: dt.datetime, rate: float) -> Bucket:
    return brake_rules.lost_bucket(Bucket(brake.level or 0.0, brake.at.timestamp()), now.timestamp(), rate)


def _lost_turn(cell_id: int, settings: CellSettings, look: _Losses, state: BrakeState) -> Brake:
    lost = f"{look.extent.vanished} of {look.extent.machines} machines were lost together"
    detail = {
        BrakeState.OPEN: "few or no machines are lost",
        BrakeState.BOUNDED: f"{lost}: their {look.waiting} tasks are placed elsewhere at a limited rate, at most"
        f" {format_number(60 * brake_rules.lost_rate(look.extent, settings), 3)} per minute",
        BrakeState.HELD: f"{lost}: their {look.waiting} tasks are not placed elsewhere until an SRE releases the brake."
        " If the network has failed, the tasks still run on these machines",
    }[state]
    with journal.write(cell_id, _MASTER) as entry:
        brake = _row(entry, LOST)
        if BrakeState(brake.state) is BrakeState.OPEN:
            brake.level, brake.at, brake.calm_since = 0.0, entry.time, None
        _turn(entry, brake, state, wanted=look.waiting, detail=detail)
    return brake


def _look(cell_id: int, late: int) -> _Losses:
    machines, vanished, waiting, now = query(
        "SELECT (SELECT count(*) FROM scheduling_machine WHERE cell_id = %(cell)s AND state <> 'removed'),"
        " count(*) FILTER (WHERE t.tasks > 0"
        " OR m.state_since > clock_timestamp() - make_interval(secs => %(together)s)),"
        " coalesce(sum(t.tasks), 0)::int, clock_timestamp() FROM scheduling_machine AS m"
        " CROSS JOIN LATERAL (SELECT count(*) AS tasks FROM scheduling_task WHERE machine_id = m.id) AS t"
        " WHERE m.cell_id = %(cell)s AND m.state = 'down'",
        {"cell": cell_id, "together": brake_rules.TOGETHER_S},
    )[0]
    lost = vanished + late
    return _Losses(Extent(machines, lost, tasks_running(cell_id) if lost else 0), waiting, now)


def tasks_running(cell_id: int) -> int:
    live = Job.objects.filter(cell_id=cell_id).exclude(state=JobState.DEAD.value).order_by()
    return live.aggregate(number=Sum("tasks_running"))["number"] or 0


# -- stops


def stops_pass(entry: JournalEntry, number: int, *, what: str) -> bool:
    """Return whether the cell may stop `number` more running tasks automatically now. If so, count them.

    If too many tasks would be stopped, this function sets the brake `stops`, which forbids further automatic stops. The
    brake stays set until an SRE releases it, or until no stop has been requested for ten minutes. If the result is
    False, the caller must call `stops_wanted` after its transaction has ended. `what`: the cause of the stops, such as
    "preemption".
    """
    if number <= 0:
        return True
    brake = _row(entry, STOPS)
    before = _stops_of(brake)
    decision = brake_rules.stops_decision(
        before,
        number,
        now=entry.time.timestamp(),
        running=lambda: tasks_running(entry.cell_id),
        settings=lambda: cell_settings.load(Cell.objects.values_list("settings", flat=True).get(pk=entry.cell_id)),
    )
    after = decision.brake
    if after is before:
        return decision.allows
    brake.level, brake.at = after.level, entry.time
    if decision.allows:
        if before.state is not BrakeState.OPEN:
            _turn(entry, brake, BrakeState.OPEN, wanted=0, detail="the situation that set the brake has ended")
        else:
            brake.save()
        return True
    brake.pulled_at = entry.time
    detail = (
        f"{what} would stop {number} tasks at once, but only {decision.left:.0f} may stop now: the cell automatically"
        f" stops at most {decision.allowed:.0f} of its {decision.running} running tasks in"
        f" {brake_rules.WINDOW_S / 60:g} minutes. It stops no more tasks until an SRE releases the brake"
    )
    _turn(entry, brake, BrakeState.HELD, wanted=number, detail=detail)
    return False


def stops_wanted(cell_id: int, number: int) -> None:
    """Store in the database row of the brake `stops` that `number` tasks were not stopped because of this brake. Writes
    no event.
    """
    rows = Brake.objects.filter(cell_id=cell_id, kind=STOPS.value)
    rows.filter(state__in=[BrakeState.HELD.value, BrakeState.KEPT.value]).update(wanted=number, pulled_at=Now())


def stops_settle(cell_id: int) -> None:
    """Lift the brake `stops`, which forbids automatic stops of tasks, if it has held back no stop for some time, or if
    an SRE released it for a time that has now ended.
    """
    brake = Brake.objects.filter(cell_id=cell_id, kind=STOPS.value).exclude(state=BrakeState.OPEN.value).first()
    if brake is None:
        return
    with journal.write(cell_id, _MASTER) as entry:
        brake = _row(entry, STOPS)
        state = BrakeState(brake.state)
        over = state is BrakeState.RELEASED and (brake.until is None or brake.until <= entry.time)
        forgotten = state in (BrakeState.HELD, BrakeState.KEPT) and _stops_of(brake).forgotten(entry.time.timestamp())
        if over or forgotten:
            brake.level, brake.at = None, entry.time
            detail = "the release has ended" if over else "nothing waits for the brake any longer"
            _turn(entry, brake, BrakeState.OPEN, wanted=0, detail=detail)


def _stops_of(brake: Brake) -> StopsBrake:
    return StopsBrake(
        BrakeState(brake.state),
        brake.level,
        brake.at.timestamp(),
        brake.pulled_at.timestamp() if brake.pulled_at is not None else None,
        brake.until.timestamp() if brake.until is not None else None,
    )


# -- decisions of an SRE


def brake_release(*, principal: Principal, cell: Cell, kind: str, reason: str, seconds: float = RELEASED_S) -> Brake:
    """Release a held brake, so that the cell continues the action that the brake held back. If `kind` is `lost`, the
    cell moves tasks from lost machines again, at a limited rate. If `kind` is `stops`, the cell may stop any number of
    tasks during the next `seconds` seconds. Raises `Conflict` if the brake is not held. Locks the cell's row.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    if not 1 <= seconds <= _MOST_RELEASED_S:
        raise invalid("seconds", f"{seconds:g} s is out of range; give 1 to {_MOST_RELEASED_S:g} seconds")
    return _decide(principal, cell, kind, BrakeState.RELEASED, reason, seconds)


def brake_keep(*, principal: Principal, cell: Cell, kind: str, reason: str) -> Brake:
    """Decide that a held or released brake holds tasks back until its cause ends. After this decision, the brake raises
    no more alarms. Raises `Conflict` if the brake is neither held nor released.
    """
    return _decide(principal, cell, kind, BrakeState.KEPT, reason, None)


def _decide(
    principal: Principal, cell: Cell, kind: str, state: BrakeState, reason: str, seconds: float | None
) -> Brake:
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    if kind not in {known.value for known in BrakeKind}:
        raise NotFound("brake", kind, known=[known.value for known in BrakeKind])
    if not reason.strip():
        raise invalid("reason", "the reason is missing; give a reason, which is stored with the decision")
    with journal.write(cell.id, principal) as entry:
        brake = _row(entry, BrakeKind(kind))
        if BrakeState(brake.state) not in (BrakeState.HELD, BrakeState.KEPT, BrakeState.RELEASED):
            detail = f"the brake {kind} of cell {cell.name} is {brake.state}; only a held brake can be released or kept"
            raise Conflict("nothing-held", detail, fields={"brake": detail})
        brake.decided_by = principal.name
        if state is BrakeState.RELEASED and kind == STOPS.value and seconds is not None:
            brake.until = entry.time + dt.timedelta(seconds=seconds)
        if kind == LOST.value:
            brake.level, brake.at = 0.0, entry.time
        _turn(entry, brake, state, wanted=brake.wanted, detail=reason.strip()[:500])
    return brake


def _row(entry: JournalEntry, kind: BrakeKind) -> Brake:
    """Return the row of a brake, or a new unsaved row if there is none. The caller holds the cell's lock."""
    found = Brake.objects.filter(cell_id=entry.cell_id, kind=kind.value).first()
    return found or Brake(cell_id=entry.cell_id, kind=kind.value, since=entry.time, at=entry.time)


def _turn(entry: JournalEntry, brake: Brake, state: BrakeState, *, wanted: int, detail: str) -> None:
    if brake.state != state.value:
        brake.since = entry.time
    if state is not BrakeState.RELEASED:
        brake.until = None
    if state in (BrakeState.OPEN, BrakeState.BOUNDED, BrakeState.HELD):
        brake.decided_by = ""
    brake.state, brake.wanted, brake.detail = state.value, wanted, detail
    brake.save()
    entry.append(events.BrakeSet(brake=brake.kind, state=state.value, wanted=wanted, detail=detail))
    log_line = log.error if state is BrakeState.HELD else log.warning
    log_line("brake", cell_id=entry.cell_id, brake=brake.kind, state=state.value, wanted=wanted, detail=detail)
