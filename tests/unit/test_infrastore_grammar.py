"""Tests of which SQL queries are accepted, and of how the others are rejected before DuckDB gets them."""

from __future__ import annotations

import datetime as dt

import pytest
import sqlglot

from scheduling.history.infrastore import ready_queries
from scheduling.history.infrastore.grammar import CheckedQuery, QueryError, check

SINCE = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
PARAMETERS = {"since": SINCE, "until": SINCE + dt.timedelta(days=7)}


def checked(query: str) -> CheckedQuery:
    return check(query, PARAMETERS)


ATTACKS = {
    "a file": "SELECT * FROM '/etc/passwd'",
    "a Parquet file": "SELECT * FROM 'archive.parquet'",
    "a quoted file": 'SELECT * FROM "/etc/passwd"',
    "read_csv": "SELECT * FROM read_csv('/etc/passwd')",
    "read_csv_auto": "SELECT * FROM read_csv_auto('/etc/passwd')",
    "read_text": "SELECT * FROM read_text('/etc/passwd')",
    "read_blob": "SELECT * FROM read_blob('/etc/passwd')",
    "read_json": "SELECT * FROM read_json('/etc/passwd')",
    "read_parquet": "SELECT * FROM read_parquet('x')",
    "parquet_scan": "SELECT * FROM parquet_scan('x')",
    "parquet_metadata": "SELECT * FROM parquet_metadata('x')",
    "glob": "SELECT * FROM glob('/etc/*')",
    "sniff_csv": "SELECT * FROM sniff_csv('/etc/passwd')",
    "a function in a subquery": "SELECT * FROM jobs WHERE user IN (SELECT content FROM read_text('/etc/passwd'))",
    "a lateral function": "SELECT * FROM jobs, LATERAL (SELECT * FROM read_text(jobs.user))",
    "the network": "SELECT * FROM 'https://example.org/x.csv'",
    "another database": "SELECT * FROM postgres_scan('dbname=borg', 'public', 'auth_user')",
    "postgres_query": "SELECT * FROM postgres_query('x', 'SELECT 1')",
    "ATTACH": "ATTACH 'x.db'",
    "DETACH": "DETACH memory",
    "COPY": "COPY jobs TO 'x.csv'",
    "COPY FROM": "COPY jobs FROM 'x.csv'",
    "EXPORT": "EXPORT DATABASE 'x'",
    "INSTALL": "INSTALL httpfs",
    "LOAD": "LOAD httpfs",
    "PRAGMA": "PRAGMA database_list",
    "SET": "SET memory_limit = '100GB'",
    "RESET": "RESET memory_limit",
    "CALL": "CALL pragma_version()",
    "USE": "USE memory",
    "EXPLAIN": "EXPLAIN SELECT 1",
    "DESCRIBE": "DESCRIBE jobs",
    "DESCRIBE in a FROM": "SELECT * FROM (DESCRIBE jobs)",
    "SHOW": "SHOW ALL TABLES",
    "SHOW in a FROM": "SELECT * FROM (SHOW ALL TABLES)",
    "SUMMARIZE": "SUMMARIZE jobs",
    "CREATE": "CREATE TABLE x AS SELECT 1",
    "CREATE MACRO": "CREATE MACRO f() AS 1",
    "INSERT": "INSERT INTO jobs SELECT * FROM jobs",
    "INSERT in a WITH": "WITH x AS (INSERT INTO jobs VALUES (1) RETURNING *) SELECT * FROM x",
    "DROP": "DROP TABLE jobs",
    "UPDATE": "UPDATE jobs SET user = 'x'",
    "DELETE": "DELETE FROM jobs",
    "PIVOT": "PIVOT jobs ON user USING count(*)",
    "PREPARE": "PREPARE x AS SELECT 1",
    "a transaction": "BEGIN",
    "several statements": "SELECT 1; SELECT 2",
    "a statement after a comment": "SELECT 1 /* ; */; DROP TABLE jobs",
    "the catalog": "SELECT * FROM information_schema.tables",
    "pg_catalog": "SELECT * FROM pg_catalog.pg_class",
    "sqlite_master": "SELECT * FROM sqlite_master",
    "duckdb_tables": "SELECT * FROM duckdb_tables()",
    "duckdb_settings": "SELECT * FROM duckdb_settings()",
    "duckdb_secrets": "SELECT * FROM duckdb_secrets()",
    "current_setting": "SELECT current_setting('memory_limit')",
    "getenv": "SELECT getenv('HOME')",
    "query": "SELECT * FROM query('SELECT 1')",
    "query_table": "SELECT * FROM query_table('jobs')",
    "a table of the loader": "SELECT * FROM events_of_instance_events",
    "a variable": "SELECT getvariable('x')",
    "a Python variable": "SELECT * FROM request",
    "INTO": "SELECT 1 INTO x",
    "FOR UPDATE": "SELECT * FROM jobs FOR UPDATE",
    "deep nesting": f"SELECT {'(' * 3000}1{')' * 3000}",
    "a long chain": f"SELECT {'1+' * 9000}1",
    "a long query": f"SELECT '{'x' * 30_000}'",
    "a WITH that hides a table": "WITH jobs AS (SELECT 1) SELECT * FROM jobs",
    "a sequence": "SELECT nextval('x')",
    "NUL": "SELECT '\x00'",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_attacks_are_rejected(attack: str) -> None:
    with pytest.raises(QueryError):
        checked(attack)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT user, count(*) FROM jobs GROUP BY user HAVING count(*) > 1 ORDER BY 2 DESC LIMIT 3",
        "FROM jobs",
        "WITH x AS (SELECT 1 AS a UNION ALL SELECT 2) SELECT sum(a) FROM x",
        "SELECT labels['team'], score['fit'] FROM jobs JOIN instance_events USING (collection_id)",
        "SELECT percentile_cont(0.9) WITHIN GROUP (ORDER BY time_us) FROM instance_events",
        "SELECT data->>'$.cause', json_extract_string(data, '$.x') FROM events WHERE kind LIKE 'task.%'",
        "SELECT date_trunc('hour', time), extract(hour FROM time), now() - INTERVAL 7 DAY FROM events",
        "SELECT row_number() OVER (PARTITION BY user ORDER BY time) FROM events QUALIFY 1 = 1",
        "SELECT list_max(cpu_usage_distribution), unnest(tail_cpu_usage_distribution) FROM instance_usage",
        "SELECT CASE WHEN regexp_matches(user, '^a') THEN upper(user) ELSE coalesce(user, '-') END FROM jobs",
        "SELECT 1;",
    ],
)
def test_ordinary_queries_are_accepted(query: str) -> None:
    assert checked(query).sql


def test_the_column_user_is_not_the_user_of_duckdb() -> None:
    assert checked("SELECT user FROM jobs").sql == 'SELECT "user" FROM "jobs"'


def test_values_of_parameters_are_not_parsed() -> None:
    found = check("SELECT 1 FROM jobs WHERE user = :name", PARAMETERS | {"name": "x' OR 1=1 --"})
    assert found.sql.endswith("\"user\" = 'x'' OR 1=1 --'")
    with pytest.raises(QueryError, match=":nope has no value"):
        checked("SELECT 1 FROM jobs WHERE user = :nope")


@pytest.mark.parametrize(
    ("query", "limited"),
    [
        ("SELECT 1 FROM events WHERE time >= :since AND kind = 'x'", True),
        ("SELECT 1 FROM events e WHERE e.time >= TIMESTAMP '2026-11-20'", True),
        ("SELECT 1 FROM events WHERE time >= :since OR true", False),
        ("SELECT 1 FROM events WHERE NOT time >= :since", False),
        ("SELECT 1 FROM events a JOIN events b ON a.seq = b.seq WHERE a.time >= :since", False),
        ("SELECT 1 FROM events WHERE time >= :since UNION ALL SELECT 1 FROM events", False),
        ("SELECT 1 FROM events WHERE time <= :since", False),
        ("SELECT (SELECT max(seq) FROM events) FROM events WHERE time >= :since", False),
        ("WITH x AS (SELECT * FROM events) SELECT * FROM x WHERE time >= :since", False),
        ("SELECT 1 FROM events e JOIN jobs j ON j.user = e.user WHERE time >= :since", False),
    ],
)
def test_a_limit_on_time_is_found_only_where_it_holds(query: str, limited: bool) -> None:
    expected = {"events": SINCE.replace(tzinfo=None)} if limited else {}
    assert checked(query).since == expected


def test_names_of_columns_are_known_unless_a_star_hides_them() -> None:
    assert checked("SELECT count(*), max(seq) FROM events").names == {"events", "seq"}
    assert checked("SELECT * FROM events").names is None
    assert checked("SELECT e FROM events e").names is None


@pytest.mark.parametrize("query", ready_queries.queries(), ids=lambda query: query.name)
def test_ready_queries_are_sql_of_duckdb_and_of_spark(query: ready_queries.ReadyQuery) -> None:
    assert query in ready_queries.by_subject()[query.subject]
    assert query.title
    assert query.about.endswith(".")
    assert checked(query.sql).tables
    for dialect in ("duckdb", "spark"):
        (tree,) = sqlglot.parse(query.sql, read=dialect)
        assert tree is not None
        # The text means the same in both dialects: converted, it differs only in the names of functions.
        assert tree.sql("spark", unsupported_level=sqlglot.ErrorLevel.RAISE)
    trees = [sqlglot.parse_one(query.sql, read=dialect) for dialect in ("duckdb", "spark")]
    assert {type(node) for node in trees[0].walk()} ^ {type(node) for node in trees[1].walk()} == set()
