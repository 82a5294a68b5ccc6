"""The files of a cell's archive that a query reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from quota.vocabulary.errors import Rejected
from scheduling.history.archive.store import EVENTS, USAGE, local_file
from scheduling.history.infrastore.columns import DERIVED
from scheduling.history.infrastore.pruning import begin_of
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
    manifest = Manifest(cell, tables)
    local: dict[str, Path] = {}
    with ExitStack() as stack:

        def paths(files: Sequence[ArchiveFile]) -> list[Path]:
            local.update({file.key: _local(stack, file) for file in files if file.key not in local})
            return [local[file.key] for file in files]

        begins = {name: begin_of(name, since) for name in tables}
        until = manifest.until(USAGE)
        yield ArchivedFiles(
            paths={name: paths(manifest.files(name, since=begin)) for name, begin in begins.items()},
            underived={
                name: paths(manifest.underived(name, since=begin)) for name, begin in begins.items() if name in DERIVED
            },
            revision=manifest.until(EVENTS),
            usage_until=dt.datetime.fromtimestamp(until + 1, dt.UTC) if until else None,
        )


class Manifest:
    """The files of some tables of a cell's archive at one moment. The files of events and usage are always included."""

    def __init__(self, cell: Cell, tables: Iterable[str]) -> None:
        self._files: dict[str, list[ArchiveFile]] = {name: [] for name in (*tables, EVENTS, USAGE)}
        rows = ArchiveFile.objects.filter(cell=cell, table__in=self._files).order_by("first").defer("sha256", "content")
        for file in rows:
            file.cell = cell
            self._files[file.table].append(file)

    def until(self, table: str) -> int:
        """Return the last revision, or the last second since the epoch, that the files of a table cover; 0 if there are
        none.
        """
        return max((file.last for file in self._files[table]), default=0)

    def files(self, table: str, *, since: dt.datetime | None = None) -> list[ArchiveFile]:
        """Return the files of a table that have rows, oldest first, without those of days before `since`."""
        return [
            file
            for file in self._files[table]
            if file.rows and file.state != ArchiveState.DELETED and (since is None or file.day >= since.date())
        ]

    def underived(self, table: str, *, since: dt.datetime | None = None) -> list[ArchiveFile]:
        """Return the files of events for which the derived table `table` has no file yet, oldest first."""
        derived = {file.first for file in self._files[table]}
        return [file for file in self.files(EVENTS, since=since) if file.first not in derived]


def _local(stack: ExitStack, file: ArchiveFile) -> Path:
    try:
        return stack.enter_context(local_file(file))
    except (StoreAway, NotThere) as error:
        detail = f"the file {file.key} of the archive cannot be read: {error}; try again, or ask an SRE to repair it"
        raise Rejected("archive-away", detail, status=503) from error
