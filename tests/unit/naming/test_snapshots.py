"""Tests of snapshots of the table of names on disk, with which a resolver starts without its journal."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from naming.dns.zones.directory import Status, ZoneDirectory
from naming.following.follower import Follower
from naming.following.snapshot_format import SLICE, Capture, Unusable, read_head, restore
from naming.following.snapshots import SnapshotKeeper
from naming.table.answering_tasks import PlacedTask, Pool
from naming.table.jobs import Indexes, NamedJob, NamedService
from naming.table.reverse import AddressIndex
from naming.table.table import NameTable
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from tests.memory_news import MemoryNews
from tests.unit.naming.cells import ended, evicted, machine, placed, reported, running, submitted, table_of

CELL, ZONE = 3, "borg.internal"
# These fields only grow, or belong to watchers of the table, and are not compared.
PASSING = {"families", "touched", "before"}


def plain(thing: Any) -> Any:
    """Return everything reachable from a table as plain values, so that a comparison includes new fields."""
    if isinstance(thing, Pool):
        return {task.index: plain(task) for task in thing}
    if isinstance(thing, NamedService):
        return sorted(thing.jobs)  # its revision belongs to this process, which uses it for prepared answers
    if isinstance(thing, AddressIndex):
        return {path: set(thing.owners(path, 99)) for path in thing._owners}
    if isinstance(thing, Indexes):
        return thing.ranges()
    if isinstance(thing, dict):
        return {key: plain(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [plain(value) for value in thing]
    if dataclasses.is_dataclass(thing):
        upwards = {PlacedTask: {"job"}, NamedJob: {"service"}}.get(type(thing), set())
        fields = {field.name for field in dataclasses.fields(thing)} - upwards
        return {name: plain(getattr(thing, name)) for name in fields}
    if isinstance(thing, NameTable):
        return {name: plain(value) for name, value in vars(thing).items() if name not in PASSING}
    return thing


def capture_of(table: NameTable) -> Capture:
    return Capture(table, zone=ZONE, cell_id=CELL, history_id="h", written_at=1_000.0)


def kept(table: NameTable) -> bytes:
    return b"".join(capture_of(table).blocks())


def read(data: bytes) -> NameTable:
    head = read_head(data)
    table = NameTable(head.cell)
    for _ in restore(data, head, table):
        assert not table.ready
    return table


LABELS = {"tier": "a"}, {"service": "front"}, {"service": "back", "tier": "b"}
PUBLISHED = Published(), Published(ttl_s=60), Published(weights=((0, 9, 0), (10, 14, 7)))
PORTS = {1: ("http", "rpc"), 2: ("http",), 3: ("rpc", "http")}  # by version of the spec


def random_events(rng: Random, number: int) -> Iterator[events.Event]:
    """Yield random events of a few jobs and machines. Many are late, or about tasks that do not exist."""
    for _ in range(number):
        yield random_event(rng, rng.randrange(1, 6), rng.randrange(30), rng.randrange(8))


def random_event(rng: Random, job_id: int, index: int, host: int) -> events.Event:
    ids = {"job_id": job_id, "incarnation": rng.randrange(1, 3)}
    version = rng.randrange(1, 4)
    match rng.randrange(60):
        case 0 | 1:
            return machine(host, rng.choice((None, f"2001:db8::{host}")) if host < 6 else None)
        case 2:
            return events.MachineRemoved(machine_id=rng.randrange(6, 8))  # a machine that returns has the same facts
        case 3 | 4:
            return submitted(f"job{job_id}", job_id=job_id, tasks=rng.randrange(1, 30), labels=rng.choice(LABELS))
        case 5:
            return events.JobChanged(
                job_id=job_id,
                priority=1,
                latency_sensitive=False,
                spec_version=version,
                labels=rng.choice(LABELS),
                port_names=PORTS[version],
                published=rng.choice(PUBLISHED),
            )
        case 6:
            return events.JobEnded(job_id=job_id, how="killed")
        case 7:
            return evicted(index, **ids)
        case 8:
            return ended(index, **ids)
        case 9:
            weights = rng.choice(({}, {f"job{job_id}": 3, "job1": 0}))
            return events.ServiceWeighed(
                service=rng.choice(("front", "back")), tenant="ubar", change="set", weights=weights
            )
        case number if number < 34:
            return placed(index, host, **ids, spec_version=version)
        case _:
            return reported(index, rng.choice(("up", "stopping")), **ids, address=rng.choice(("", "10.9.9.9")))


@pytest.mark.parametrize("seed", range(40))
def test_what_is_read_is_the_table_of_the_instant_whatever_happens_while_it_is_written(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("naming.following.snapshot_format.SLICE", 3)
    rng = Random(seed)
    table = table_of(*random_events(rng, 400))
    before = plain(table)
    capture = capture_of(table)
    parts = []
    for part in capture.blocks():
        parts.append(part)
        for event in random_events(rng, 4):
            capture.before(event)
            table.apply(event, table.revision + 1)
    assert len(parts) >= 4
    assert plain(read(b"".join(parts))) == before
    assert plain(table) != before


def test_a_job_that_went_back_to_older_ports_and_a_machine_that_left_under_its_task() -> None:
    facts = {"job_id": 7, "priority": 1, "latency_sensitive": False}
    table = table_of(
        *running(3),
        events.JobChanged(**facts, spec_version=2, port_names=("grpc",)),
        placed(1, 1, incarnation=2, spec_version=2),
        events.JobChanged(**facts, spec_version=1, port_names=("http", "rpc")),
        events.MachineRemoved(machine_id=2),
        events.MachineSet(machine_id=9, hostname="m2", address="10.7.7.7", capacity=()),
    )
    assert plain(read(kept(table))) == plain(table)
    assert table.hosts["m2"].machine_id == 9


def test_no_step_is_longer_than_its_slice() -> None:
    table = table_of(*running(SLICE * 10))
    steps, began = [], time.perf_counter()
    capture = capture_of(table)
    for _ in capture.blocks():
        steps.append(time.perf_counter() - began)
        began = time.perf_counter()
    assert len(steps) > 10
    assert sorted(steps)[len(steps) // 2] < 0.01


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda data: b"", "empty or incomplete"),
        (lambda data: b"x" * 100, "not a snapshot"),
        (lambda data: b'{"format": 99}\n' + data, "format 99"),
        (lambda data: data[: len(data) // 2], "checksum"),
        (lambda data: data[:-1], "checksum"),
        (lambda data: data[:300] + bytes([data[300] ^ 1]) + data[301:], "checksum"),
        (lambda data: signed(data.replace(b'"cell_id":3', b'"cell_id":"x"')), "header of the snapshot cannot be read"),
        (lambda data: signed(data[: data.index(b"\n") + 1] + b"\xff" * 40), "longer than the file"),
        (
            lambda data: signed(data[: data.index(b"\n") + 1] + b"\0\0\0\2\xc3\xc3" + bytes(20)),
            "content of the snapshot cannot be read",
        ),
    ],
)
def test_what_is_damaged_is_refused(spoil: Any, told: str) -> None:
    data = kept(table_of(*running(20)))
    assert read(data).ready
    with pytest.raises(Unusable, match=told):
        read(spoil(data))


def signed(data: bytes) -> bytes:
    """Return the data with its last 16 bytes replaced by the right checksum."""
    return data[:-16] + hashlib.blake2b(data[:-16], digest_size=16).digest()


class Process:
    """One run of the resolver: a follower of the journal and the keeper of its snapshots."""

    def __init__(self, news: MemoryNews, folder: Path, now: float = 5_000.0) -> None:
        self.directory = ZoneDirectory(zone=ZONE)
        self.loaded = asyncio.Event()
        self.follower = Follower(self.directory, news, on_loaded=self.loaded.set)
        self.keeper = SnapshotKeeper(self.follower, folder, clock=lambda: now)

    async def start(self) -> int:
        number = await self.keeper.load()
        self._running = asyncio.create_task(self.follower.run())
        return number

    async def reached(self) -> NameTable:
        async with asyncio.timeout(10):
            await self.loaded.wait()
        return self.directory.cells["cc"]

    async def stop(self) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        await self.keeper.close()


@pytest.fixture
def news() -> MemoryNews:
    memory = MemoryNews()
    memory.add_cell(CELL, "cc")
    memory.write(CELL, running(3))
    return memory


async def one_run(news: MemoryNews, folder: Path) -> None:
    process = Process(news, folder)
    await process.start()
    await process.reached()
    await process.stop()


def test_a_start_without_the_journal_answers_stale_and_goes_on_from_the_tail(news: MemoryNews, tmp_path: Path) -> None:
    async def scenario() -> None:
        await one_run(news, tmp_path)
        news.away = True
        process = Process(news, tmp_path)
        assert await process.start() == 1
        table = process.directory.cells["cc"]
        assert not table.ready
        async with asyncio.timeout(10):
            await process.follower.answers.wait()
        assert table.ready
        assert process.directory.status is Status.STALE
        assert not process.directory.loaded  # another cell may exist, so no negative answers yet
        assert (table.serial, table.counts()) == (1, (1, 3, 3))
        news.away = False
        news.write(CELL, [reported(0, health="unhealthy")])
        assert await process.reached() is table
        assert (process.directory.status, table.serial, table.counts()) == (Status.OK, 2, (1, 3, 2))
        await process.stop()
        assert read_head((tmp_path / "cc.names").read_bytes()).revision == 2

    asyncio.run(scenario())


def test_a_snapshot_that_was_broken_off_by_the_end_is_written_then(
    news: MemoryNews, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("naming.following.snapshots.FIRST_S", 0.0)
    monkeypatch.setattr("naming.following.snapshots._PAUSE_S", 60.0)

    async def scenario() -> None:
        process = Process(news, tmp_path)
        await process.start()
        table = await process.reached()
        keeping = asyncio.create_task(process.keeper.run())
        async with asyncio.timeout(10):
            while not table.before:
                await asyncio.sleep(0.01)
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
        assert not table.before
        assert not (tmp_path / "cc.names").exists()
        await process.stop()
        assert read_head((tmp_path / "cc.names").read_bytes()).revision == table.revision

    asyncio.run(scenario())


def test_another_history_or_a_journal_that_lacks_the_next_revision_is_read_again(
    news: MemoryNews, tmp_path: Path
) -> None:
    async def scenario() -> None:
        await one_run(news, tmp_path)
        other = MemoryNews("another database")
        other.add_cell(CELL, "cc")
        for name in ("a", "b"):
            other.write(CELL, [submitted(name, job_id=ord(name))])
        process = Process(other, tmp_path)
        await process.start()
        await process.reached()
        assert set(process.directory.cells["cc"].tenants["ubar"]) == {"a", "b"}
        await process.stop()

        for restarts in range(3):
            news.write(CELL, [reported(1, health="unhealthy", restarts=restarts)])
        news.forget(CELL, 3)
        await one_run(news, tmp_path)
        assert read_head((tmp_path / "cc.names").read_bytes()).revision == 4

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("field", "value"), [("zone", "other.example"), ("cell", "dd"), ("format", 2), ("written_at", 5_000 - 8 * 86_400)]
)
def test_a_file_that_is_not_ours_or_too_old_is_ignored_and_replaced(
    news: MemoryNews, tmp_path: Path, field: str, value: Any
) -> None:
    async def scenario() -> None:
        await one_run(news, tmp_path)
        file = tmp_path / "cc.names"
        line, _, rest = file.read_bytes().partition(b"\n")
        file.write_bytes(signed(msgspec.json.encode({**msgspec.json.decode(line), field: value}) + b"\n" + rest))
        (tmp_path / "dd.names").write_bytes(b"half of it")
        process = Process(news, tmp_path)
        assert await process.start() == 0
        await process.reached()
        await process.stop()
        head = read_head(file.read_bytes())
        assert (head.zone, head.cell, head.format, head.written_at) == (ZONE, "cc", 1, 5_000)

    asyncio.run(scenario())


def test_a_cell_that_departed_leaves_no_file_and_a_folder_that_is_full_stops_nothing(
    news: MemoryNews, tmp_path: Path
) -> None:
    async def scenario() -> None:
        await one_run(news, tmp_path)
        process = Process(news, tmp_path)
        await process.start()
        news.add_cell(4, "dd")
        news.remove_cell(CELL)
        async with asyncio.timeout(10):
            while "cc" in process.directory.cells or not process.directory.cells["dd"].ready:
                await asyncio.sleep(0.01)
        await process.stop()
        assert [path.name for path in tmp_path.iterdir()] == ["dd.names"]

        (tmp_path / "file").write_text("no folder")
        news.write(4, [machine(1)])
        blocked = Process(news, tmp_path / "file" / "below")
        assert await blocked.start() == 0
        async with asyncio.timeout(10):
            await blocked.loaded.wait()
        await blocked.stop()
        assert blocked.keeper.failed == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("former", ["ab", "zz"])
def test_of_two_files_of_one_cell_the_newer_is_used_and_the_other_name_is_gone(
    news: MemoryNews, tmp_path: Path, former: str
) -> None:
    """Start with two snapshots of one cell. The newer one must be used, and the other deleted.

    This happens if a cell is renamed and the process is killed before it deletes the older file.
    """

    async def scenario() -> None:
        renamed = MemoryNews()
        renamed.add_cell(CELL, former)
        renamed.write(CELL, running(3))
        before = Process(renamed, tmp_path, now=4_000.0)
        await before.start()
        await before.loaded.wait()
        await before.stop()
        older = (tmp_path / f"{former}.names").read_bytes()
        await one_run(news, tmp_path)  # this run deletes the file
        (tmp_path / f"{former}.names").write_bytes(older)
        process = Process(news, tmp_path, now=5_001.0)
        await process.start()
        await process.reached()
        assert set(process.directory.cells) == {"cc"}
        assert process.directory.all_ready
        news.write(CELL, [reported(0, health="unhealthy")])
        await process.stop()
        assert [path.name for path in tmp_path.iterdir()] == ["cc.names"]

    asyncio.run(scenario())
