"""The files of a cell's archive that a query reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from quota.vocabulary.errors import Rejected
from scheduling.history.archive.store import EVENTS, USAGE, local_file
from scheduling.history.infrastore.columns import DERIVED
from scheduling.history.infrastore.process.protocol import TableSource
from scheduling.models import ArchiveFile, ArchiveState, Cell
from scheduling.storage.files import NotThere, StoreAway


class Manifest:
    """The files of some tables of a cell's archive at one moment. The files of events and usage are always included."""

    def __init__(self, cell: Cell, tables: Iterable[str]) -> None:
        self._files: dict[str, list[ArchiveFile]] = {name: [] for name in (*tables, EVENTS, USAGE)}
        rows = ArchiveFile.objects.filter(cell=cell, table__in=self._files).order_by("first").defer("content")
        for file in rows:
            file.cell = cell
            self._files[file.table].append(file)

    def until(self, table: str) -> int:
        """Return the last revision, or the last second since the epoch, that the files of a table cover; 0 if there are
        none.
        """
        return max((file.last for file in self._files[table]), default=0)

    @property
    def usage_until(self) -> dt.datetime | None:
        """Return the time before which the usage is in the archive, or None if no usage is archived."""
        until = self.until(USAGE)
        return dt.datetime.fromtimestamp(until + 1, dt.UTC) if until else None

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


@contextmanager
def with_files(sources: Mapping[str, TableSource], manifest: Manifest) -> Iterator[dict[str, TableSource]]:
    """Yield the sources of the tables of a query with their files of the archive. Files of an object store are copied
    to this host until the `with` block ends. Raises `Rejected` if the archive cannot be read.
    """
    local: dict[str, str] = {}
    with ExitStack() as stack:

        def paths(files: Sequence[ArchiveFile]) -> tuple[str, ...]:
            local.update({file.key: _local(stack, file) for file in files if file.key not in local})
            return tuple(local[file.key] for file in files)

        yield {
            name: msgspec.structs.replace(
                source,
                files=paths(manifest.files(name, since=source.since)),
                event_files=paths(manifest.underived(name, since=source.since)) if name in DERIVED else (),
            )
            for name, source in sources.items()
        }


def _local(stack: ExitStack, file: ArchiveFile) -> str:
    try:
        return str(stack.enter_context(local_file(file)))
    except (StoreAway, NotThere) as error:
        detail = f"the file {file.key} of the archive cannot be read: {error}; try again, or ask an SRE to repair it"
        raise Rejected("archive-away", detail, status=503) from error
