"""The clock of the simulated year. All processes share it: this one, the web process, and PostgreSQL.

    real time + shift = time of the year

The shift is 8 bytes of a file, which processes map into their memory, and a row that functions of PostgreSQL read. They
have the names of PostgreSQL's own functions and come first in the search path, so SQL of production needs no change.
"""

from __future__ import annotations

import datetime as dt
import mmap
import struct
from pathlib import Path

_SHIFT = struct.Struct("<q")  # microseconds
_SQL = """
CREATE TABLE IF NOT EXISTS public.bench_clock (shift interval NOT NULL);
INSERT INTO public.bench_clock SELECT interval '0' WHERE NOT EXISTS (SELECT FROM public.bench_clock);
"""
_FUNCTION = (
    "CREATE OR REPLACE FUNCTION public.{name}() RETURNS timestamptz LANGUAGE sql {kind}"
    " AS 'SELECT pg_catalog.{name}() + shift FROM public.bench_clock'"
)
_FUNCTIONS = {
    "clock_timestamp": "VOLATILE",
    "now": "STABLE",
    "statement_timestamp": "STABLE",
    "transaction_timestamp": "STABLE",
}


class Clock:
    """The shift in a file. `follow` replaces Django's clock; call it before the first import of a model."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(_SHIFT.pack(0))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), _SHIFT.size)

    def follow(self) -> None:
        from django.utils import timezone

        timezone.now = self.now

    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.UTC) + self._shift()

    def set(self, moment: dt.datetime) -> None:
        """Move the clock, so that it is `moment` now. After the first call, it does not go back."""
        from scheduling.journal.sql import execute

        if self._shift() and moment <= self.now():
            return
        shift = moment - dt.datetime.now(dt.UTC)
        _SHIFT.pack_into(self._shared, 0, shift // dt.timedelta(microseconds=1))
        execute("UPDATE bench_clock SET shift = %s", [shift])

    def _shift(self) -> dt.timedelta:
        return dt.timedelta(microseconds=_SHIFT.unpack_from(self._shared)[0])


def install_in_postgres() -> None:
    """Create the functions. New connections use them."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(_SQL)
        for name, kind in _FUNCTIONS.items():
            cursor.execute(_FUNCTION.format(name=name, kind=kind))
        cursor.execute(f"ALTER DATABASE {connection.settings_dict['NAME']} SET search_path = public, pg_catalog")
    connection.close()
