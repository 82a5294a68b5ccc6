"""Machines join, drain, go down, come back and leave. Everything journalled; capacity is published to quota.

    token ── machines_join ──► up ◄──────── machines_up ──────── down
                               │ ▲                                 ▲
                machine_drain ─▼ │ machine_undrain                 │ machines_down (silent)
                             draining ─────────────────────────────┘
                                                    machine_remove ──► removed

Tasks leave down and draining machines in `tasks_leave`, at the cell's rate, each eviction caused by the event that
changed the machine.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from borglet.messages import JoinAnswer, JoinRequest
from quota.errors import Conflict, Refused
from quota.permissions import Action, Principal, require, system
from quota.services import capacity as quota_capacity
from scheduling import journal, spec
from scheduling.config import CellSettings
from scheduling.core import events
from scheduling.core.states import EvictionCause, MachineStatus
from scheduling.journal import Cause, Entry
from scheduling.link import authority, contact
from scheduling.link.facts import Facts, read_facts
from scheduling.models import Cell, Departure, JobSpec, JoinToken, Machine, Task
from scheduling.models.machines import REMOVED
from scheduling.services import transitions
from scheduling.services.transitions import Eviction

UP, DRAINING, DOWN = MachineStatus.UP.value, MachineStatus.DRAINING.value, MachineStatus.DOWN.value
TOKEN_PREFIX = "borg1"  # noqa: S105 - the name of the format
MAX_BULK = 20_000
_MAX_TTL_S = 30 * 86_400


# -- joining


def join_token_issue(*, principal: Principal, cell: Cell, uses: int = 1, ttl_s: float = 3600) -> str:
    """A token that lets `uses` machines join within `ttl_s` seconds; shown once, only a hash is kept.

    `borg1.<key>.<secret>.<fingerprint of the authority>`: a machine knows by it that it talks to its cell.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    problems = {}
    if not 1 <= uses <= 1_000_000:
        problems["uses"] = f"{uses}: give 1 to 1000000"
    if not 1 <= ttl_s <= _MAX_TTL_S:
        problems["ttl_s"] = f"{ttl_s:g}: give 1 to {_MAX_TTL_S} seconds"
    if problems:
        raise Refused("invalid", _told(problems), fields=problems)
    key, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    JoinToken.objects.create(
        cell=cell,
        key=key,
        digest=secret_digest(secret),
        uses_left=uses,
        created_by=principal.name,
        expires_at=timezone.now() + dt.timedelta(seconds=ttl_s),
    )
    return f"{TOKEN_PREFIX}.{key}.{secret}.{authority.fingerprint()}"


def machine_join(request: JoinRequest) -> JoinAnswer:
    """One machine joins. Raises `Refused` naming the field; see `machines_join`."""
    try:
        return machines_join([request])[0]
    except Refused as error:
        fields = {path.removeprefix("[0]."): what for path, what in error.fields.items()}
        detail = error.detail.replace("[0].", "")
        raise Refused(
            error.code, detail, fields=fields, figures=error.figures, status=error.status
        ) from error


def machines_join(requests: Sequence[JoinRequest]) -> list[JoinAnswer]:
    """Many machines join one cell with one token, all or none; answers in the order of `requests`.

    A hostname known already gets a new secret, and its old one ends, unless the machine was heard of just now.
    Raises `Refused`: `invalid` with every wrong field as `[3].capacity.cpu`, `join-token-…`, `machine-live`.
    Locks: the token's row, then the cell's, then the machines'.
    """
    if not 1 <= len(requests) <= MAX_BULK:
        what = f"{len(requests)} machines; 1 to {MAX_BULK} may join at once"
        raise Refused("invalid", what, fields={"machines": what})
    token = _token_of(requests)
    cell = token.cell
    facts = _facts_of(requests, extra=cell.extra_resources)
    keys = [secrets.token_urlsafe(32) for _ in requests]
    with transaction.atomic():
        _use(token, len(requests))
        for first in range(0, len(requests), journal.CHUNK):
            part = slice(first, first + journal.CHUNK)
            with journal.write(cell.id, system("join")) as entry:
                machines = _store(entry, cell, facts[part], keys[part])
                for machine in machines:
                    entry.append(machine_set_event(machine))
                publish_capacity(entry)
    pem = authority.authority_pem()
    return [
        JoinAnswer(cell=cell.name, hostname=request.hostname, secret=key, authority=pem)
        for request, key in zip(requests, keys, strict=True)
    ]


def _token_of(requests: Sequence[JoinRequest]) -> JoinToken:
    if len({request.token for request in requests}) > 1:
        raise Refused("invalid", "one token for all machines of a request", fields={"[1].token": "differs"})
    parts = requests[0].token.split(".")
    if len(parts) != 4 or parts[0] != TOKEN_PREFIX:
        raise _token_refused(
            "malformed", "the token is not of the form borg1.<key>.<secret>.<fingerprint>; copy it whole"
        )
    token = JoinToken.objects.select_related("cell").filter(key=parts[1][:16]).first()
    digest = token.digest if token else "0" * 64
    if not hmac.compare_digest(secret_digest(parts[2]), digest) or token is None:
        raise _token_refused("unknown", "this cell issued no such token; issue one and use that")
    return token


def _use(token: JoinToken, uses: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE scheduling_jointoken SET uses_left = uses_left - %s"
            " WHERE id = %s AND uses_left >= %s AND expires_at > clock_timestamp()",
            [uses, token.id, uses],
        )
        if cursor.rowcount == 1:
            return
    token.refresh_from_db()
    if token.expires_at <= timezone.now():
        raise _token_refused("expired", f"the token ran out at {token.expires_at:%F %T} UTC; issue another")
    raise _token_refused(
        "spent",
        f"the token is used up: {token.uses_left} uses are left, {uses} asked for; issue another",
        figures={"uses_left": token.uses_left, "asked": uses},
    )


def _token_refused(what: str, detail: str, *, figures: Mapping[str, Any] | None = None) -> Refused:
    return Refused(f"join-token-{what}", detail, fields={"token": detail}, figures=figures, status=403)


def _facts_of(requests: Sequence[JoinRequest], *, extra: Sequence[str]) -> list[Facts]:
    problems: dict[str, str] = {}
    facts: list[Facts] = []
    first_at: dict[str, int] = {}
    for number, request in enumerate(requests):
        found, wrong = read_facts(request, extra=extra)
        problems |= {f"[{number}].{path}": what for path, what in wrong.items()}
        if first_at.setdefault(request.hostname, number) != number:
            problems[f"[{number}].hostname"] = f"{request.hostname} is named twice"
        if found is not None:
            facts.append(found)
    if problems:
        raise Refused("invalid", _told(problems), fields=problems)
    return facts


def _store(entry: Entry, cell: Cell, many: Sequence[Facts], keys: Sequence[str]) -> list[Machine]:
    known = {
        machine.hostname: machine
        for machine in Machine.objects.select_for_update()
        .filter(cell=cell, hostname__in=[facts.hostname for facts in many])
        .order_by("id")
    }
    live = contact.heard_within(
        cell.id, [machine.id for machine in known.values() if machine.state != REMOVED]
    )
    machines, new = [], []
    for facts, key in zip(many, keys, strict=True):
        machine = known.get(facts.hostname)
        if machine is None:
            machine = Machine(cell=cell, hostname=facts.hostname)
            new.append(machine)
        elif machine.id in live:
            detail = (
                f"hostname {facts.hostname} belongs to a machine that was heard of just now; choose another"
                " name, or stop its Borglet and join again in a minute"
            )
            raise Conflict("machine-live", detail, fields={"hostname": detail})
        elif machine.state == REMOVED:
            machine.quarantined = []
        for name, value in facts.columns().items():
            setattr(machine, name, value)
        machine.state, machine.reason = UP if machine.state != DRAINING else DRAINING, ""
        machine.secret_digest = secret_digest(key)
        machine.session += 1  # whoever is connected with the old secret is superseded
        machines.append(machine)
    # One statement for the new ones, whose ids it brings back; the known ones are few.
    Machine.objects.bulk_create(new)
    Machine.objects.bulk_update(
        [machine for machine in machines if machine.hostname in known],
        [*Facts.COLUMNS, "state", "reason", "secret_digest", "session", "quarantined"],
        batch_size=500,
    ) if known else None
    return machines


# -- facts and states


def machine_set(*, principal: Principal, machine: Machine, **facts: Any) -> Machine:
    """Change facts of a machine: those of `JoinRequest`, except `token`. Equal facts change nothing.

    Raises `Refused` naming the field. Locks: the cell's row, then the machine's.
    """
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    unknown = [name for name in facts if name not in JoinRequest.__struct_fields__ or name == "token"]
    if unknown:
        problems = dict.fromkeys(unknown, "no fact of a machine")
        raise Refused("invalid", _told(problems), fields=problems)
    with journal.write(machine.cell_id, principal) as entry:
        row = Machine.objects.select_for_update().get(pk=machine.pk)
        if set_facts(row, facts, extra=machine.cell.extra_resources):
            row.save(update_fields=Facts.COLUMNS)
            entry.append(machine_set_event(row))
            publish_capacity(entry)
    machine.refresh_from_db()
    return machine


def set_facts(machine: Machine, changed: Mapping[str, Any], *, extra: Sequence[str]) -> bool:
    """Put checked facts on `machine`, unsaved. False when they are what it has. Raises `Refused`."""
    before = Facts.of(machine)
    request = before.as_request(extra=extra, **changed)
    after, problems = read_facts(request, extra=extra)
    if after is None:
        raise Refused("invalid", _told(problems), fields=problems)
    if after.hostname != before.hostname:
        raise Refused("invalid", "a machine keeps its name", fields={"hostname": "can't be changed"})
    if after == before:
        return False
    for name, value in after.columns().items():
        setattr(machine, name, value)
    return True


def machine_drain(*, principal: Principal, machine: Machine, reason: str) -> Machine:
    """Take no new tasks, and let those there leave, at the cell's rate and within their jobs' `max_down`."""
    return _set_state(principal, machine, DRAINING, reason)


def machine_undrain(*, principal: Principal, machine: Machine, reason: str = "") -> Machine:
    return _set_state(principal, machine, UP, reason)


def _set_state(principal: Principal, machine: Machine, state: str, reason: str) -> Machine:
    """What an SRE wants of a machine. One that is down stays down, and will be `state` when it comes back."""
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    with journal.write(machine.cell_id, principal) as entry:
        row = Machine.objects.select_for_update().get(pk=machine.pk)
        _must_be_there(row)
        if row.state == DOWN:
            entry.append(events.MachineState(machine_id=row.id, state=state, reason=reason))
            entry.append(events.MachineState(machine_id=row.id, state=DOWN, reason=row.reason))
        elif row.state != state:
            _change_states(entry, {row.id: state}, reason)
    machine.refresh_from_db()
    return machine


def machine_down(*, principal: Principal, machine: Machine, reason: str) -> Machine:
    """It does not answer: its tasks are placed elsewhere, at the cell's rate."""
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    machines_down(principal=principal, cell_id=machine.cell_id, machine_ids=[machine.id], reason=reason)
    machine.refresh_from_db()
    return machine


def machines_down(
    *, principal: Principal, cell_id: int, machine_ids: Sequence[int], reason: str
) -> list[int]:
    """Mark machines down that are up or draining. Returns those changed. Locks: cell, then machines by id."""
    with journal.write(cell_id, principal) as entry:
        rows = _lock(cell_id, machine_ids, [UP, DRAINING])
        _change_states(entry, {row.id: DOWN for row in rows}, reason)
    return [row.id for row in rows]


def machine_up(*, principal: Principal, machine: Machine, reason: str = "") -> Machine:
    """It answers again. A machine that was draining before it went down drains on."""
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    with journal.write(machine.cell_id, principal) as entry:
        machines_return(entry, [machine.id], reason)
    machine.refresh_from_db()
    return machine


def machines_return(entry: Entry, machine_ids: Sequence[int], reason: str) -> list[int]:
    """Down machines that answer again, under an open entry. Returns those changed."""
    rows = _lock(entry.cell_id, machine_ids, [DOWN])
    if rows:
        wanted = _wanted_states([row.id for row in rows])
        _change_states(entry, {row.id: wanted.get(row.id, UP) for row in rows}, reason)
    return [row.id for row in rows]


def machine_remove(*, principal: Principal, machine: Machine, reason: str) -> None:
    """Forget a machine for good: its name may join again, its secret is void.

    Refused while tasks run on a machine that answers; on one that is down they are evicted now. What its
    Borglet still ran is the SRE's to clean up.
    """
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    with journal.write(machine.cell_id, principal) as entry:
        row = Machine.objects.select_for_update().get(pk=machine.pk)
        _must_be_there(row)
        tasks = list(
            Task.objects.filter(machine=row, state=transitions.RUNNING).values_list("id", "incarnation")
        )
        if tasks and row.state != DOWN:
            detail = f"{len(tasks)} tasks run on {row.hostname}; drain it and wait until they have left"
            raise Conflict("machine-busy", detail, fields={"machine": detail}, figures={"tasks": len(tasks)})
        cause = entry.append(events.MachineState(machine_id=row.id, state=DOWN, reason=reason))
        transitions.tasks_evict(
            entry,
            [
                Eviction(
                    identity,
                    incarnation,
                    EvictionCause.MACHINE_SHUTDOWN.value,
                    detail=f"{row.hostname} was removed: {reason}",
                    gone=True,
                    caused_by=cause,
                )
                for identity, incarnation in tasks
            ],
        )
        left = Departure.objects.filter(machine=row).values_list("task_id", "incarnation")
        transitions.tasks_gone(entry, [(identity, incarnation, None) for identity, incarnation in left])
        row.state, row.reason, row.secret_digest, row.quarantined = REMOVED, reason, "", []
        row.session += 1
        row.save(update_fields=["state", "reason", "secret_digest", "quarantined", "session"])
        entry.append(events.MachineRemoved(machine_id=row.id, reason=reason), caused_by=cause)
        publish_capacity(entry)
    contact.forget(machine.cell_id, [machine.id])
    machine.refresh_from_db()


# -- quarantine


def quarantine_release(
    *, principal: Principal, machine: Machine, keys: Iterable[str], action: str
) -> Machine:
    """Decide about incarnations that this cell's history doesn't know (`uid/index/incarnation`).

    `action`: `stop` ends them; `keep` lets them run on and marks them as decided.
    """
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    if action not in ("stop", "keep"):
        detail = f"{action!r}: one of stop, keep"
        raise Refused("invalid", f"action: {detail}", fields={"action": detail})
    wanted = set(keys)
    with journal.write(machine.cell_id, principal) as entry:
        row = Machine.objects.select_for_update().get(pk=machine.pk)
        known = {item["key"] for item in row.quarantined}
        if unknown := sorted(wanted - known):
            detail = f"not in quarantine on {row.hostname}: {', '.join(unknown[:5])}"
            raise Refused("not-in-quarantine", detail, fields={"keys": detail})
        quarantine_set(
            entry,
            row,
            [{**item, "release": action} if item["key"] in wanted else item for item in row.quarantined],
            f"{action} {len(wanted)} in quarantine",
        )
    machine.refresh_from_db()
    return machine


def quarantine_set(entry: Entry, machine: Machine, items: Sequence[Mapping[str, Any]], reason: str) -> None:
    """Store what is in quarantine on a locked machine; the event says so, its state stays."""
    if list(items) == machine.quarantined:
        return
    machine.quarantined = list(items)
    machine.save(update_fields=["quarantined"])
    entry.append(events.MachineState(machine_id=machine.id, state=machine.state, reason=reason))


# -- leaving down and draining machines


def tasks_leave(cell_id: int, settings: CellSettings, *, seconds: float) -> int:
    """Evict tasks from down and draining machines: what `seconds` of the cell's rates allow. Returns the number."""
    down = max(1, int(settings.evictions_per_s * seconds)) if settings.evictions_per_s else 0
    drain = max(1, int(settings.drain_per_s * seconds)) if settings.drain_per_s else 0
    return tasks_evict_from(cell_id, limit=down) + tasks_drain(cell_id, limit=drain)


def tasks_evict_from(cell_id: int, limit: int) -> int:
    """Evict at most `limit` tasks from machines that are down, highest priority first."""
    leaving = list(_on_machines(cell_id, DOWN)[: min(limit, journal.CHUNK)])
    return _evict(cell_id, leaving, EvictionCause.MACHINE_FAILURE)


def tasks_drain(cell_id: int, limit: int) -> int:
    """Evict at most `limit` tasks from draining machines, of each job no more than its `max_down` allows.

    Tasks that are not up leave freely: they take nothing from their job.
    """
    candidates = list(_on_machines(cell_id, DRAINING)[: journal.CHUNK])
    if not candidates:
        return 0
    budget = _disruption_budgets({task.job_id for task in candidates})
    leaving = []
    for task in candidates:
        if task.up:
            if budget[task.job_id] <= 0:
                continue
            budget[task.job_id] -= 1
        leaving.append(task)
    return _evict(cell_id, leaving[:limit], EvictionCause.MACHINE_SHUTDOWN)


def _on_machines(cell_id: int, state: str):
    return (
        Task.objects.filter(machine__cell_id=cell_id, machine__state=state, state=transitions.RUNNING)
        .select_related("machine", "job")
        .only(
            "id", "incarnation", "up", "job_id", "machine__hostname", "machine__reason", "job__priority"
        )
        .order_by("-job__priority", "id")
    )  # fmt: skip


def _disruption_budgets(job_ids: set[int]) -> dict[int, int]:
    """How many more tasks of each job may be down. Tasks never placed yet are no disruption."""
    disrupted: dict[int, int] = defaultdict(int)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT job_id, count(*) FROM scheduling_task WHERE job_id = ANY(%s)"
            " AND state <> 'dead' AND NOT up AND incarnation > 0 GROUP BY job_id",
            [sorted(job_ids)],
        )
        disrupted.update(cursor.fetchall())
    newest = (
        JobSpec.objects.filter(job_id__in=job_ids)
        .order_by("job_id", "-version")
        .distinct("job_id")
        .select_related("job__cell")
    )
    allowed = {
        row.job_id: spec.load(row.spec, extra=row.job.cell.extra_resources).max_down() for row in newest
    }
    return {job: allowed.get(job, 1) - disrupted[job] for job in job_ids}


def _evict(cell_id: int, leaving: Sequence[Task], cause: EvictionCause) -> int:
    if not leaving:
        return 0
    with journal.write(cell_id, system("machines")) as entry:
        because = _latest_states({task.machine_id for task in leaving})
        evicted = transitions.tasks_evict(
            entry,
            [
                Eviction(
                    task.id,
                    task.incarnation,
                    cause.value,
                    detail=_told_of_leaving(task.machine, cause),
                    caused_by=because.get(task.machine_id),
                )
                for task in leaving
            ],
        )
    return len(evicted)


def _told_of_leaving(machine: Machine, cause: EvictionCause) -> str:
    what = "is down" if cause is EvictionCause.MACHINE_FAILURE else "is being drained"
    return f"machine {machine.hostname} {what}" + (f": {machine.reason}" if machine.reason else "")


# -- inside


def machine_set_event(machine: Machine) -> events.MachineSet:
    """All facts of a machine, as the event that announces them."""
    return events.MachineSet(
        machine_id=machine.id,
        hostname=machine.hostname,
        address=machine.address,
        capacity=tuple(machine.capacity),
        attributes=dict(machine.attributes),
        platform=machine.platform,
        rack=machine.rack,
        power_domain=machine.power_domain,
        port_low=machine.port_low,
        port_high=machine.port_high,
        state=machine.state,
    )


def _lock(cell_id: int, machine_ids: Sequence[int], states: Sequence[str]) -> list[Machine]:
    return list(
        Machine.objects.select_for_update()
        .filter(cell_id=cell_id, pk__in=machine_ids, state__in=states)
        .only("id")
        .order_by("id")
    )


def _change_states(entry: Entry, states: Mapping[int, str], reason: str) -> None:
    for state in sorted(set(states.values())):
        ids = [machine for machine, wanted in states.items() if wanted == state]
        Machine.objects.filter(pk__in=ids).update(state=state, reason=reason[:300])
    entry.extend(
        events.MachineState(machine_id=machine, state=state, reason=reason)
        for machine, state in sorted(states.items())
    )


def _wanted_states(machine_ids: Sequence[int]) -> dict[int, str]:
    """What each machine was before it went down, as the journal tells."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.id, e.state FROM unnest(%s::bigint[]) AS m(id) CROSS JOIN LATERAL ("
            " SELECT data->>'state' AS state FROM scheduling_event"
            " WHERE machine_id = m.id AND kind = 'machine.state' AND data->>'state' <> 'down'"
            " ORDER BY revision DESC, seq DESC LIMIT 1) AS e",
            [list(machine_ids)],
        )
        return dict(cursor.fetchall())


def _latest_states(machine_ids: Iterable[int]) -> dict[int, Cause]:
    """The event that put each machine into its state."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.id, e.revision, e.seq FROM unnest(%s::bigint[]) AS m(id) CROSS JOIN LATERAL ("
            " SELECT revision, seq FROM scheduling_event WHERE machine_id = m.id AND kind = 'machine.state'"
            " ORDER BY revision DESC, seq DESC LIMIT 1) AS e",
            [sorted(machine_ids)],
        )
        return {machine: Cause(revision, seq) for machine, revision, seq in cursor.fetchall()}


def publish_capacity(entry: Entry) -> None:
    """Tell quota what the cell has: all machines that belong to it, also those down for the moment."""
    cell = Cell.objects.only("name", "extra_resources").get(pk=entry.cell_id)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT part.position, sum(part.amount)::bigint FROM scheduling_machine AS m,"
            " unnest(m.capacity) WITH ORDINALITY AS part(amount, position)"
            " WHERE m.cell_id = %s AND m.state <> %s GROUP BY part.position",
            [entry.cell_id, REMOVED],
        )
        sums = dict(cursor.fetchall())
    size = Facts.size(cell.extra_resources)
    quota_capacity.publish(
        cell=cell.name,
        capacity=[sums.get(position, 0) for position in range(1, size + 1)],
        revision=entry.revision,
    )


def _must_be_there(machine: Machine) -> None:
    if machine.state == REMOVED:
        detail = f"machine {machine.hostname} was removed; join it again first"
        raise Conflict("machine-removed", detail, fields={"machine": detail})


def secret_digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _told(problems: Mapping[str, str]) -> str:
    shown = "; ".join(f"{path}: {what}" for path, what in list(problems.items())[:3])
    return shown + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
