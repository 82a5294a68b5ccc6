"""The files of a cell's archive that a query reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from quota.vocabulary.errors import Rejected
from scheduling.history.archive import ranges
from scheduling.history.archive.ranges import EVENTS, USAGE
from scheduling.history.archive.store import local_file
from scheduling.history.infrastore.columns import DERIVED
from scheduling.history.infrastore.sources import ArchivedFiles
from scheduling.models import ArchiveFile, ArchiveState, Cell
from scheduling.storage.files import NotThere, StoreAway


@contextmanager
def archived_files(cell: Cell, tables: Sequence[str], since: Mapping[str, dt.datetime]) -> Iterator[ArchivedFiles]:
    """Yield the archived files that the tables of a query come from. Files of an object store are copied to this host
    until the `with` block ends.

    `tables`, `since`: the tables of the query, and the times before which it reads no row of them. Raises `Rejected` if
    the archive cannot be read.
    """
    # The rows of machines depend on all earlier events of the machines.
    begins = {name: None if name.startswith("machine_") else since.get(name) for name in tables}
    wanted = {
        EVENTS: [begin for name, begin in begins.items() if name in DERIVED or name == EVENTS],
        USAGE: [begin for name, begin in begins.items() if name == USAGE],
    }
    with ExitStack() as stack:
        paths = {
            table: [_local(stack, file) for file in _files(cell, table, of_tables)]
            for table, of_tables in wanted.items()
            if of_tables
        }
        last = ranges.archived_until(cell, USAGE)
        yield ArchivedFiles(
            paths=paths,
            revision=ranges.archived_until(cell, EVENTS),
            usage_until=dt.datetime.fromtimestamp(last + 1, dt.UTC) if last else None,
        )


def _files(cell: Cell, table: str, begins: Sequence[dt.datetime | None]) -> list[ArchiveFile]:
    """Return the files of a table, oldest first, without those of days before all times in `begins`."""
    files = ArchiveFile.objects.filter(cell=cell, table=table, rows__gt=0).exclude(state=ArchiveState.DELETED)
    known = [begin.date() for begin in begins if begin is not None]
    if len(known) == len(begins):
        files = files.filter(day__gte=min(known))
    return list(files.select_related("cell").order_by("first"))


def _local(stack: ExitStack, file: ArchiveFile) -> Path:
    try:
        return stack.enter_context(local_file(file))
    except (StoreAway, NotThere) as error:
        detail = f"the file {file.key} of the archive cannot be read: {error}; try again, or ask an SRE to repair it"
        raise Rejected("archive-away", detail, status=503) from error
