"""Tests of metered hours that move to the archive: every sum over them stays the same, to the micro-credit."""

from __future__ import annotations

import base64
import datetime as dt
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from django.test.utils import CaptureQueriesContext
from pyarrow import parquet as pq

from quota import clock
from quota.admission.suggested_quota import usage_of
from quota.billing.costs import costs, job_usage_price
from quota.billing.invoices import invoices_close_due
from quota.billing.ledger_check import ledger_check
from quota.billing.metering import MeteredRow, meter, usage_charge
from quota.billing.planning import hours_of
from quota.models import Membership, MeteredHour, PriorityBand
from quota.models import metered_hours as module
from quota.models.metered_hours import HoursWanted, held, metered_hours
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import CapabilityKind, Principal, Role, Scope
from scheduling.history.archive import metered
from scheduling.history.archive.archiver import ArchiveFailed, Archiver
from scheduling.history.archive.metrics import ArchiveCollector
from scheduling.history.archive.store import store
from scheduling.history.erasure.erasing import Eraser
from scheduling.history.erasure.identities import IdentityKind
from scheduling.history.infrastore import archive_files as archived_module
from scheduling.history.infrastore import asking, exported_rows
from scheduling.models import ArchiveFile, Cell
from tests.integration import money_rows as market
from tests.integration import portal_world, rows, world
from tests.integration.portal_server import database_url
from tests.integration.test_archive_failures import _KILLED
from tests.integration.test_costs import BEGIN, DAY, HOUR, bought, ran

pytestmark = pytest.mark.django_db
NOW = dt.datetime(2026, 6, 4, 5, 20, tzinfo=dt.UTC)
SRE = Principal(name="sre", sre=True, scopes=frozenset({Scope.READ}))
# On June 4th, March is archived, and April is not.
MARCH, APRIL = range(18, 30), range(31 * 24, 31 * 24 + 5)
STEPS = ["stored", "checked", "moved", "recorded", "emptied", "dropped"]


@pytest.fixture(autouse=True)
def folder(settings, tmp_path) -> Path:
    settings.BORG_ARCHIVE = (tmp_path / "archive").as_uri()
    return tmp_path / "archive"


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def tenant(cell):
    """Return a tenant with an order and metered hours in March and April, all charged and on closed invoices."""
    market.a_price_list(usage={"cpu": 1_003})
    with clock.at(BEGIN - DAY):
        tenant = market.funded(amount=10**15)
    with clock.at(BEGIN):
        bought(tenant, 1_000_003, days=365)
        bought(tenant, 77, days=9, band="batch")
    for hour in (*MARCH, *APRIL):
        report = [
            row(tenant, "web", 3_333, 777, labels={"team": 'a "b", ü'}),
            row(tenant, "db", 9_999, 1),
            row(tenant, "cheap", 5_000, 5, band=""),
        ]
        meter(cell="cc", hour=BEGIN + hour * HOUR, rows=report)
    invoices_close_due(NOW - 20 * DAY)
    with clock.at(NOW):
        yield tenant


def archive(*, now: dt.datetime = NOW) -> None:
    connection.check_constraints()  # PostgreSQL does not drop a table whose foreign keys it has still to check
    Archiver(store()).run(now=now)


def row(tenant, job: str, milli: int, used: int, *, band: str = "production", labels=None) -> MeteredRow:
    limit, use = ((value * 3600, 5 * 2**60, 0, 0, 0, 0) for value in (milli, used))
    return MeteredRow(tenant.pk, band, uid(job), job, labels or {}, limit, limit, use)


def uid(job: str) -> str:
    return f"{sum(job.encode()):032x}"


def sums(tenant) -> dict[str, Any]:
    """Return everything that is computed from metered hours, for periods with archived hours."""
    odd = BEGIN + 20 * HOUR + dt.timedelta(minutes=45)
    periods = [(BEGIN, BEGIN + 60 * DAY), (odd, odd + 10 * HOUR), (odd, BEGIN + 40 * DAY), (BEGIN + 30 * DAY, NOW)]
    band, span = PriorityBand.objects.get(name="production"), {"since": BEGIN, "until": NOW.replace(minute=0)}
    found: dict[str, Any] = {
        f"{by} {since} {until}": costs([tenant], since=since, until=until, by=by, label="team")
        for by in ("job", "label", "band")
        for since, until in periods
    }
    found |= {
        f"price of {job}": job_usage_price(tenant=tenant.pk, cell="cc", job_uid=uid(job), since=BEGIN)
        for job in ("web", "db")
    }
    found["sizing"] = usage_of(SRE, tenant, "cc", "production", days=95)
    with hours_of(SRE, tenant, **span) as hours:
        found["places"] = hours.places()
        found |= {f"planned {one}": hours.planned("cc", one, step=DAY) for one in (band, None)}
    return found


def history() -> list[Any]:
    return ask("SELECT *, labels['team'] AS team FROM metered_hours ORDER BY ALL")


def ask(query: str, principal: Principal = SRE) -> list[Any]:
    cell = Cell.objects.get(name="cc")
    found: list[Any] = msgspec.json.decode(asking.ask(principal=principal, cell=cell, query=query, now=NOW).body)
    return found


def unsettled(cell: Cell) -> dt.timedelta:
    """Return the age of the oldest hour that cannot be archived, after a check that the metric exists."""
    (metric,) = (one for one in ArchiveCollector().collect() if one.name == "borg_archive_unsettled_age_seconds")
    (sample,) = metric.samples
    age = metered.unsettled_age_s(cell, now=NOW)
    assert (sample.labels, sample.value > 0) == ({"cell": "cc"}, age > 0)
    return dt.timedelta(seconds=age)


def in_postgres() -> int:
    return MeteredHour.objects.count()


def archived() -> list[tuple[int, int]]:
    """Return the id and the price of each hour in the files of the manifest."""
    found: list[tuple[int, int]] = []
    for file in ArchiveFile.objects.filter(table="metered_hours").order_by("id"):
        assert file.state == "sole"
        with store().local(file.key) as path:
            read = pq.read_table(path, columns=["id", "price_microcredits"])
        found += zip(*(column.to_pylist() for column in read.columns), strict=True)
    return sorted(found)


def test_every_sum_over_archived_hours_stays_the_same(tenant, cell) -> None:
    before, stored = (sums(tenant), history()), sorted(MeteredHour.objects.values_list("id", "price"))
    assert before[0]["price of web"] > 0
    assert {row[-1] for row in before[1]} == {'a "b", ü', None}
    assert metered.due(now=NOW)
    assert metered.lag_s(cell, now=NOW) == dt.timedelta(days=64 - 35, hours=5, minutes=20).total_seconds()
    archive()
    assert (in_postgres(), len(archived())) == (3 * len(APRIL), 3 * len(MARCH))
    assert sorted([*archived(), *MeteredHour.objects.values_list("id", "price")]) == stored
    assert not metered.due(now=NOW)
    assert metered.lag_s(cell, now=NOW) == 0
    assert (sums(tenant), history()) == before
    assert ledger_check() == []
    archive(now=NOW + 1_000 * DAY)
    assert len(archived()) == len(stored), "money never expires"
    assert in_postgres() == 0
    assert (sums(tenant), history()) == before


def test_archived_hours_and_prices_are_for_buyers_and_owners(tenant) -> None:
    query = "SELECT user, count(*), sum(price_microcredits)::bigint FROM metered_hours GROUP BY user"
    roles = {role: world.principal(f"a-{role}", tenant=tenant, role=role) for role in Role}
    helper = Principal(name="eve", capabilities=frozenset({(CapabilityKind.ANY_JOB, "cc")}))

    def answers() -> list[Any]:
        return [ask(query, who) for who in (*roles.values(), helper)]

    before = answers()
    assert {role for role, rows in zip(roles, before, strict=False) if rows} == {Role.BUYER, Role.OWNER}
    assert before[-1] == []
    archive()
    assert answers() == before


def test_a_later_refund_makes_archived_hours_cheaper(tenant) -> None:
    def refunded() -> Any:
        market.refunded(tenant.orders.get(price=1_000_003), 400_001)
        return [costs([tenant], since=BEGIN, until=BEGIN + 60 * DAY, by=by) for by in ("job", "band")]

    before = costs([tenant], since=BEGIN, until=BEGIN + 60 * DAY)
    with transaction.atomic():
        expected = refunded()
        transaction.set_rollback(True)
    archive()
    assert costs([tenant], since=BEGIN, until=BEGIN + 60 * DAY) == before
    assert refunded() == expected
    assert expected[0] != before


def test_hours_stay_until_they_are_charged_and_their_month_is_closed(tenant, cell) -> None:
    other = market.funded("other", amount=10**9)
    ran(other, "late", 1_000, hours=MARCH, used=500)
    ran(other, "free", 1_000, hours=MARCH, band="")
    assert MeteredHour.objects.filter(tenant=other, price=0).count() == len(MARCH)
    oldest = NOW - (BEGIN + MARCH[0] * HOUR)
    assert unsettled(cell) == oldest
    archive()
    left = MeteredHour.objects.filter(tenant=other)
    assert set(left.values_list("job", "posting")) == {("late", None)}, "an hour without a price is archived"
    with clock.at(NOW):
        assert len(usage_charge()) == 1
    archive()
    assert left.count() == len(MARCH), "the invoice with these hours is not closed"
    assert (unsettled(cell), metered.lag_s(cell, now=NOW)) == (oldest, 0)
    invoices_close_due(NOW)
    assert (unsettled(cell), metered.lag_s(cell, now=NOW) > 0) == (dt.timedelta(), True)
    before = costs([other], since=BEGIN, until=NOW)
    archive()
    assert left.count() == 0
    assert costs([other], since=BEGIN, until=NOW) == before
    assert ArchiveFile.objects.filter(table="metered_hours").count() == 2


def test_reports_of_this_month_and_the_last_one_make_one_query(tenant, django_assert_num_queries) -> None:
    july, august = BEGIN + 122 * DAY, BEGIN + 153 * DAY
    for now, since in ((august - 12 * HOUR, july - 30 * DAY), (august - HOUR / 2, july)):
        with clock.at(now), django_assert_num_queries(1):
            costs([tenant], since=since, until=now)


def test_the_price_of_a_job_needs_no_temporary_table_and_few_hours_no_statistics(tenant) -> None:
    archive()
    with CaptureQueriesContext(connection) as found:
        assert job_usage_price(tenant=tenant.pk, cell="cc", job_uid=uid("web"), since=BEGIN) > 0
        assert not any("TEMPORARY" in query["sql"] for query in found)
        costs([tenant], since=BEGIN, until=NOW)
    statements = [query["sql"].split()[0] for query in found]
    assert "CREATE" in statements
    assert "ANALYZE" not in statements


def test_the_archiver_and_the_price_of_a_job_find_their_hours_by_the_unique_index(tenant, cell) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            'INSERT INTO quota_meteredhour (tenant_id, cell, job_uid, job, hour, labels, "limit", reserved, used,'
            " price)"
            " SELECT %s, c, md5(c || n || h), 'j', h, '{}'::jsonb, '{}'::numeric[], '{}'::numeric[], '{}'::numeric[], 1"
            " FROM unnest(%s::text[]) AS c, generate_series(1, 3) AS n,"
            " generate_series(%s::timestamptz, %s::timestamptz, '1 hour') AS h",
            [tenant.pk, ["cd", "ce", "cf"], BEGIN, NOW],
        )
        cursor.execute("ANALYZE quota_meteredhour")
        with CaptureQueriesContext(connection) as found:
            assert metered.next_hours(cell, now=NOW) is not None
            job_usage_price(tenant=tenant.pk, cell="cc", job_uid=uid("web"), since=BEGIN + 61 * DAY)
        statements = [query["sql"] for query in found if "quota_meteredhour" in query["sql"]]
        assert len(statements) == 3
        for statement in statements:
            cursor.execute(f"EXPLAIN {statement}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert re.search(r"quota_meteredhour_\d+_cell_hour_job_uid_band_id_key", plan), plan
        assert "hour = ANY" in plan, "the price of a job reads only hours since the job began"
        assert not re.search(r"_20260[34] .*\n.*hour = ANY", plan), "and only the months since then"


def slow_reader(wanted: HoursWanted) -> Iterator[bytes]:
    for part in (b"1\n", b"2\n3\n"):
        time.sleep(0.15)
        yield part


def test_the_time_limit_of_a_statement_does_not_include_the_time_to_read_files(tenant, settings) -> None:
    settings.QUOTA_ARCHIVED_HOURS = f"{__name__}.slow_reader"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 100")
        with metered_hours(HoursWanted(["price"], since=BEGIN)) as hours:
            cursor.execute(f"SELECT sum(price) FROM {hours} AS m")
            assert cursor.fetchone()[0] > 6
            cursor.execute("SELECT sum(price) FROM quota_archivedhour")
            assert cursor.fetchone() == (6,)
        cursor.execute("SET LOCAL statement_timeout = 0")  # the end of the test checks all foreign keys


def test_the_archiver_goes_on_if_hours_vanish_while_it_chooses(cell, tenant, monkeypatch) -> None:
    choose = metered._oldest

    def choose_and_delete(*args: Any, **given: Any) -> Any:
        oldest = choose(*args, **given)
        MeteredHour.objects.all().delete()
        return oldest

    monkeypatch.setattr(metered, "_oldest", choose_and_delete)
    assert metered.next_hours(cell, now=NOW) is None


def test_a_late_report_of_an_archived_hour_is_not_counted_twice(tenant, cell) -> None:
    archive()
    before, hour = sums(tenant), BEGIN + MARCH[3] * HOUR

    def report(job: str, band: str = "production") -> int:
        return meter(cell="cc", hour=hour, rows=[row(tenant, job, 3_333, 900, band=band)])

    assert (report("web"), report("cheap", "")) == (0, 0), "they are in the archive"
    assert sums(tenant) == before
    assert report("new") == 1
    assert report("web", "batch") == 1
    invoices_close_due(NOW)
    invoices_close_due(NOW + 40 * DAY)
    with clock.at(NOW):
        after = {cost.key: cost.usage for cost in costs([tenant], since=BEGIN, until=NOW)}
    prices = dict(MeteredHour.objects.filter(hour=hour).values_list("job", "price"))
    assert after["ubar/cc/new"] == prices["new"] > 0
    archive(now=NOW)
    assert MeteredHour.objects.filter(hour=hour).count() == 0
    assert {cost.key: cost.usage for cost in costs([tenant], since=BEGIN, until=NOW)} == after
    assert report("new") == 0


@pytest.mark.django_db(transaction=True)
def test_an_hour_that_changes_while_it_is_archived_is_archived_as_it_is(tenant) -> None:
    def change(step: str) -> None:
        if step == "checked":
            MeteredHour.objects.filter(job="cheap", hour=BEGIN + MARCH[0] * HOUR).update(limit=[7, 0, 0, 0, 0, 0])

    with pytest.raises(ArchiveFailed, match="have just changed; the next run archives them"):
        Archiver(store(), at=change).run(now=NOW)
    assert (archived(), in_postgres()) == ([], 3 * (len(MARCH) + len(APRIL)))
    before = sums(tenant)
    archive()
    assert len(archived()) == 3 * len(MARCH)
    assert sums(tenant) == before


def test_a_file_that_cannot_be_read_is_an_error_and_not_a_smaller_sum(tenant, folder, cell, settings) -> None:
    archive()
    (file,) = ArchiveFile.objects.filter(table="metered_hours")
    (folder / file.key).unlink()
    for reader in (
        lambda: costs([tenant], since=BEGIN, until=BEGIN + 60 * DAY),
        lambda: job_usage_price(tenant=tenant.pk, cell="cc", job_uid=uid("web"), since=BEGIN),
        lambda: usage_of(SRE, tenant, "cc", "production", days=95),
        lambda: meter(cell="cc", hour=BEGIN, rows=[row(tenant, "x", 1, 1)]),
        lambda: ask("SELECT count(*) FROM metered_hours"),
    ):
        with pytest.raises(Rejected, match=r"of the archive.* cannot be read") as caught:
            reader()
        assert (caught.value.code, caught.value.status) == ("archive-away", 503)
    assert costs([tenant], since=BEGIN + 31 * DAY, until=NOW), "April is in PostgreSQL"


def test_a_damaged_second_file_is_an_error_that_names_it_and_changes_nothing(tenant, folder, monkeypatch) -> None:
    monkeypatch.setattr(metered, "MOST_ROWS", 2 * len(MARCH))
    before = sums(tenant), history()
    archive()
    first, second = ArchiveFile.objects.filter(table="metered_hours").order_by("id")
    manifest = list(ArchiveFile.objects.order_by("id").values())
    whole = (folder / second.key).read_bytes()
    flipped = bytearray(whole)
    flipped[300] ^= 64

    def read_costs() -> Any:
        return costs([tenant], since=BEGIN, until=BEGIN + 60 * DAY)

    for content in (whole[:-1_000], bytes(flipped)):
        (folder / second.key).write_bytes(content)
        for reader in (read_costs, history):
            with pytest.raises(Rejected, match=rf"{second.key} is damaged; restore the file from a backup") as caught:
                reader()
            assert (caught.value.code, caught.value.status) == ("archive-away", 503)
        archive(now=NOW + HOUR)
        assert in_postgres() == 3 * len(APRIL)
        assert list(ArchiveFile.objects.order_by("id").values()) == manifest
        assert (folder / first.key).exists()
        assert (folder / second.key).read_bytes() == content
        out = io.StringIO()
        with pytest.raises(CommandError, match="1 of 2 files of the archive cannot be used; restore"):
            call_command("archive", verify=True, stderr=out)
        assert second.key in out.getvalue()
        assert first.key not in out.getvalue()
    (folder / second.key).write_bytes(whole)
    assert (sums(tenant), history()) == before
    call_command("archive", verify=True, stdout=io.StringIO())
    ArchiveFile.objects.filter(pk=first.pk).update(rows=7)
    with pytest.raises(CommandError, match="1 of 2 files"):
        call_command("archive", verify=True, stderr=io.StringIO())


def test_encrypted_hours_are_read_as_others_and_need_their_key(tenant, folder, settings) -> None:
    settings.BORG_HOME, settings.BORG_ARCHIVE_KEYS = folder.parent, base64.b64encode(bytes(32)).decode()
    before = sums(tenant), history()
    archive()
    (path,) = folder.rglob("*.parquet")
    assert path.read_bytes()[:8] == b"BORGSEAL"
    assert in_postgres() == 3 * len(APRIL)
    assert (sums(tenant), history()) == before
    settings.BORG_ARCHIVE_KEYS = ""
    for reader in (lambda: costs([tenant], since=BEGIN, until=NOW), history):
        with pytest.raises(Rejected, match=r"is encrypted with the key .*; add the key to BORG_ARCHIVE_KEYS") as caught:
            reader()
        assert (caught.value.code, caught.value.status) == ("archive-away", 503)


def test_the_costs_of_a_month_read_only_the_files_of_this_month(tenant, folder) -> None:
    april, may = BEGIN + 31 * DAY, BEGIN + 61 * DAY
    for hour in (april - HOUR, may):
        meter(cell="cc", hour=hour, rows=[row(tenant, "cheap", 5_000, 5, band="")])
    month = {"since": april, "until": may}
    before = costs([tenant], **month)
    april_of_web = MeteredHour.objects.filter(job="web", hour__gte=april)
    price = sum(april_of_web.values_list("price", flat=True))
    archive(now=NOW + 1_000 * DAY)
    assert in_postgres() == 0
    files = {file.day.month: folder / file.key for file in ArchiveFile.objects.filter(table="metered_hours")}
    assert set(files) == {3, 4, 5}
    files[3].unlink()
    assert job_usage_price(tenant=tenant.pk, cell="cc", job_uid=uid("web"), since=april) == price > 0
    files[5].unlink()
    assert costs([tenant], **month) == before


def test_reports_of_a_tenant_read_no_files_of_other_tenants(tenant, folder, monkeypatch) -> None:
    other = market.funded("other", amount=10**9)
    ran(other, "free", 1_000, hours=MARCH, band="")
    month = {"since": BEGIN, "until": BEGIN + 31 * DAY}
    monkeypatch.setattr(metered, "MOST_ROWS", 3 * len(MARCH))
    before = [costs([one], **month) for one in (tenant, other)]
    archive()
    first, second = ArchiveFile.objects.filter(table="metered_hours").order_by("tenant_first")
    assert (first.tenant_first, first.tenant_last, second.tenant_first, second.tenant_last) == (
        *(tenant.pk, tenant.pk),
        *(other.pk, other.pk),
    )
    for lost, others in ((second, (tenant, other)), (first, (other, tenant))):
        content = (folder / lost.key).read_bytes()
        (folder / lost.key).unlink()
        assert costs([others[0]], **month) == before[others[0] is other]
        with pytest.raises(Rejected, match="cannot be read"):
            costs([others[1]], **month)
        (folder / lost.key).write_bytes(content)
    ArchiveFile.objects.update(tenant_first=None, tenant_last=None)
    assert [costs([one], **month) for one in (tenant, other)] == before, "a file without the tenants is always read"


def test_an_erased_tenant_has_a_pseudonym_in_the_archive_and_keeps_its_costs(tenant) -> None:
    archive()
    before = costs([tenant], since=BEGIN, until=NOW)
    admin = Principal(name="sre", sre=True, scopes=frozenset(Scope))
    done = Eraser(store()).erase(IdentityKind.TENANT, "ubar", principal=admin, now=NOW)
    assert (done.rows, done.files) == (3 * len(MARCH), 1)
    assert costs([tenant], since=BEGIN, until=NOW) == before
    invoices_close_due(NOW)
    archive(now=NOW + 40 * DAY)
    ((name, number),) = ask("SELECT user, count(*) FROM metered_hours GROUP BY user")
    assert name.startswith("erased-")
    assert number == 3 * (len(MARCH) + len(APRIL))


@pytest.mark.django_db(transaction=True)
def test_an_archiver_that_is_killed_at_any_step_loses_and_doubles_nothing(tenant, folder, settings) -> None:
    before, stored = sums(tenant), sorted(MeteredHour.objects.values_list("id", "price"))
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "portal.settings.test",
        "BORG_DATABASE_URL": database_url(),
        "BORG_ARCHIVE": settings.BORG_ARCHIVE,
    }
    program = _KILLED.replace("timezone.now()", f"timezone.datetime.fromisoformat('{NOW.isoformat()}')")
    done = subprocess.run(
        [sys.executable, "-c", program, *STEPS], env=environment, capture_output=True, text=True, check=True
    )
    killed = dict(line.split() for line in done.stdout.splitlines() if line.count(" ") == 1)
    assert killed == dict.fromkeys(STEPS, str(int(signal.SIGKILL)))
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('quota_meteredhour_202603'), to_regclass('quota_meteredhour_202604')")
        assert cursor.fetchone() == (None, "quota_meteredhour_202604"), "only the month without rows is dropped"
    archive()
    assert sorted([*archived(), *MeteredHour.objects.values_list("id", "price")]) == stored
    assert in_postgres() == 3 * len(APRIL)
    assert sums(tenant) == before
    keys = [file.key for file in ArchiveFile.objects.all()]
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")] == keys


def test_the_page_planning_reads_the_archive_once(tenant) -> None:
    archive()
    Membership.objects.create(user=portal_world.person("ann"), tenant=tenant, role=Role.OWNER)
    client = portal_world.signed_in("ann")
    for path in ("/planning/?tenant=ubar&days=365", "/planning.csv?tenant=ubar&days=365"):
        with CaptureQueriesContext(connection) as found:
            assert client.get(path).status_code == 200
        assert sum("TEMPORARY" in query["sql"] for query in found) == 1


@pytest.mark.django_db(transaction=True)
def test_a_query_holds_the_lock_only_while_it_exports_metered_hours(tenant, monkeypatch) -> None:
    archive()
    steps: list[tuple[str, int]] = []

    def watch(owner: Any, name: str, step: Callable[..., str]) -> None:
        function = getattr(owner, name)

        def watched(*args: Any) -> Any:
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
                steps.append((step(*args), cursor.fetchone()[0]))
            return function(*args)

        monkeypatch.setattr(owner, name, watched)

    watch(archived_module, "local_file", lambda file: f"file of {file.table}")
    watch(exported_rows, "_copy", lambda path, statement, values, name: f"rows of {name}")
    ((hours, machines),) = ask("SELECT (SELECT count(*) FROM metered_hours), (SELECT count(*) FROM machines)")
    assert (hours, machines) == (3 * (len(MARCH) + len(APRIL)), 0)
    assert steps == [("rows of metered_hours", 1), ("rows of machines", 0), ("file of metered_hours", 0)]
    steps.clear()
    ask("SELECT count(*) FROM machines")
    assert steps == [("rows of machines", 0)]


@pytest.mark.django_db(transaction=True)
def test_no_hour_moves_while_a_reader_reads_and_new_readers_do_not_wait(tenant, monkeypatch) -> None:
    checked = threading.Event()
    failures: list[str] = []

    def run() -> None:
        try:
            Archiver(store(), at=lambda step: checked.set() if step == "checked" else None).run(now=NOW)
        except ArchiveFailed as error:
            failures.append(str(error))
        finally:
            connection.close()

    def nothing_waits(cursor: CursorWrapper) -> bool:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return cursor.fetchone() == (0,)

    for longest, expected in ((0.0, (3 * (len(MARCH) + len(APRIL)), 0)), (60.0, (3 * len(APRIL), 1))):
        monkeypatch.setattr(module, "LONGEST_WAIT_S", longest)
        checked.clear()
        thread = threading.Thread(target=run)
        with held(), connection.cursor() as cursor:
            thread.start()
            assert checked.wait(30)
            for _ in range(15):
                assert nothing_waits(cursor), "PostgreSQL makes new readers wait behind the archiver"
                time.sleep(0.01)
            assert not ArchiveFile.objects.exists()
            assert in_postgres() == 3 * (len(MARCH) + len(APRIL))
        thread.join()
        assert (in_postgres(), ArchiveFile.objects.count()) == expected
    assert len(failures) == 1
    assert "the next run archives these hours" in failures[0]
