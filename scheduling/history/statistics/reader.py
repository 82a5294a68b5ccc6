"""Reads the journal of a cell, and adds its events to the tallies in the database. Each event is counted once.

One transaction contains the new tallies, the state of the fold, and the revision up to which the journal was read. So a
reader that is killed, runs twice, or runs on two hosts counts no event twice and skips none.
"""

from __future__ import annotations

import datetime as dt
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import msgspec
import structlog
from django.db import transaction

from quota.admission import admission
from quota.vocabulary.bands import band_of
from scheduling.history.statistics.counts_from_events import Fold, FoldState, Start
from scheduling.history.statistics.tallies import TOTAL, Figure, Tallies, Tally, TallyKey
from scheduling.journal import journal
from scheduling.journal.sql import execute, query
from scheduling.models import Cell, StatisticsReader

log = structlog.get_logger(__name__)

AT_ONCE = 20_000
# After a longer pause, it is unknown for which reasons tasks were pending.
LONGEST_PAUSE_S = 120.0
NOT_EXAMINED = "not-examined"


def statistics_read(cell: Cell, *, now: dt.datetime, seconds: float = 20.0, at_once: int = AT_ONCE) -> int:
    """Read the new events of a cell for at most about `seconds` seconds. Return the number of events that were read.

    Each transaction reads about `at_once` events. Locks the cell's row of `StatisticsReader`. Does nothing if another
    process has locked it.
    """
    until, read = time.monotonic() + seconds, 0
    StatisticsReader.objects.get_or_create(cell=cell)
    while True:
        try:
            number = _read_part(cell, now, at_once)
        except _PartMissing as missing:
            log.warning(
                "a part of the journal is missing; the statistics go on from the present state of the cell",
                cell=cell.name,
                reason=str(missing),
            )
            _begin_with_rows(cell, now, instead_of=missing.revision)
            continue
        read += number
        if number < at_once or time.monotonic() >= until:
            return read


def _read_part(cell: Cell, now: dt.datetime, at_once: int) -> int:
    with transaction.atomic():
        own = StatisticsReader.objects.select_for_update(skip_locked=True).filter(cell=cell).first()
        if own is None:
            return 0
        is_prod = _prod_rule()
        state = msgspec.msgpack.decode(zlib.decompress(own.state), type=FoldState) if own.state else FoldState()
        fold = Fold(state, is_prod)
        newest = journal.newest(cell.id)
        records = journal.tail(cell.id, after=own.revision, limit=at_once)
        following = records[0].revision if records else newest + 1
        if newest < own.revision or (records and following > own.revision + 1):
            raise _PartMissing(own.revision, following)
        fold.apply_all((record.event, record.time.timestamp()) for record in records)
        if records:
            own.revision = records[-1].revision
        caught_up = len(records) < at_once
        if caught_up:
            fold.advance(now.timestamp())
            passed_s = (now - own.read_at).total_seconds() if own.read_at else 0.0
            _count_pending(fold.tallies, cell, is_prod, now, max(0.0, min(passed_s, LONGEST_PAUSE_S)))
            own.read_at = max(now, own.read_at or now)
        _count_packages(fold.tallies, fold.starts)
        _add(cell.id, fold.tallies)
        _keep(own, fold)
    return len(records)


class _PartMissing(Exception):
    """Raised if the database no longer contains the events after the revision `revision`, or never had them, because
    the cell was restored. `following`: the revision that follows instead.
    """

    def __init__(self, revision: int, following: int) -> None:
        super().__init__(f"the last revision that was read is {revision}, but the journal continues with {following}")
        self.revision = revision


def _begin_with_rows(cell: Cell, now: dt.datetime, *, instead_of: int) -> None:
    """Replace the stored state of a cell's statistics by a state that is made from the cell's present rows. This is
    needed if events are missing, so that the journal cannot be read further. Does nothing unless the stored state is at
    the revision `instead_of`.
    """
    from scheduling.master import snapshot  # compiled kernels, which other processes need not load

    taken = snapshot.take(cell.id)
    with transaction.atomic():
        own = StatisticsReader.objects.select_for_update().get(cell=cell)
        if own.revision == instead_of:
            fold = Fold(FoldState(), _prod_rule())
            fold.begin(taken.events, now=now.timestamp())
            own.revision = taken.revision
            _keep(own, fold)


def _keep(own: StatisticsReader, fold: Fold) -> None:
    own.state = zlib.compress(msgspec.msgpack.encode(fold.state), 1)
    own.save()


def _prod_rule() -> Callable[[int], bool]:
    bands = admission.bands()
    known: dict[int, bool] = {}

    def is_prod(priority: int) -> bool:
        if priority not in known:
            try:
                known[priority] = band_of(priority, bands).prod
            except LookupError:  # the band of an old job may have changed
                known[priority] = False
        return known[priority]

    return is_prod


def _count_pending(
    tallies: Tallies, cell: Cell, is_prod: Callable[[int], bool], now: dt.datetime, passed_s: float
) -> None:
    """Count the time that tasks have been pending since the last call, by the main reason of their verdict. The
    journal does not contain these reasons.
    """
    if not passed_s:
        return
    pending: dict[tuple[bool, str], int] = defaultdict(int)
    for priority, number in query(
        "SELECT priority, sum(tasks_pending) FROM scheduling_job WHERE cell_id = %s AND state <> 'dead'"
        " AND tasks_pending > 0 AND kind = 'job' GROUP BY priority",
        [cell.id],
    ):
        pending[is_prod(priority), NOT_EXAMINED] += int(number)
    for priority, code, number in query(
        "SELECT j.priority, w.why->>'code', sum(least((w.why->'tasks'->0->>1)::bigint, j.tasks_pending))"
        " FROM scheduling_pendingverdict AS v JOIN scheduling_job AS j ON j.id = v.job_id,"
        " jsonb_array_elements(v.whys) AS w(why)"
        " WHERE j.cell_id = %s AND j.state <> 'dead' AND j.tasks_pending > 0 AND j.kind = 'job' GROUP BY 1, 2",
        [cell.id],
    ):
        examined = min(int(number), pending[is_prod(priority), NOT_EXAMINED])
        pending[is_prod(priority), NOT_EXAMINED] -= examined
        pending[is_prod(priority), code or NOT_EXAMINED] += examined
    for (prod, reason), number in pending.items():
        if number:
            for tally in tallies.at(now.timestamp(), Figure.PENDING, prod=prod, label=reason):
                tally.add(number * passed_s, number=0)


def _count_packages(tallies: Tallies, starts: Iterable[Start]) -> None:
    """Count starts for each package that the started tasks use. Makes at most one query."""
    starts = list(starts)
    names = _packages({(start.job_id, start.spec_version) for start in starts})
    for start in starts:
        for name in names.get((start.job_id, start.spec_version), ()):
            for figure, seconds in ((Figure.PACKAGE_INSTALL, start.install_s), (Figure.PACKAGE_TOTAL, start.total_s)):
                for tally in tallies.at(start.at, figure, prod=start.prod, label=name):
                    tally.observe(max(0.0, seconds))


def _packages(wanted: set[tuple[int, int]]) -> Mapping[tuple[int, int], list[str]]:
    """Return the packages of specs, as tenant/name, by (job id, version)."""
    if not wanted:
        return {}
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    pairs = sorted(wanted)
    for job_id, version, tenant, reference in query(
        "SELECT s.job_id, s.version, t.name, p.reference FROM unnest(%s::bigint[], %s::integer[]) AS w(job_id, version)"
        " JOIN scheduling_jobspec AS s USING (job_id, version) JOIN scheduling_job AS j ON j.id = s.job_id"
        " JOIN quota_tenant AS t ON t.id = j.tenant_id,"
        " jsonb_array_elements_text(coalesce(s.spec->'task'->'packages', '[]')) AS p(reference)"
        " WHERE s.packages <> '{}' ORDER BY 1, 2, 4",
        [[job for job, _ in pairs], [version for _, version in pairs]],
    ):
        found[job_id, version].append(f"{tenant}/{reference.split('@')[0]}"[:200])
    return found


def _add(cell_id: int, tallies: Mapping[TallyKey, Tally]) -> None:
    """Add tallies to the rows of the database, in the order of their keys. Makes one statement."""
    if not tallies:
        return
    rows = sorted(tallies.items())
    execute(
        "INSERT INTO scheduling_journaltally AS t (cell_id, hour, figure, prod, label, number, total, buckets)"
        " SELECT %s, to_timestamp(n.hour), n.figure, n.prod, n.label, n.number, n.total, n.buckets::bigint[]"
        " FROM unnest(%s::bigint[], %s::text[], %s::boolean[], %s::text[], %s::bigint[], %s::float8[], %s::text[])"
        " AS n(hour, figure, prod, label, number, total, buckets)"
        " ON CONFLICT (cell_id, hour, figure, prod, label) DO UPDATE SET number = t.number + excluded.number,"
        " total = t.total + excluded.total, buckets = ARRAY(SELECT coalesce(b.old, 0) + coalesce(b.new, 0)"
        " FROM unnest(t.buckets, excluded.buckets) WITH ORDINALITY AS b(old, new, place) ORDER BY b.place)",
        [
            cell_id,
            [key.hour for key, _ in rows],
            [key.figure.value for key, _ in rows],
            [key.prod for key, _ in rows],
            [key.label for key, _ in rows],
            [tally.number for _, tally in rows],
            [tally.total for _, tally in rows],
            ["{" + ",".join(map(str, tally.buckets)) + "}" for _, tally in rows],
        ],
    )


assert TOTAL == 0  # `to_timestamp(0)` is the hour of totals
