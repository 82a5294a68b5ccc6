"""Files with the names of one cell each. They are written when names change and at the end, and read at the start.

    table ─► Capture ─► blocks, in slices of the loop ─► thread: file.new, fsync, rename ─► <cell>.names
    <cell>.names ─► whole? ours? fresh? ─► table, stale until the journal is reached ─► Follower continues from there

An unusable file is logged and left alone: the next snapshot replaces it.
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
from naming.following.snapshots import Capture, Head, Unusable, read_head, restore
from naming.table.table import NameTable

log = structlog.get_logger(__name__)

EVERY_S = 60.0  # at most, while names move
IDLE_S = 600.0  # while only leases and the like move: the journal's tail must reach back to here
FIRST_S = 5.0  # after the names were read
_LOOK_S = 1.0
_PAUSE_S = 0.001  # between two slices
_SUFFIX = ".names"


class SnapshotKeeper:
    """Stores a follower's tables in `folder`. `clock`: seconds since the epoch."""

    def __init__(self, follower: Follower, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._follower = follower
        self._folder = folder
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="names")
        # By cell: the time of the last attempt (the loop's clock), and what is on disk.
        self._written: dict[str, tuple[float, Head | None]] = {}
        self.failed = 0

    async def load(self, only: frozenset[str] = frozenset()) -> int:
        """Load the usable files into the follower. Return the number of cells. `only`: names of cells, empty for
        all.
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
                    self._written[head.cell] = (asyncio.get_running_loop().time(), head)  # to be removed
                    raise Unusable(f"a newer snapshot has this cell under the name {other.cell}")
                table = NameTable(head.cell)
                for _ in restore(data, head, table):
                    await asyncio.sleep(0)
            except (OSError, Unusable) as error:
                log.warning("snapshot of names ignored", file=str(path), reason=str(error))
                continue
            self._follower.start_from(head.cell_id, table, head.history_id)
            self._written[head.cell] = (asyncio.get_running_loop().time(), head)
            loaded[head.cell_id] = head
            log.info(
                "names read from a snapshot",
                cell=head.cell,
                revision=head.revision,
                serial=table.serial,
                age_s=round(self._clock() - head.written_at),
                took_s=round(time.monotonic() - began, 2),
            )
        return len(loaded)

    def _checked(self, path: Path, head: Head) -> Head:
        zone = self._follower.directory.zone
        age_s = self._clock() - head.written_at
        if head.zone != zone:
            raise Unusable(f"it is of zone {head.zone}, this resolver answers for {zone}")
        if head.cell != path.stem:
            raise Unusable(f"it belongs to cell {head.cell}, not to {path.stem}")
        if age_s > EXPIRE_S:
            raise Unusable(f"it is {age_s / 86_400:.0f} days old; the limit is {EXPIRE_S / 86_400:.0f} days")
        return head

    def written_at(self, cell: str) -> float:
        """Return when the cell's file was written, in seconds since the epoch; 0 if there is none."""
        _, head = self._written.get(cell, (0.0, None))
        return 0.0 if head is None else head.written_at

    async def run(self) -> None:
        """Keep snapshots until cancelled."""
        await asyncio.sleep(FIRST_S)
        while True:
            now = asyncio.get_running_loop().time()
            for table in list(self._follower.directory.cells.values()):
                if self._due(table, now):
                    await self._try(table, pause_s=_PAUSE_S)
            self._forget()
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """A last time, without pauses; nothing may be applied to the tables any more."""
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
        except Exception:  # answers don't end because the next start would lack a file
            self.failed += 1
            log.exception("snapshot of names not written", cell=table.cell)

    async def _keep(self, table: NameTable, *, pause_s: float) -> None:
        follower = self._follower
        cell_id, history_id = follower.identity(table)
        loop = asyncio.get_running_loop()
        capture = Capture(
            table, zone=follower.directory.zone, cell_id=cell_id, history_id=history_id, written_at=self._clock()
        )
        _, before = self._written.get(table.cell, (0.0, None))
        self._written[table.cell] = (loop.time(), before)  # should it fail: not again before its time
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
            log.warning("snapshot of names not written", file=str(path), error=str(error))
            return
        self._written[table.cell] = (loop.time(), capture.head)
        log.info(
            "snapshot of names written",
            cell=table.cell,
            revision=capture.head.revision,
            bytes=size,
            took_s=round(loop.time() - began, 2),
        )

    def _forget(self) -> None:
        """Delete files of cells that no longer exist, so that they are not answered after the next start."""
        directory = self._follower.directory
        for cell in [cell for cell in self._written if cell not in directory.cells]:
            del self._written[cell]
            path = self._folder / f"{cell}{_SUFFIX}"
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("cannot delete the snapshot of a cell that was removed", file=str(path), error=str(error))
            else:
                log.info("deleted the snapshot of a cell that was removed", file=str(path))


def _write(path: Path, parts: list[bytes]) -> int:
    """Write a file atomically to the disk. Return its size in bytes."""
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
