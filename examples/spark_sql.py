"""Run SQL files on Apache Spark, over the files of a cell's archive.

    spark-submit examples/spark_sql.py ARCHIVE/CELL evictions-by-cause.sql --since 2027-01-01

The folder ARCHIVE/CELL contains one folder per table, such as `instance_usage`, with Parquet files. All Spark workers
must be able to read the folder. The archiver writes no tables of the present state, no orders, and only the old rows of
`metered_hours`. Save these tables to the same folder, instead of any files of the archive, for example with

    borgctl sql "SELECT * FROM jobs" --parquet ARCHIVE/CELL/jobs/jobs.parquet

The program prints the rows of each query as lines of JSON. With the option --output it writes them to files.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

# Sums and quotients of these types would be rounded to 32 bits.
_WIDE = {"float": "double", "int": "bigint", "smallint": "bigint", "array<float>": "array<double>"}


def main() -> None:
    options = _options()
    builder = SparkSession.builder.appName("borg-sql")
    if options.master:
        builder = builder.master(options.master)
    # Times in the files are in UTC.
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.parquet.inferTimestampNTZ.enabled", "false").getOrCreate()
    open_tables(spark, options.folder)
    for path in options.queries:
        found = spark.sql(path.read_text("utf-8"), args={"since": options.since, "until": options.until})
        lines = list(_lines(found))
        if options.output:
            (options.output / f"{path.stem}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        else:
            print(*lines, sep="\n")
    spark.stop()


def open_tables(spark: SparkSession, folder: Path) -> None:
    """Create a temporary view for each table in the folder. A column that an older file lacks is null there."""
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        # Columns are only ever added, so the newest file has all.
        newest = spark.read.parquet(str(max(path.rglob("*.parquet"))))
        # The days in the names of folders would become a column.
        table = spark.read.schema(newest.schema).option("recursiveFileLookup", True).parquet(str(path))
        wide = [f.col(f"`{name}`").cast(_WIDE.get(kind, kind)).alias(name) for name, kind in newest.dtypes]
        table.select(wide).createOrReplaceTempView(path.name)


def _options() -> argparse.Namespace:
    now = dt.datetime.now(dt.UTC)
    parser = argparse.ArgumentParser(description="Run SQL files on Apache Spark, over the files of a cell's archive.")
    parser.add_argument("folder", type=Path, help="folder with one folder per table")
    parser.add_argument("queries", type=Path, nargs="+", help="files with one query each")
    parser.add_argument("--since", type=_time, default=now - dt.timedelta(days=7), help="value of :since")
    parser.add_argument("--until", type=_time, default=now, help="value of :until")
    parser.add_argument("--master", help="address of the cluster, if spark-submit has not set it")
    parser.add_argument("--output", type=Path, help="folder for the results, one file per query")
    return parser.parse_args()


def _time(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


def _lines(found: DataFrame) -> Iterator[str]:
    """Yield the rows of a result as JSON: first the names of the columns, then the values of each row."""
    yield json.dumps(found.columns)
    for row in found.collect():
        yield json.dumps([_plain(value) for value in row])


def _plain(value: Any) -> Any:
    match value:
        case Decimal():
            return float(value)
        case dt.datetime():  # Spark returns times in the time zone of this computer
            return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
        case dt.date():
            return value.isoformat()
        case Row():
            return {name: _plain(one) for name, one in value.asDict().items()}
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case list():
            return [_plain(one) for one in value]
    return value


if __name__ == "__main__":
    main()
