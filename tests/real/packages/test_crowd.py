"""Tests of many tasks that start, are cancelled and end, on a disk too small for all their packages."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from borglet.messages import PackageRef, PackageSources, PeerAddress
from borglet.packages.archives.disk import digests_of
from borglet.packages.base import PackageMissing
from borglet.packages.fetch import Fetcher
from borglet.packages.installing import PackageManager, PackageSettings
from borglet.packages.sources import LinkSources
from borglet.packages.store import PackageStore
from tests.real.packages.cell import packed

TASKS, ROUNDS, ROOM = 12, 25, 90_000


class Silent(LinkSources):
    """A link that accepts reports and names no sources."""

    def __init__(self) -> None:
        pass

    def of(self, digest: str) -> PackageSources:
        raise AssertionError

    def rest(self) -> None:
        pass

    def have(self, digest: str, port: int) -> None:
        pass

    def gone(self, digest: str) -> None:
        pass

    def failed(self, digest: str, peer: PeerAddress, reason: str) -> None:
        raise AssertionError


class Shelf(Fetcher):
    """A fetcher that copies archives from memory, unless it is asked to stop."""

    def __init__(self, archives: dict[str, bytes]) -> None:
        self._archives = archives

    def fetch(
        self, package: PackageRef, into: Path, *, checkpoint: Callable[[], None], pause: Callable[[float], None]
    ) -> None:
        checkpoint()
        into.write_bytes(self._archives[package.digest])
        pause(0.001)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_task_was_given_stays_until_it_leaves(tmp_path: Path, seed: int) -> None:
    made = [packed(tmp_path, f"p{number}", data=os.urandom(2000 * (1 + number))) for number in range(8)]
    store = PackageStore(tmp_path / "home", boot_id="boot")
    in_use: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()

    async def a_task(manager: PackageManager, rng: random.Random) -> None:
        for _ in range(ROUNDS):
            wanted = [package for package, _ in rng.sample(made, rng.randint(1, 3))]
            digests = [package.digest for package in wanted]
            in_use.update(digests)
            work = asyncio.ensure_future(manager.install(wanted))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0.0, 0.01))
                work.cancel()
            try:
                await work
                outcomes["installed"] += 1
                for _ in range(rng.randint(0, 3)):
                    for tree in manager.trees(wanted).values():
                        assert (tree / "data").stat().st_size > 0
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                outcomes["cancelled"] += 1
            except PackageMissing as error:
                told = str(error)
                outcomes["no room" if "; packages in use leave" in told or "is rejected: 'data'" in told else told] += 1
            in_use.subtract(digests)

    async def whole() -> None:
        manager = PackageManager(
            store,
            Silent(),
            Shelf({package.digest: raw for package, raw in made}),
            now=lambda: asyncio.get_running_loop().time(),
            settings=PackageSettings(budget_bytes=ROOM, keep_free_bytes=0),
        )
        manager.bind(lambda: {digest for digest, count in in_use.items() if count > 0})
        manager.open()
        async with asyncio.timeout(60):
            await asyncio.gather(*[a_task(manager, random.Random(f"{seed}/{n}")) for n in range(TASKS)])
        await manager.collect()
        assert manager.disk_bytes <= ROOM
        for digest in manager.installed():
            assert digests_of(store.tree(digest), contents=True).contents
        await manager.close()
        here = {f"sha256:{name}" for name in os.listdir(tmp_path / "home" / "packages") if len(name) == 64}
        assert here == set(manager.installed())
        for folder in ("incoming", "trash"):
            assert os.listdir(tmp_path / "home" / "packages" / folder) == []

    asyncio.run(whole())
    assert set(outcomes) <= {"installed", "cancelled", "no room"}, outcomes
    assert min(outcomes["installed"], outcomes["cancelled"]) > 0, outcomes
