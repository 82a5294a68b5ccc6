"""Tests of attacks on the process that runs SQL queries. The grammar check before it is left out on purpose.

Each layer of protection must hold alone.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quota.vocabulary.errors import Rejected
from scheduling.history.infrastore.columns import TABLES
from scheduling.history.infrastore.process import query_process
from scheduling.history.infrastore.process.protocol import ChildRequest, Form, Limits, TableSource
from scheduling.history.infrastore.tables import SCHEMAS

COLUMNS = tuple(column.name for column in TABLES["jobs"].columns)
AT = dt.datetime(2026, 11, 27)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Parquet file with a job of tenant `own` and a job of tenant `other`."""
    file = tmp_path_factory.mktemp("archive") / "jobs.parquet"
    rows = [
        {"collection_id": number, "user": user, "collection_name": f"job-of-{user}", "created_at": AT}
        for number, user in enumerate(("own", "other"))
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMAS["jobs"]), file)
    return file


def run(query: str, archive: Path, users: tuple[str, ...] | None = ("own",), **limits: float) -> list[list[object]]:
    given = {"seconds": 20.0, "memory_mib": 256, "threads": 2, "most_rows": 100, "most_bytes": 2**20} | limits
    tables = {"jobs": TableSource(columns=COLUMNS, users=users, files=(str(archive),))}
    request = ChildRequest(sql=query, tables=tables, limits=msgspec.convert(given, Limits), form=Form.JSON)
    found: list[list[object]] = msgspec.json.decode(query_process.run(request).body)
    return found


def test_rows_of_other_tenants_are_not_in_the_process(archive: Path) -> None:
    assert run("SELECT collection_name FROM jobs", archive) == [["job-of-own"]]
    assert run("SELECT collection_name FROM jobs ORDER BY 1", archive, users=None) == [["job-of-other"], ["job-of-own"]]
    assert run("SELECT collection_name FROM jobs", archive, users=()) == []
    assert run("SELECT count(*) FROM jobs", archive, users=("own' OR 1=1 --",)) == [[0]]
    # Every table of every schema.
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main'"
    assert run(tables, archive) == [["jobs"]]


@pytest.mark.parametrize("users", [("own",), None], ids=["tenant", "SRE"])
@pytest.mark.parametrize(
    "attack",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM '/etc/passwd'",
        "ATTACH '{folder}/x.db'",
        "COPY jobs TO '{folder}/x.csv'",
        "SET enable_external_access = true",
        "LOAD httpfs",
        "SELECT * FROM 'https://127.0.0.1:1/x.parquet'",
        "CREATE TABLE x AS SELECT 1",
        "SELECT 1; SELECT 2",
        "SELECT getenv('PATH')",
    ],
)
def test_the_process_has_no_way_out(attack: str, users: tuple[str, ...] | None, archive: Path, tmp_path: Path) -> None:
    with pytest.raises(Rejected) as caught:
        run(attack.format(folder=tmp_path), archive, users)
    assert caught.value.code == "query-failed"
    assert str(tmp_path) not in caught.value.detail
    assert os.listdir(tmp_path) == []


def test_a_tenant_cannot_read_the_file_of_the_archive(archive: Path) -> None:
    attack = f"SELECT collection_name FROM read_parquet('{archive}')"
    with pytest.raises(Rejected, match="something other than the tables"):
        run(attack, archive)


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        ("SELECT count(*) FROM range(10000000000) a, range(1000000) b WHERE a.range + b.range = -1", "query-too-slow"),
        ("WITH RECURSIVE r AS (SELECT 1 n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r", "query-too-slow"),
        ("SELECT repeat('x', 2000000000) || repeat('y', 2000000000)", "query-too-large"),
        ("SELECT array_agg(repeat('x', 1000) || range) FROM range(100000000)", "query-too-large"),
    ],
)
def test_endless_and_huge_queries_end(attack: str, code: str, archive: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(Rejected) as caught:
        run(attack, archive, seconds=2.0, memory_mib=128)
    assert caught.value.code in (code, "query-too-slow")  # a busy machine may not fill the memory in time
    assert time.monotonic() - begin < 2.0 + query_process._GRACE_S


def test_a_large_result_is_cut(archive: Path) -> None:
    assert len(run("SELECT * FROM range(1000000)", archive)) == 100
    wide = run("SELECT repeat('x', 100000) FROM range(100)", archive)
    assert len(wide) < 15


def test_a_busy_portal_asks_to_try_again(archive: Path) -> None:
    taken = [query_process._running.acquire(blocking=False) for _ in range(query_process.MOST_AT_ONCE)]
    try:
        assert all(taken)
        with pytest.raises(Rejected) as caught:
            run("SELECT 1", archive)
        assert (caught.value.status, caught.value.figures) == (503, {"retry_after_s": 5})
    finally:
        for _ in taken:
            query_process._running.release()
