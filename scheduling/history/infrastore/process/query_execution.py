"""The process that runs one query. It reads a `ChildRequest` from standard input and writes the result.

    load tables ─► seal: DuckDB's settings, limits of the kernel ─► run the query ─► write the rows

Sealing takes place before the query is given to DuckDB. A query that only sees rows of some tenants finds no file that
it could open: all its rows are in memory, and the kernel gives the process no further file or socket. A query that sees
all rows of the cell may open only the archive's files of this cell, which it may read anyway.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
import threading
import time

import duckdb
import msgspec

from scheduling.history.infrastore.process.loading import Loader
from scheduling.history.infrastore.process.protocol import AnswerHead, ChildRequest, Form, Limits
from scheduling.history.infrastore.process.results import Result, write_result

# Address space beyond DuckDB's own limit: Python, the libraries, stacks of threads and the result.
_BASE_MIB = 1536
_MIB = 2**20
# Open files of a query that reads the archive itself.
_MOST_FILES = 256
_STANDARD_FILES = 3
_SETTINGS = (
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET allow_persistent_secrets = false",
    "SET python_enable_replacements = false",
    "SET python_scan_all_frames = false",
    "SET temp_directory = ''",
    "SET TimeZone = 'UTC'",
    "SET enable_progress_bar = false",
    "SET errors_as_json = false",
)
_EVERY_TYPE = (
    "SELECT 1, 1.5, 1.5::DECIMAL(5, 2), 'a', 'a'::BLOB, true, now(), now()::TIMESTAMP, current_date, TIME '00:00',"
    " uuid(), [1], {'a': 1}, MAP {'a': 1}, NULL, 1::HUGEINT"
)


def main() -> None:
    """Run the query in standard input, and write the answer to standard output."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ChildRequest)
    _limit_process(request.limits)
    head, result = _answer(request)
    output = sys.stdout.buffer
    output.write(msgspec.json.encode(head) + b"\n")
    output.write(result.body)
    output.flush()
    os._exit(0)  # a thread of DuckDB may still be busy


def _limit_process(limits: Limits) -> None:
    os.nice(5)
    os.environ.clear()
    for kind, most in (
        (resource.RLIMIT_AS, (limits.memory_mib + _BASE_MIB) * _MIB),
        (resource.RLIMIT_CPU, int(limits.seconds * limits.threads) + 10),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _answer(request: ChildRequest) -> tuple[AnswerHead, Result]:
    """Run the request. Every failure becomes an answer with a code and a message."""
    limits, begin = request.limits, time.monotonic()
    database = duckdb.connect(":memory:", config={"threads": limits.threads, "memory_limit": f"{limits.memory_mib}MiB"})
    timer = threading.Timer(limits.seconds, database.interrupt)
    timer.daemon = True
    timer.start()
    try:
        for setting in _SETTINGS:
            database.execute(setting)
        files = Loader(database, request).load()
        _warm_up(database, request)
        _seal(database, files)
        loaded = time.monotonic()
        result = _run(database, request)
    except (duckdb.Error, MemoryError, OSError, RecursionError, UnicodeError) as error:
        return _failure(error, limits), Result()
    finally:
        timer.cancel()
    return AnswerHead(
        columns=result.columns,
        rows=result.rows,
        cut=result.cut,
        seconds=round(time.monotonic() - loaded, 4),
        load_seconds=round(loaded - begin, 4),
    ), result


def _warm_up(database: duckdb.DuckDBPyConnection, request: ChildRequest) -> None:
    """Make DuckDB and Python load every module that a query may need, because no file can be opened afterwards."""
    write_result(database, _EVERY_TYPE, request.form, request.limits)
    if request.form is not Form.PARQUET:  # Parquet has no intervals
        write_result(database, "SELECT INTERVAL 1 DAY", request.form, request.limits)
    duckdb.extract_statements(_EVERY_TYPE)
    with contextlib.suppress(duckdb.Error):
        database.execute("SELECT no_such_column")


def _seal(database: duckdb.DuckDBPyConnection, files: list[str]) -> None:
    """Take from this process the rights that the query does not need: the query can open only `files`, and it cannot
    change DuckDB's settings. This cannot be undone.
    """
    if files:
        paths = ", ".join("'" + path.replace("'", "''") + "'" for path in files)
        database.execute(f"SET allowed_paths = [{paths}]")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    most = _MOST_FILES if files else _STANDARD_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _run(database: duckdb.DuckDBPyConnection, request: ChildRequest) -> Result:
    statements = duckdb.extract_statements(request.sql)
    if len(statements) != 1 or statements[0].type is not duckdb.StatementType.SELECT:
        raise duckdb.InvalidInputException("the query is not one SELECT statement; send only one SELECT")
    return write_result(database, statements[0], request.form, request.limits)


def _failure(error: BaseException, limits: Limits) -> AnswerHead:
    if isinstance(error, duckdb.InterruptException):
        detail = f"the query took longer than {limits.seconds:g} s; read a shorter period with :since, or fewer tables"
        return AnswerHead(code="query-too-slow", detail=detail)
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        detail = f"the query needs more than {limits.memory_mib} MiB of memory; read a shorter period, or fewer columns"
        return AnswerHead(code="query-too-large", detail=detail)
    if isinstance(error, OSError | duckdb.IOException | duckdb.PermissionException):
        # The message may contain the path of a file.
        return AnswerHead(code="query-failed", detail="the query tried to read something other than the tables")
    # The rest of a message repeats the query, or lists all variants of a function.
    text = re.split(r"\n+\s*(?:LINE |Candidate functions|Candidate macros)", str(error))[0]
    return AnswerHead(code="query-failed", detail=" ".join(text.split())[:1000])


if __name__ == "__main__":
    main()
