"""The database reads and writes of a shard. Each function handles many machines, and runs in the shard's database
thread.
"""

from __future__ import annotations

import datetime as dt
import hmac
import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from borglet.messages import OLDEST_PROTOCOL, EndCause, Hello, Refusal, common_protocol
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import NAMES, as_mapping
from scheduling.allocs import kept_allocs
from scheduling.brakes import stored_brakes
from scheduling.core.vocabulary.requirement import MAX_TASKS, PROTOCOL, split_task_id
from scheduling.core.vocabulary.task_events import Ending, Eviction
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.row_events import machine_set_event
from scheduling.journal.sql import execute, query
from scheduling.link.views.exit_verdict import judge
from scheduling.link.views.report_changes import ReportChanges, UnknownIncarnation, exit_json, storable_text
from scheduling.machines.credentials import DIGEST_LENGTH, is_hex, secret_digest, secrets_renewed
from scheduling.machines.facts import CLAIMED, MAX_ATTRIBUTES, counted
from scheduling.machines.machines import DOWN, machines_return, publish_capacity, quarantine_set, set_facts
from scheduling.master import metrics
from scheduling.models import Cell, Machine, Task
from scheduling.models.machines import REMOVED
from scheduling.pools.membership import Membership
from scheduling.pools.rules import reported
from scheduling.tasks import counters, departures, reported_states, transitions

log = structlog.get_logger(__name__)
ME = system("link")


@dataclass(frozen=True, slots=True)
class Known:
    """A machine that has connected with a valid secret."""

    machine_id: int
    cell_id: int
    cell: str
    hostname: str
    history_id: str
    secret_age_s: float = 0.0  # age of the secret with which it connected; infinite if unknown


@dataclass(slots=True)
class MachineReportChanges:
    """The changes that the reports of one machine contain. `returned`: whether the machine was down and answers
    again.
    """

    machine_id: int
    session: int
    history_id: str
    changes: ReportChanges = field(default_factory=ReportChanges)
    returned: bool = False

    @property
    def size(self) -> int:
        """Return the number of changes of tasks, plus one for the machine."""
        return 1 + self.changes.size


def cells(names: Sequence[str]) -> list[Cell]:
    """Return the cells with these names, or all cells if `names` is empty. Study cells, which have no real machines,
    are left out. Makes one query.
    """
    rows = Cell.operated.filter(name__in=names) if names else Cell.operated.all()
    return list(rows.only("name", "revision", "settings"))


def authenticate(asks: Sequence[tuple[str, str]], cell_ids: Iterable[int]) -> list[Known | None]:
    """Return the machine for each (hostname, secret), or None for an unknown machine or a wrong secret.

    When a machine uses a new secret for the first time, its old secret becomes invalid. Makes one query, and three
    more for each cell in which this happens.
    """
    rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    found = (
        Machine.objects.filter(hostname__in={hostname for hostname, _ in asks}, cell_id__in=list(cell_ids))
        .exclude(state=REMOVED)
        .values_list(
            "hostname", "secret_digest", "next_digest", "secret_at", "id", "cell_id", "cell__name", "cell__history_id"
        )
    )
    now = dt.datetime.now(dt.UTC)
    fresh: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for hostname, *rest in found:
        rows[hostname].append(tuple(rest))
    result: list[Known | None] = []
    for hostname, secret in asks:
        digest = secret_digest(secret)
        match = None
        # A hostname is unique in its cell, and may exist in several cells. An unknown one takes the same time.
        for stored, following, since, machine_id, cell_id, cell, history_id in rows.get(hostname, []) or [
            ("0" * 64, "0" * 64, None, 0, 0, "", None)
        ]:
            usual, new = hmac.compare_digest(digest, stored), hmac.compare_digest(digest, following)
            if (usual or new) and machine_id:
                age_s = math.inf if since is None else (now - since).total_seconds()
                match = Known(machine_id, cell_id, cell, hostname, history_id.hex, age_s if usual else 0.0)
                if not usual:
                    fresh[cell_id].append((machine_id, digest))
        result.append(match)
    if fresh:
        lost = {
            pair[0]
            for cell_id, used in fresh.items()
            for pair in set(used) - secrets_renewed(cell_id, used, principal=ME)
        }
        # The secrets of these machines were revoked or replaced between the two statements.
        result = [None if known is not None and known.machine_id in lost else known for known in result]
    return result


def greet(cell_id: int, hellos: Mapping[int, Hello]) -> dict[int, int | Refusal]:
    """Begin a new session of each machine. `hellos`: the first message of each machine, by machine id. Return, by
    machine id, the number of the session or the reason why the hello is rejected.

    Changes of a machine's attributes and capacity are written to the journal. A machine that was down is up again.
    Locks: the cell's row if the journal gets new events, then the rows of the machines in order of id.
    """
    refused: dict[int, int | Refusal] = {}
    changed = []
    cell = Cell.objects.only("extra_resources").get(pk=cell_id)
    membership = Membership(cell_id)
    for machine in Machine.objects.filter(pk__in=hellos).order_by("id"):
        before = machine.hidden_attributes
        try:
            differs = _set_facts(machine, hellos[machine.id], membership, cell.extra_resources)
            differs |= before != machine.hidden_attributes
        except Rejected as error:
            path = next(iter(error.fields), "")
            refused[machine.id] = Refusal(error.code, path, error.detail, retry=False)
            continue
        if differs or machine.state == DOWN:
            changed.append(machine.id)
    if changed:
        _take_facts(cell_id, cell.extra_resources, {machine: hellos[machine] for machine in changed})
    welcome = sorted(hellos.keys() - refused.keys())
    rows = query(
        "WITH h AS (SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[])"
        " AS h(id, boot_id, software, authority)),"
        " locked AS MATERIALIZED (SELECT m.id FROM scheduling_machine AS m WHERE m.id IN (SELECT id FROM h)"
        " ORDER BY m.id FOR NO KEY UPDATE)"
        " UPDATE scheduling_machine AS m SET session = m.session + 1, boot_id = h.boot_id, software = h.software,"
        " authority = h.authority FROM h JOIN locked USING (id) WHERE m.id = h.id RETURNING m.id, m.session",
        [
            welcome,
            [storable_text(hellos[machine].boot_id[:64]) for machine in welcome],
            [storable_text(hellos[machine].software[:64]) for machine in welcome],
            [a if is_hex(a := hellos[machine].authority, DIGEST_LENGTH) else "" for machine in welcome],
        ],
    )
    return refused | dict(rows)


def _set_facts(machine: Machine, hello: Hello, membership: Membership, extra: Sequence[str]) -> bool:
    """Set the facts in the hello of a machine, without saving them. Return whether facts for the scheduler changed."""
    facts = _facts(machine, hello, extra)
    if (number := len(facts["attributes"])) > MAX_ATTRIBUTES:
        raise invalid("attributes", f"{number} attributes are too many; give at most {MAX_ATTRIBUTES}")
    facts["attributes"], hidden = membership.attributes_of(machine, facts["attributes"])
    changed = set_facts(machine, facts, extra=extra)
    machine.hidden_attributes = hidden
    return changed


def _facts(machine: Machine, hello: Hello, extra: Sequence[str]) -> dict[str, Any]:
    """Return the reported attributes of a machine after its hello, and its capacity if the hello reports one.

    The hello does not remove attributes that earlier hellos reported. It does not change amounts of resources that the
    cell defines itself. If the hello reports more of a resource than was accepted, the capacity keeps the accepted
    amount, and the attribute `CLAIMED` contains the reported amount. `extra`: the names of the cell's own resources.
    """
    speaks = {PROTOCOL: str(common_protocol(hello) or OLDEST_PROTOCOL)}
    earlier = reported(machine.attributes, machine.set_attributes, machine.hidden_attributes)
    attributes = {**earlier, **hello.attributes, **speaks}
    facts: dict[str, Any] = {"attributes": attributes}
    if CLAIMED in hello.attributes:
        attributes.pop(CLAIMED)
    if hello.capacity:
        own = dict.fromkeys((*NAMES, *extra), 0) | as_mapping(machine.machine_capacity, extra=extra)
        counts, claimed = counted(own | as_mapping(machine.granted, extra=extra), hello.capacity)
        facts["capacity"] = {name: own[name] for name in extra if own[name]} | counts
        attributes.pop(CLAIMED, None)
        if claimed:
            attributes[CLAIMED] = claimed
            log.warning(
                "a machine reports more capacity than was accepted for it; accept it with `borgctl machine grow`",
                machine=machine.hostname,
                claimed=claimed,
            )
    return facts


def _take_facts(cell_id: int, extra: Sequence[str], hellos: Mapping[int, Hello]) -> None:
    with journal.write(cell_id, ME) as entry:
        machines = Machine.objects.select_for_update().filter(pk__in=hellos, cell_id=cell_id).order_by("id")
        membership, sizes_changed = Membership(cell_id), False
        changed = []
        for machine in machines:
            before, accepted = list(machine.capacity), machine.machine_capacity
            hidden = machine.hidden_attributes
            if _set_facts(machine, hellos[machine.id], membership, extra) or hidden != machine.hidden_attributes:
                if not machine.granted and any(map(operator.lt, machine.machine_capacity, accepted)):
                    machine.granted = accepted
                changed.append(machine)
                entry.append(machine_set_event(machine))
                sizes_changed |= before != machine.capacity
        _store_facts(changed)
        machines_return(entry, list(hellos), "its Borglet connected")
        if sizes_changed:
            publish_capacity(entry)


def _store_facts(machines: Sequence[Machine]) -> None:
    """Write the attributes and the capacity of machines with one statement. The rows must be locked."""
    if not machines:
        return
    # An array of SQL arrays cannot have rows of different lengths, so each vector is passed as the text of an array.
    execute(
        "UPDATE scheduling_machine AS m SET attributes = f.attributes::jsonb, capacity = f.capacity::bigint[],"
        " granted = f.granted::bigint[], hidden_attributes = f.hidden::jsonb, machine_cpu = f.machine_cpu"
        " FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[])"
        " AS f(id, attributes, capacity, granted, hidden, machine_cpu)"
        " WHERE m.id = f.id",
        [
            [machine.id for machine in machines],
            [msgspec.json.encode(machine.attributes).decode() for machine in machines],
            [_array(machine.capacity) for machine in machines],
            [_array(machine.granted) for machine in machines],
            [msgspec.json.encode(machine.hidden_attributes).decode() for machine in machines],
            [machine.machine_cpu for machine in machines],
        ],
    )


def _array(vector: Sequence[int]) -> str:
    return "{" + ",".join(map(str, vector)) + "}"


def apply(cell_id: int, many: Sequence[MachineReportChanges]) -> set[int]:
    """Write the changes of many machines, at most about 5,000 changes in one revision.

    Return the ids of the machines that have a newer session. Their changes are not written. Locks: the cell's row,
    then the machines in order of id, then the tasks in order of id.
    """
    stale: set[int] = set()
    for part in _chunks(many):
        with journal.write(cell_id, ME) as entry:
            refused = _apply(entry, part)
        stale |= refused
        _count(cell_id, [news.changes for news in part if news.machine_id not in refused])
    return stale


def _count(cell_id: int, changes: Sequence[ReportChanges]) -> None:
    reasons = [unwanted.reason for change in changes for unwanted in change.unwanted]
    short = EndCause.MACHINE_SHORT
    reasons += [short.value for change in changes for over in change.over if over.exit.cause is short]
    if reasons:
        cell = Cell.objects.values_list("name", flat=True).get(pk=cell_id)
        for reason in reasons:
            metrics.machine_evictions.labels(cell, reason).inc()


def _chunks(many: Sequence[MachineReportChanges]) -> Iterable[list[MachineReportChanges]]:
    part: list[MachineReportChanges] = []
    size = 0
    for news in many:
        if part and size + news.size > journal.CHUNK:
            yield part
            part, size = [], 0
        part.append(news)
        size += news.size
    if part:
        yield part


def _apply(entry: JournalEntry, part: Sequence[MachineReportChanges]) -> set[int]:
    history = Cell.objects.values_list("history_id", flat=True).get(pk=entry.cell_id).hex
    sessions = dict(
        Machine.objects.filter(pk__in=[news.machine_id for news in part])
        .exclude(state=REMOVED)
        .values_list("id", "session")
    )
    valid = [news for news in part if news.history_id == history and sessions.get(news.machine_id) == news.session]
    returned = [news.machine_id for news in valid if news.returned]
    if returned:
        machines_return(entry, returned, "it answers again")
    for news in valid:
        if news.changes.strangers is not None:
            _note_strangers(entry, news.machine_id, news.changes.strangers)
    changes = [news.changes for news in valid]
    if gone := [(g.task_id, g.incarnation, g.exit) for c in changes for g in c.gone]:
        departures.tasks_gone(entry, gone)
    if saved := [one for c in changes for one in c.saved]:
        kept_allocs.savers_done(entry, saved)
    kept_allocs.gone(entry, [kept for c in changes for kept in c.dropped])
    _finish(entry, changes)
    if lost := [
        Eviction(identity, incarnation, "lost", detail="its machine no longer runs it", gone=True)
        for c in changes
        for identity, incarnation in c.lost
    ]:
        transitions.tasks_evict(entry, lost)
    if unwanted := [
        Eviction(u.task_id, u.incarnation, "out-of-resources", detail=u.detail, avoid=True)
        for c in changes
        for u in c.unwanted
    ]:
        transitions.tasks_evict(entry, unwanted)
    if seen := [observation for c in changes for observation in c.seen]:
        reported_states.tasks_observe(entry, seen)
    return {news.machine_id for news in part if sessions.get(news.machine_id) != news.session}


def _finish(entry: JournalEntry, changes: Sequence[ReportChanges]) -> None:
    over = [over for change in changes for over in change.over]
    if not over:
        return
    evictions = dict(Task.objects.filter(pk__in=[o.task_id for o in over]).values_list("id", "evictions"))
    # Every move is an eviction. So moves need to be counted only for tasks with at least `max_moves` evictions.
    moves = _moves([o.task_id for o in over if evictions.get(o.task_id, 0) >= o.max_moves])
    endings, evicted = [], []
    for one in over:
        verdict = judge(one, moves=moves.get(one.task_id, 0))
        exit_ = exit_json(one.exit)
        if verdict.how:
            endings.append(
                Ending(one.task_id, verdict.how, one.incarnation, detail=verdict.detail, gone=True, exit=exit_)
            )
        else:
            evicted.append(
                Eviction(
                    one.task_id,
                    one.incarnation,
                    verdict.cause,
                    detail=verdict.detail,
                    gone=True,
                    avoid=verdict.avoid,
                    exit=exit_,
                )
            )
    if evicted:
        transitions.tasks_evict(entry, evicted)
    if endings:
        transitions.tasks_end(entry, endings)


def _moves(task_ids: Sequence[int]) -> dict[int, int]:
    """Return, by task id, how often each task was evicted because of a failure since it was last revived or last
    changed its spec.
    """
    if not task_ids:
        return {}
    pairs = [split_task_id(identity) for identity in task_ids]
    rows = query(
        "SELECT t.id, count(*) FROM unnest(%s::bigint[], %s::bigint[], %s::integer[]) AS t(id, job_id, index)"
        " JOIN scheduling_event AS e ON e.job_id = t.job_id AND e.task_index = t.index"
        " AND e.kind = 'task.evicted' AND e.data->>'cause' = 'failure'"
        " AND e.revision > coalesce((SELECT max(u.revision) FROM scheduling_event AS u"
        " WHERE u.job_id = t.job_id AND u.task_index = t.index"
        " AND u.kind IN ('task.updated', 'task.revived')), 0) GROUP BY t.id",
        [list(task_ids), [job for job, _ in pairs], [index for _, index in pairs]],
    )
    return dict(rows)


def _note_strangers(entry: JournalEntry, machine_id: int, strangers: Sequence[UnknownIncarnation]) -> None:
    """Store `strangers`: the incarnations that a machine runs although the cell does not expect them there.

    If an incarnation has already ended according to the database, the machine will stop it. An SRE decides about the
    others.
    """
    machine = Machine.objects.select_for_update().get(pk=machine_id)
    known = {item["key"]: item for item in machine.quarantined}
    over = _known_to_be_over([stranger for stranger in strangers if not stranger.flagged])
    if not stored_brakes.stops_pass(entry, len(over - known.keys()), what="superseded tasks"):
        over &= known.keys()  # the others stay in quarantine until the brake allows it
    since = entry.time.astimezone(dt.UTC).isoformat(timespec="seconds")
    items = []
    for stranger in strangers:
        key = str(stranger.key)
        new = {"key": key, "name": stranger.name, "since": since, "release": ""}
        if key in over:
            new |= {"release": "stop", "cause": "superseded"}
        items.append(known.get(key, new))
    items.sort(key=lambda item: item["key"])
    unknown = [item["name"] for item in items if item["key"] not in known and not item["release"]]
    if unknown:
        log.warning(
            "a machine runs tasks that the cell does not know; stop or keep them with `borgctl quarantine`",
            machine=machine.hostname,
            tasks=unknown[:20],
            number=len(unknown),
        )
    reason = machine.reason or f"{len(items)} tasks run on the machine that the cell did not start"
    quarantine_set(entry, machine, items, reason)


def _known_to_be_over(strangers: Sequence[UnknownIncarnation]) -> set[str]:
    """Return the keys of those incarnations in `strangers` that have ended according to the database."""
    # A key may belong to a history that this database never had, or be invented.
    keys = {s.key for s in strangers if is_hex(s.key.job, 32) and 0 <= s.key.index < MAX_TASKS}
    if not keys:
        return set()
    rows = Task.objects.filter(job__uid__in={key.job for key in keys}, index__in={key.index for key in keys})
    known = {
        (uid.hex, index): (incarnation, state)
        for uid, index, incarnation, state in rows.values_list("job__uid", "index", "incarnation", "state")
    }
    result = set()
    for key in keys:
        incarnation, state = known.get((key.job, key.index), (0, ""))
        if incarnation > key.incarnation or (incarnation == key.incarnation and state != counters.RUNNING):
            result.add(str(key))
    return result
