"""Sets the weights of the tracks of a service, and begins switches to another track (§8.1).

    weights ──► ServiceWeighting, event service.weighed ──► names of the service
    switch  ──► Switch in this row ──► `switch_turn`: the master moves the weights step by step

The service may be read before the lock of the cell is taken. The row itself is read and written under this lock.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import structlog
from django.db.models import QuerySet
from msgspec.structs import replace

from quota.models import Tenant
from quota.vocabulary.errors import Conflict, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.brakes import confirmation
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import TRACK, track_of
from scheduling.jobs.health import may_be_up
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.models import Cell, Job, ServiceWeighting
from scheduling.services.selectors import Service, is_owned, service_to_change
from scheduling.services.switch_rules import IN_PROGRESS, Switch, SwitchState, share_of

log = structlog.get_logger(__name__)
GREATEST = 1_000
MOST_TRACKS = 50
MOST_WEIGHTED = 1_000  # services of a tenant in a cell
MOST_SWITCHES = 50  # in progress, of a tenant in a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A track of a service. `weight`: None if the service has no weights. `share`: of the clients, in per cent.
    `wanted`, `up`: how many of its tasks should be up, and are up.
    """

    name: str
    jobs: tuple[str, ...]
    wanted: int
    up: int
    weight: int | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """How the clients of a service are divided among its tracks. `switch`: its last switch, or None. `notes`: what to
    know about the weights, as sentences. `by`: the user who began the switch. `stops`: the live jobs that the switch
    stops at its end.
    """

    weights: Mapping[str, int]
    tracks: tuple[Track, ...]
    switch: Switch | None = None
    by: str = ""
    stops: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def in_progress(self) -> bool:
        return self.switch is not None and self.switch.state in IN_PROGRESS

    @property
    def next_at(self) -> dt.datetime | None:
        """Return when the next step of the switch may happen, or None if it has ended or there is none."""
        return dt.datetime.fromtimestamp(self.switch.due, dt.UTC) if self.switch and self.in_progress else None

    @property
    def ended_at(self) -> dt.datetime | None:
        """Return when the last switch has ended, or None."""
        return dt.datetime.fromtimestamp(self.switch.ended, dt.UTC) if self.switch and self.switch.ended else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOptions:
    """How to switch. The fields are those of `switch_rules.Switch`."""

    step: int = 100
    every_s: int = 60
    gated: bool = True
    enough: int = 100
    within_s: int = 600
    stop_old: bool = False


# The field, its least and its greatest value.
_BOUNDS = (("step", 1, 100), ("every_s", 1, 86_400), ("enough", 1, 100), ("within_s", 1, 86_400))


def traffic_of(service: Service, row: ServiceWeighting | None = None) -> Traffic:
    """Return the tracks and weights of a service. `row`: its row if it was read already. Makes at most one query."""
    row = row or _rows(service).first()
    weights: dict[str, int] = row.weights if row is not None else {}
    switch = switch_of(row) if row is not None else None
    live = _live_tracks(service)
    tracks = []
    for name in sorted({*live, *weights}):
        jobs = live.get(name, [])
        wanted, up = sum(may_be_up(job) for job in jobs), sum(job.tasks_up for job in jobs)
        weighed = (weights.get(name, 0), share_of(weights, name)) if weights else (None, None)
        names = tuple(job.name for job in jobs)
        tracks.append(Track(name=name, jobs=names, wanted=wanted, up=up, weight=weighed[0], share=weighed[1]))
    ending = switch is not None and switch.stop_old and switch.state in IN_PROGRESS
    stops = tuple(job.name for job in service.jobs if ending and switch is not None and job.pk in switch.old_jobs)
    return Traffic(
        weights=weights,
        tracks=tuple(tracks),
        switch=switch,
        notes=_notes(service, weights, tracks),
        by=row.by if row else "",
        stops=stops,
    )


def service_weigh(*, principal: Principal, cell: Cell, tenant: str, name: str, weights: Mapping[str, int]) -> Traffic:
    """Set the weights of all tracks of a service. A track that `weights` does not contain gets the weight 0. Without
    weights, the weights of the tasks decide alone again. Ends a switch that is in progress. Idempotent.

    `weights`: by the name of a track or of a job. Raises `Rejected` for a wrong track or weight, and `NotFound` if the
    service does not exist. Locks the cell's row.
    """
    require_tenant(principal, Action.JOB_WRITE, tenant, cell.name)
    service = service_to_change(principal, cell, tenant, name)
    wanted = _checked(service, weights)
    with journal.write(cell.pk, principal) as entry:
        row = _locked(service)
        ended = _ended(row, entry, "the weights were set by hand")
        if row.weights != wanted or ended:
            store(entry, row, service.tenant, wanted, "set" if wanted else "cleared", switch=ended)
        found = traffic_of(service, row)
    return found


def service_switch(
    *,
    principal: Principal,
    cell: Cell,
    tenant: str,
    name: str,
    to: str,
    options: SwitchOptions | None = None,
    confirm: int | None = None,
) -> Traffic:
    """Begin to switch the clients of a service to the track `to`. The master moves the weights step by step. A repeated
    call while this switch is in progress changes nothing. A switch to another track replaces the present one, begins at
    its weights, and returns to those before it.

    `to`: the name of a track or of a job. `confirm`: as in `job_kill`, for the jobs that `stop_old` stops: those of
    tracks that have clients now. Raises `Rejected` for wrong values, `Conflict` if the service has no weights, if the
    stop must be confirmed, or if this switch is in progress with other options, and `NotFound` if the service does not
    exist. Locks the cell's row.
    """
    require_tenant(principal, Action.JOB_WRITE, tenant, cell.name)
    options = options or SwitchOptions()
    for field, least, most in _BOUNDS:
        if not least <= (value := getattr(options, field)) <= most:
            raise invalid(field, f"the value {value} is not possible; give a whole number from {least} to {most}")
    service = service_to_change(principal, cell, tenant, name)
    live = _live_tracks(service)
    to = _resolved(service, live, "to", to)
    if not any(may_be_up(job) for job in live.get(to, ())):
        raise invalid("to", f"track {to} of service {name} has no live task; submit its job first")
    with journal.write(cell.pk, principal) as entry:
        row = _locked(service)
        if not row.weights:
            some = next(track for track in sorted(live) if track != to) if len(live) > 1 else to
            raise Conflict(
                "no-weights",
                f"service {name} has no weights, so its clients use all tracks; first send all to one track, for"
                f" example with `borgctl service weights {name} {some}=100`",
            )
        present = switch_of(row)
        going = present if present is not None and present.state in IN_PROGRESS else None
        if going is None or going.to != to:
            began = _begun(service, live, row, to, options, going, entry, confirm)
            row.by = principal.name
            store(entry, row, service.tenant, row.weights, "begun", switch=began)
        elif other := [field for field in SwitchOptions.__slots__ if getattr(going, field) != getattr(options, field)]:
            detail = (
                f"a switch of service {name} to track {to} is in progress, with another value of {', '.join(other)};"
                " to change it, set the weights by hand, which ends the switch, and begin another one"
            )
            raise Conflict("switch-in-progress", detail, fields=dict.fromkeys(other, "differs from the present switch"))
        found = traffic_of(service, row)
    return found


def switch_of(row: ServiceWeighting) -> Switch | None:
    """Return the last switch of a service, or None if there is none, or if a later release has stored it and this one
    cannot read it.
    """
    if not row.switch:
        return None
    try:
        return msgspec.convert(row.switch, Switch)
    except msgspec.ValidationError as error:
        log.warning(
            "the stored switch of a service cannot be read, so it does"
            " not continue; set the weights of the service by hand",
            service=row.service,
            error=str(error),
        )
        return None


def weights_forget(principal: Principal, service: Service) -> bool:
    """Delete the weights of a service without a live job. Return whether it had some."""
    if service.jobs or not _rows(service).exists():
        return False
    with journal.write(service.cell.pk, principal) as entry:
        removed, _ = _rows(service).delete()
        if removed:
            entry.append(
                events.ServiceWeighed(service=service.name, tenant=service.tenant, change="cleared", weights={})
            )
    return bool(removed)


def store(
    entry: JournalEntry,
    row: ServiceWeighting,
    tenant: str,
    weights: Mapping[str, int],
    change: str,
    *,
    switch: Switch | None = None,
) -> None:
    """Store the weights of a service and its switch, and append the event. `change`: as in the event. `switch`: None to
    keep the stored one.
    """
    row.weights, row.revision = dict(weights), entry.revision
    if switch is not None:
        row.switch = msgspec.to_builtins(switch)
        going = switch.state in IN_PROGRESS
        row.due_at = dt.datetime.fromtimestamp(switch.due, dt.UTC) if going else None
    # An erasure may change `by` without the lock of the cell.
    row.save(
        update_fields=None
        if row.pk is None
        else ["weights", "revision", "switch", "due_at", *(["by"] if change == "begun" else [])]
    )
    entry.append(
        events.ServiceWeighed(
            service=row.service,
            tenant=tenant,
            change=change,
            weights=row.weights,
            track=switch.to if switch is not None else "",
            reason=switch.reason if switch is not None else "",
        )
    )


def _begun(
    service: Service,
    live: Mapping[str, Sequence[Job]],
    row: ServiceWeighting,
    to: str,
    options: SwitchOptions,
    replaced: Switch | None,
    entry: JournalEntry,
    confirm: int | None,
) -> Switch:
    """Return a new switch. `replaced`: the switch in progress that it replaces. Its weights are not a state that a
    person has chosen, so the new switch returns to those before it.
    """
    if replaced is None:
        found = ServiceWeighting.objects.filter(cell=service.cell, tenant_id=row.tenant_id, due_at__isnull=False)
        if (number := found.count()) >= MOST_SWITCHES:
            detail = (
                f"cannot switch service {service.name}: {number} switches of tenant {service.tenant} are in progress in"
                f" cell {service.cell.name}, and at most {MOST_SWITCHES} may be; wait until some have ended"
            )
            raise Rejected("too-many-switches", detail, figures={"switches": number, "most": MOST_SWITCHES}, status=403)
    before: dict[str, int] = dict(replaced.before if replaced is not None else row.weights)
    # A track that had no clients, such as a worker's, is not an old version.
    tracks = [track for track in live if track != to and (before.get(track) or row.weights.get(track))]
    old = [job for track in tracks for job in live[track] if not is_owned(job)]
    running = sum(job.tasks_running for job in old)
    if options.stop_old:
        confirmation.require(service.cell, running, confirm, what=f"stop the old tracks of service {service.name}")
    now = entry.time.timestamp()
    values = {field: getattr(options, field) for field in SwitchOptions.__slots__}
    return Switch(
        to=to,
        before=before,
        old_jobs=[job.pk for job in old],
        confirmed=max(running, confirm or 0),
        began=now,
        due=now,
        **values,
    )


def _rows(service: Service) -> QuerySet[ServiceWeighting]:
    return ServiceWeighting.objects.filter(cell=service.cell, tenant__name=service.tenant, service=service.name)


def _locked(service: Service) -> ServiceWeighting:
    """Return the row of a service, or a new one that is not stored yet. The caller has locked the cell's row."""
    if (row := _rows(service).first()) is not None:
        return row
    tenant = Tenant.objects.get(name=service.tenant)
    found = ServiceWeighting.objects.filter(cell=service.cell, tenant=tenant).count()
    if found >= MOST_WEIGHTED:
        detail = (
            f"cannot store weights of service {service.name}: {found} services of tenant {service.tenant} have some in"
            f" cell {service.cell.name}, and at most {MOST_WEIGHTED} can; `borgctl service forget` removes those of a"
            " service without live jobs"
        )
        raise Rejected("too-many-services", detail, figures={"services": found, "most": MOST_WEIGHTED}, status=403)
    return ServiceWeighting(cell=service.cell, tenant=tenant, service=service.name)


def _live_tracks(service: Service) -> dict[str, list[Job]]:
    """Return the live jobs of each track. An alloc set has no names, and belongs to no track."""
    found: dict[str, list[Job]] = {}
    for job in service.jobs:
        # Each run of a cron job has another name, so it does not count as a track.
        if job.kind == "job" and (TRACK in job.labels or not is_owned(job)):
            found.setdefault(track_of(job.name, job.labels), []).append(job)
    return found


def _resolved(service: Service, tracks: Iterable[str], field: str, name: str) -> str:
    """Return the track that `name` stands for: a track, or the track of a job. `tracks`: those that are possible.
    Raises `Rejected` with the name of the field.
    """
    known = set(tracks)
    if name in known:
        return name
    for job in (*service.jobs, *(row.job for row in service.stopped)):
        if job.name == name and (track := track_of(job.name, job.labels)) in known:
            return track
    theirs = ", ".join(sorted(known)[:20]) or "none with a live job"
    raise invalid(field, f"service {service.name} has no track or job {name[:63]!r}; its tracks are {theirs}")


def _checked(service: Service, weights: Mapping[str, int]) -> dict[str, int]:
    """Return the weights by track. Raises `Rejected` if one of them is not possible."""
    if len(weights) > MOST_TRACKS:
        raise invalid("weights", f"{len(weights)} tracks are too many; give weights for at most {MOST_TRACKS}")
    live = _live_tracks(service)
    stopped = {track_of(row.job.name, row.job.labels) for row in service.stopped}
    found: dict[str, int] = {}
    for name, weight in weights.items():
        field = f"weights.{name[:63]}"
        track = _resolved(service, {*live, *stopped}, field, name)
        if not 0 <= weight <= GREATEST:
            raise invalid(field, f"the weight {weight} is not possible; give a whole number from 0 to {GREATEST}")
        if track in found:
            raise invalid(field, f"{name} belongs to track {track}, which has a weight already; name each track once")
        if weight and not any(may_be_up(job) for job in live.get(track, ())):
            detail = f"track {track} has no live task, so it can get no clients; start its job first, or give it 0"
            raise invalid(field, detail)
        found[track] = weight
    if found and not sum(found.values()):
        raise invalid("weights", "all weights are 0, so no track would get clients; give one a weight above 0")
    return found


def _ended(row: ServiceWeighting, entry: JournalEntry, reason: str) -> Switch | None:
    """Return the switch of the row as given up, or None if none is in progress."""
    switch = switch_of(row)
    if switch is None or switch.state not in IN_PROGRESS:
        return None
    return replace(switch, state=SwitchState.ENDED, ended=entry.time.timestamp(), reason=reason)


def _notes(service: Service, weights: Mapping[str, int], tracks: Sequence[Track]) -> tuple[str, ...]:
    if not weights:
        return ()
    notes = [
        f"Track {one.name} gets no clients, because the service has weights and this track has none."
        for one in tracks
        if one.name not in weights
    ]
    if any(one.up for one in tracks) and not any(one.up and one.weight for one in tracks):
        notes.append("No task of a track with a weight is up, so clients use the tasks of the other tracks.")
    return tuple(notes)
