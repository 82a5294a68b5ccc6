"""Tests that each ready query gives the same rows in DuckDB and Apache Spark, over a million windows of usage.

`make test-spark` installs Spark and runs this test. `make test` leaves it out, because it takes minutes.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduling.history.infrastore import grammar, ready_queries
from scheduling.history.infrastore.process import query_process
from scheduling.history.infrastore.process.protocol import ChildRequest, Form, Limits, TableSource
from scheduling.history.infrastore.pruning import columns_of
from tests.made_history import BEGIN, MadeHistory

REPOSITORY = Path(__file__).resolve().parents[2]
SPARK = REPOSITORY / "build/spark/bin/python"
# Sums of floating-point numbers depend on their order.
TOLERANCE = 1e-9
LIMITS = Limits(seconds=60, memory_mib=2048, threads=2, most_rows=10_000, most_bytes=2**26)
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> MadeHistory:
    made = MadeHistory(tmp_path_factory.mktemp("history"), 1_000_000, 10)
    made.write()
    return made


@pytest.fixture(scope="module")
def of_spark(history: MadeHistory, tmp_path_factory) -> Path:
    """Return the folder with the results of all ready queries on a Spark cluster of two workers."""
    assert SPARK.exists(), "Spark is not installed; run `make test-spark`"
    output = tmp_path_factory.mktemp("spark")
    files = [
        str(REPOSITORY / f"scheduling/history/infrastore/queries/{query.name}.sql") for query in ready_queries.queries()
    ]
    command = [str(SPARK), str(REPOSITORY / "examples/spark_sql.py"), str(history.folder), *files]
    command += ["--since", BEGIN.isoformat(), "--master", "local-cluster[2,1,1024]", "--output", str(output)]
    # A cluster of two small workers is slow with the default of 200 parts per shuffle.
    options = "--conf spark.sql.shuffle.partitions=4 --conf spark.ui.enabled=false pyspark-shell"
    environment = os.environ | {"PYSPARK_SUBMIT_ARGS": options}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return output


def of_duckdb(history: MadeHistory, query: str) -> tuple[list[str], list[list[Any]]]:
    checked = grammar.check(query, {"since": BEGIN})
    tables = {
        name: TableSource(
            columns=columns_of(name, checked.names),
            users=None,
            files=tuple(map(str, sorted((history.folder / name).glob("day=*/*.parquet")))),
        )
        for name in checked.tables
    }
    request = ChildRequest(sql=checked.sql, tables=tables, limits=LIMITS, form=Form.JSON)
    answer = query_process.run(request)
    return [column.name for column in answer.head.columns], msgspec.json.decode(answer.body)


def ordered(rows: Sequence[list[Any]]) -> list[list[Any]]:
    """Sort rows by their texts and whole numbers, and then by their floating-point numbers."""
    return sorted(rows, key=lambda row: ([repr(one) for one in row if not isinstance(one, float)], repr(row)))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=TOLERANCE)
    return bool(one == other)


@pytest.mark.parametrize("query", ready_queries.queries(), ids=lambda query: query.name)
def test_duckdb_and_spark_agree_row_by_row(
    query: ready_queries.ReadyQuery, history: MadeHistory, of_spark: Path
) -> None:
    names, rows = of_duckdb(history, query.sql)
    found_names, *found = map(json.loads, (of_spark / f"{query.name}.jsonl").read_text("utf-8").splitlines())
    assert found_names == names
    assert len(found) == len(rows)
    for ours, theirs in zip(ordered(rows), ordered(found), strict=True):
        assert all(map(same, ours, theirs)), f"DuckDB returns {ours}, and Spark {theirs}"
    assert rows
