"""Stores the names of each cell in a file. The resolver reads the files when it starts, and writes them when names
change and when it ends.

    table ─► Capture ─► blocks, in small steps ─► thread: new file, fsync, rename ─► <cell>.names
    <cell>.names ─► complete, of this zone and recent? ─► table ─► the follower continues from this table

If a file is not usable, the resolver writes a log line and keeps the file. The next snapshot of the cell replaces it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from naming.dns.zones.nodes import EXPIRE_S
from naming.following.follower import Follower
from naming.following.snapshot_format import Capture, Head, Unusable, read_head, restore
from naming.table.table import NameTable

log = structlog.get_logger(__name__)

EVERY_S = 60.0  # between two files of a cell while names change
IDLE_S = 600.0  # between two files while no name changes; the journal must reach back to the last file
FIRST_S = 5.0  # wait after the start
_LOOK_S = 1.0
_PAUSE_S = 0.001  # between two steps
_SUFFIX = ".names"


class SnapshotKeeper:
    """Writes the tables of a follower to snapshot files in `folder`, and loads these files. `clock`: a function that
    returns the time in seconds since the epoch.
    """

    def __init__(self, follower: Follower, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._follower = follower
        self._folder = folder
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="names")
        # By cell: the time of the last attempt (the loop's clock), and the head of the file on disk.
        self._written: dict[str, tuple[float, Head | None]] = {}
        self.failed = 0

    async def load(self, only: frozenset[str] = frozenset()) -> int:
        """Load the usable files into the follower. Return the number of loaded cells.

        `only`: the names of the cells to load; empty: all cells.
        """
        loaded: dict[int, Head] = {}  # by cell
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if only and path.stem not in only:
                continue
            began = time.monotonic()
            try:
                data = path.read_bytes()
                head = self._checked(path, read_head(data))
                other = loaded.get(head.cell_id)
                if other is not None and other.written_at > head.written_at:
                    self._written[head.cell] = (asyncio.get_running_loop().time(), head)  # `_forget` deletes the file
                    raise Unusable(
                        f"a newer file contains this cell under the name {other.cell}; this old file is deleted"
                    )
                table = NameTable(head.cell)
                for _ in restore(data, head, table):
                    await asyncio.sleep(0)
            except (OSError, Unusable) as error:
                log.warning(
                    "the resolver ignores a snapshot file of DNS names; it reads the missing names from PostgreSQL",
                    file=str(path),
                    reason=str(error),
                )
                continue
            self._follower.start_from(head.cell_id, table, head.history_id)
            self._written[head.cell] = (asyncio.get_running_loop().time(), head)
            loaded[head.cell_id] = head
            age_s, took_s = round(self._clock() - head.written_at), round(time.monotonic() - began, 2)
            log.info(
                "the resolver loaded the DNS names of a cell from its snapshot file",
                cell=head.cell,
                revision=head.revision,
                age_s=age_s,
                took_s=took_s,
            )
        return len(loaded)

    def _checked(self, path: Path, head: Head) -> Head:
        zone = self._follower.directory.zone
        age_s = self._clock() - head.written_at
        if head.zone != zone:
            raise Unusable(
                f"the snapshot belongs to zone {head.zone}, but this resolver answers for {zone}; the next snapshot "
                "replaces it"
            )
        if head.cell != path.stem:
            raise Unusable(
                f"the snapshot belongs to cell {head.cell}, but its file has the name of cell {path.stem}; the next "
                "snapshot replaces it"
            )
        if age_s > EXPIRE_S:
            raise Unusable(
                f"the snapshot is {age_s / 86_400:.0f} days old, and the limit is {EXPIRE_S / 86_400:.0f} days; the "
                "next snapshot replaces it"
            )
        return head

    def written_at(self, cell: str) -> float:
        """Return the time at which the cell's file was written, in seconds since the epoch; 0 if there is no file."""
        _, head = self._written.get(cell, (0.0, None))
        return 0.0 if head is None else head.written_at

    async def run(self) -> None:
        """Write each cell's file at regular intervals if the cell's names have changed. Runs until its asyncio task is
        cancelled.
        """
        await asyncio.sleep(FIRST_S)
        while True:
            now = asyncio.get_running_loop().time()
            for table in list(self._follower.directory.cells.values()):
                if self._due(table, now):
                    await self._try(table, pause_s=_PAUSE_S)
            self._forget()
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Write the files of all changed tables, without pauses. Call this method when the tables do not change any
        more.
        """
        for table in list(self._follower.directory.cells.values()):
            if self._due(table, float("inf")):
                await self._try(table, pause_s=0.0)
        self._forget()
        self._thread.shutdown()

    def _due(self, table: NameTable, now: float) -> bool:
        if not table.ready:
            return False
        at, head = self._written.get(table.cell, (float("-inf"), None))
        if head is not None:
            same = head.history_ordinal == table.history_ordinal
            if same and head.revision == table.revision:
                return False
            if same and head.names_revision == table.names_revision:
                return now - at >= IDLE_S
        return now - at >= EVERY_S

    async def _try(self, table: NameTable, *, pause_s: float) -> None:
        try:
            await self._keep(table, pause_s=pause_s)
        except Exception:  # the resolver must go on, even if it cannot write the file
            self.failed += 1
            log.exception("the resolver cannot write a snapshot of DNS names to its file", cell=table.cell)

    async def _keep(self, table: NameTable, *, pause_s: float) -> None:
        follower = self._follower
        cell_id, history_id = follower.identity(table)
        loop = asyncio.get_running_loop()
        capture = Capture(
            table, zone=follower.directory.zone, cell_id=cell_id, history_id=history_id, written_at=self._clock()
        )
        _, before = self._written.get(table.cell, (0.0, None))
        self._written[table.cell] = (loop.time(), before)  # after a failure, the next attempt is at the usual time
        parts: list[bytes] = []
        table.before.append(capture.before)
        began = loop.time()
        try:
            for part in capture.blocks():
                parts.append(part)
                await asyncio.sleep(pause_s)
        finally:
            table.before.remove(capture.before)
        path = self._folder / f"{table.cell}{_SUFFIX}"
        try:
            size = await loop.run_in_executor(self._thread, _write, path, parts)
        except OSError as error:
            self.failed += 1
            log.warning(
                "the resolver cannot write a snapshot of DNS names to its file", file=str(path), error=str(error)
            )
            return
        self._written[table.cell] = (loop.time(), capture.head)
        revision, took_s = capture.head.revision, round(loop.time() - began, 2)
        log.info(
            "the resolver wrote a snapshot of the DNS names of a cell to its file",
            cell=table.cell,
            revision=revision,
            bytes=size,
            took_s=took_s,
        )

    def _forget(self) -> None:
        """Delete the files of removed cells, so that the resolver does not answer for them after the next start."""
        directory = self._follower.directory
        for cell in [cell for cell in self._written if cell not in directory.cells]:
            del self._written[cell]
            path = self._folder / f"{cell}{_SUFFIX}"
            try:
                path.unlink(missing_ok=True)
                log.info("the resolver deleted the snapshot file with the DNS names of a removed cell", file=str(path))
            except OSError as error:
                log.warning(
                    "the resolver cannot delete the snapshot file with the DNS names of a removed cell",
                    file=str(path),
                    error=str(error),
                )


def _write(path: Path, parts: list[bytes]) -> int:
    """Replace the file `path` by a file with these parts, and wait until it is on the disk. Return its size in
    bytes.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(descriptor)
            size = file.tell()
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return size
