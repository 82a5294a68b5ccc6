"""Tests of the package manager: it installs once, shares, repairs and deletes packages, and serves other machines."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from borglet.messages import PackageRef
from borglet.packages.archives.disk import remove_tree
from borglet.packages.archives.limits import go_on
from borglet.packages.base import PackageMissing
from borglet.packages.fetch import FetchSettings
from borglet.packages.installing import PackageSettings
from borglet.packages.source_choice import FetchPatience
from borglet.packages.store import PackageStore, StoredPackage
from tests.real.borglet.cell import BOUND_S, Authority
from tests.real.packages.archives import archive, link
from tests.real.packages.cell import Link, Machine, link_of, machine_of, packed

Story = Callable[[Link, Machine], Awaitable[None]]


def send(authority: Authority, home: Path, archives: dict[str, bytes], story: Story, **settings: object) -> None:
    """Run the test scenario `story` with one machine and its link, within a bound."""

    async def whole(cell: Link) -> None:
        machine = await machine_of(cell, authority, home, **settings)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(BOUND_S):
                await story(cell, machine)
        finally:
            await machine.close()

    with link_of(authority, archives) as cell:
        asyncio.run(whole(cell))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not holds():
            await asyncio.sleep(0.005)


def test_many_tasks_wait_for_one_installation(tmp_path: Path, authority: Authority) -> None:
    app, raw = packed(tmp_path, serve=os.urandom(200_000))

    async def story(cell: Link, machine: Machine) -> None:
        machine.in_use.add(app.digest)
        await asyncio.gather(*[machine.manager.install([app]) for _ in range(20)])
        assert cell.served == [(app.digest, 0)]
        tree = machine.manager.trees([app])["app"]
        assert (tree / "serve").stat().st_mode & 0o777 == 0o444
        assert machine.manager.installed() == [app.digest]
        await until(lambda: app.digest in cell.have)
        assert os.listdir(tmp_path / "home" / "packages" / "incoming") == []

    send(authority, tmp_path / "home", {app.digest: raw}, story)


def test_a_package_stays_over_restarts_and_is_repaired_from_its_archive(tmp_path: Path, authority: Authority) -> None:
    app, raw = packed(tmp_path, serve=b"content", other=b"x")
    home = tmp_path / "home"
    tree = home / "packages" / app.digest.removeprefix("sha256:") / "tree"

    async def first(cell: Link, machine: Machine) -> None:
        machine.in_use.add(app.digest)
        await machine.manager.install([app])

    async def again(cell: Link, machine: Machine) -> None:
        machine.in_use.add(app.digest)
        assert machine.manager.installed() == [app.digest]
        assert (tree / "serve").read_bytes() == b"content"
        assert (cell.served, cell.asked) == ([], 0)

    send(authority, home, {app.digest: raw}, first)
    send(authority, home, {app.digest: raw}, again)
    tree.chmod(0o755)
    (tree / "other").unlink()
    send(authority, home, {app.digest: raw}, again)
    assert (tree / "other").exists()
    (tree / "serve").chmod(0o644)
    (tree / "serve").write_bytes(b"CONTENT")
    (tree / "serve").chmod(0o444)
    # Size and mode are the same. Only after a restart of the machine are contents checked.
    store = PackageStore(home, boot_id="boot-1")
    assert [store.check(digest) is not None for digest in store.open()] == [True]
    assert (tree / "serve").read_bytes() == b"CONTENT"
    send(authority, home, {app.digest: raw}, again, boot="boot-2")


def test_a_task_waits_for_the_look_at_its_own_package_alone(tmp_path: Path, authority: Authority) -> None:
    made = [packed(tmp_path, f"p{number}", data=bytes([number])) for number in range(4)]
    archives = {package.digest: raw for package, raw in made}
    last = max((package for package, _ in made), key=lambda package: package.digest)
    home = tmp_path / "home"

    class Slow(PackageStore):
        go_on = threading.Event()

        def check(self, digest: str, *, checkpoint: Callable[[], None] = go_on) -> StoredPackage | None:
            assert digest == last.digest or self.go_on.wait(BOUND_S)
            return super().check(digest, checkpoint=checkpoint)

    async def first(cell: Link, machine: Machine) -> None:
        machine.in_use = set(archives)
        await machine.manager.install([package for package, _ in made])

    async def again(cell: Link, machine: Machine) -> None:
        machine.in_use = set(archives)
        await machine.manager.install([last])
        assert machine.manager.installed() == [last.digest]
        Slow.go_on.set()
        await machine.manager.checked()
        assert set(machine.manager.installed()) == set(archives)
        assert cell.served == []

    send(authority, home, archives, first)
    send(authority, home, archives, again, store=Slow(home, boot_id="boot-2"), wait=False)


def test_a_borglet_that_ends_waits_for_no_look(tmp_path: Path, authority: Authority) -> None:
    app, raw = packed(tmp_path, **{f"f{number}": b"x" for number in range(50)})
    home = tmp_path / "home"

    class Long(PackageStore):
        looked = 0
        begun = threading.Event()

        def check(self, digest: str, *, checkpoint: Callable[[], None] = go_on) -> StoredPackage | None:
            def look() -> None:
                self.looked += 1
                self.begun.set()
                while not closing.is_set():
                    closing.wait(BOUND_S)
                checkpoint()

            return super().check(digest, checkpoint=look)

    async def first(cell: Link, machine: Machine) -> None:
        machine.in_use.add(app.digest)
        await machine.manager.install([app])

    async def again(cell: Link, machine: Machine) -> None:
        await asyncio.to_thread(Long.begun.wait, BOUND_S)
        asyncio.get_running_loop().call_later(0.05, closing.set)
        await machine.manager.close()
        assert store.looked == 1

    closing = threading.Event()
    store = Long(home, boot_id="boot-2")
    send(authority, home, {app.digest: raw}, first)
    send(authority, home, {app.digest: raw}, again, store=store, wait=False)


def test_a_link_hears_where_a_machine_serves_after_each_greeting(tmp_path: Path, authority: Authority) -> None:
    app, raw = packed(tmp_path, serve=b"content")

    async def first(cell: Link, machine: Machine) -> None:
        machine.manager.publish_port()  # there is nothing to report yet
        machine.in_use.add(app.digest)
        await machine.manager.install([app])
        await until(lambda: app.digest in cell.have)

    async def again(cell: Link, machine: Machine) -> None:
        machine.in_use.add(app.digest)
        machine.manager.open()  # the greeting comes while the disk is still checked
        machine.manager.publish_port()
        await until(lambda: app.digest in cell.have)
        assert cell.have[app.digest]["m1"] == ("127.0.0.1", machine.manager.port)
        assert machine.manager.port > 0

    send(authority, tmp_path / "home", {app.digest: raw}, first)
    send(authority, tmp_path / "home", {app.digest: raw}, again, serve="127.0.0.1")


def test_a_manager_that_ends_has_finished_its_report_to_the_link(tmp_path: Path, authority: Authority) -> None:
    """Close a manager during its report to the link. `close` must wait until the report is sent."""
    app, raw = packed(tmp_path, serve=b"content")
    begun = threading.Event()

    def slowly(what: str) -> None:
        begun.set()
        time.sleep(0.1)

    async def story(cell: Link, machine: Machine) -> None:
        cell.listening = slowly
        await machine.manager.install([app])
        await asyncio.to_thread(begun.wait, BOUND_S)
        await machine.close()
        assert app.digest in cell.have

    send(authority, tmp_path / "home", {app.digest: raw}, story)


def test_what_can_not_be_repaired_is_removed_and_fetched_again(tmp_path: Path, authority: Authority) -> None:
    app, raw = packed(tmp_path, serve=b"content")
    home = tmp_path / "home"
    folder = home / "packages" / app.digest.removeprefix("sha256:")

    async def fetched(cell: Link, machine: Machine) -> None:
        assert machine.manager.installed() == []
        machine.in_use.add(app.digest)
        await machine.manager.install([app])
        assert len(cell.served) == 1

    send(authority, home, {app.digest: raw}, fetched)
    remove_tree(folder / "tree")
    (folder / "archive").write_bytes(b"damaged")
    send(authority, home, {app.digest: raw}, fetched)
    (folder / "marker.json").write_bytes(b"{")
    send(authority, home, {app.digest: raw}, fetched)
    (home / "packages" / "incoming" / "half").mkdir()
    (folder / "marker.json").unlink()
    send(authority, home, {app.digest: raw}, fetched)
    assert os.listdir(home / "packages" / "incoming") == []


def test_the_last_one_to_leave_ends_an_installation_and_a_newcomer_begins_it_again(
    tmp_path: Path, authority: Authority
) -> None:
    app, raw = packed(tmp_path, serve=b"content")

    async def story(cell: Link, machine: Machine) -> None:
        machine.in_use.add(app.digest)
        cell.store_busy = True
        waiting = [asyncio.ensure_future(machine.manager.install([app])) for _ in range(2)]
        await until(lambda: cell.asked > 1)
        waiting[0].cancel()
        asked = cell.asked
        await until(lambda: cell.asked > asked)
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        newcomer = asyncio.ensure_future(machine.manager.install([app]))
        cell.store_busy = False
        await newcomer
        assert len(cell.served) == 1
        assert os.listdir(tmp_path / "home" / "packages" / "incoming") == []

    send(authority, tmp_path / "home", {app.digest: raw}, story)


def test_the_least_recently_used_leaves_when_room_is_short_and_what_is_in_use_never(
    tmp_path: Path, authority: Authority
) -> None:
    made = [packed(tmp_path, f"p{number}", data=os.urandom(100_000)) for number in range(4)]
    packages = [package for package, _ in made]
    archives = {package.digest: raw for package, raw in made}

    async def story(cell: Link, machine: Machine) -> None:
        for package in packages[:2]:
            machine.in_use = {package.digest}
            await machine.manager.install([package])
        machine.in_use = {packages[0].digest}
        await machine.manager.install([packages[0]])
        machine.in_use = {packages[0].digest, packages[2].digest}
        await machine.manager.install([packages[2]])
        assert machine.manager.installed() == [packages[2].digest, packages[0].digest]
        await until(lambda: cell.gone == [(packages[1].digest, "m1")])
        assert os.listdir(tmp_path / "home" / "packages" / "trash") == []
        machine.in_use.add(packages[3].digest)
        with pytest.raises(PackageMissing, match=r"'p3@v1': it needs about .* bytes; packages in use leave"):
            await machine.manager.install([packages[3]])

    room = PackageSettings(budget_bytes=520_000, keep_free_bytes=0)
    send(authority, tmp_path / "home", archives, story, settings=room)


def test_packages_leave_when_the_disk_is_short(tmp_path: Path, authority: Authority) -> None:
    app, raw = packed(tmp_path, serve=b"content")

    async def installing(cell: Link, machine: Machine) -> None:
        machine.in_use = {app.digest}
        await machine.manager.install([app])

    async def short(cell: Link, machine: Machine) -> None:
        machine.in_use = {app.digest}
        assert await machine.manager.collect() == 0
        machine.in_use = set()
        assert await machine.manager.collect() > 0
        assert machine.manager.installed() == []

    send(authority, tmp_path / "home", {app.digest: raw}, installing)
    more_than_any_disk = PackageSettings(keep_free_bytes=2**62)
    send(authority, tmp_path / "home", {app.digest: raw}, short, settings=more_than_any_disk)


def test_a_tree_larger_than_the_room_left_is_refused_while_it_unpacks(tmp_path: Path, authority: Authority) -> None:
    app, raw = packed(tmp_path, zeros=bytes(5_000_000))

    async def story(cell: Link, machine: Machine) -> None:
        machine.in_use = {app.digest}
        with pytest.raises(PackageMissing, match="is rejected: 'zeros': with the 5000000 bytes"):
            await machine.manager.install([app])
        assert sorted(os.listdir(tmp_path / "home" / "packages")) == ["incoming", "trash"]

    room = PackageSettings(budget_bytes=1_000_000, keep_free_bytes=0)
    send(authority, tmp_path / "home", {app.digest: raw}, story, settings=room)


def test_hostile_and_unknown_packages_are_refused_by_name(tmp_path: Path, authority: Authority) -> None:
    raw = archive(link("out", "/etc")).read()
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    hostile = PackageRef("bad@v1", digest, len(raw))

    async def story(cell: Link, machine: Machine) -> None:
        with pytest.raises(PackageMissing, match=r"'bad@v1'.* is rejected: 'out': a link to '/etc' points outside"):
            await machine.manager.install([hostile])
        unknown = PackageRef("none@v1", "sha256:" + "0" * 64, 10)
        with pytest.raises(
            PackageMissing, match=r"'none@v1'.*listed no sources of the package \(HTTP 404 no such package\)"
        ):
            await machine.manager.install([unknown])
        with pytest.raises(PackageMissing, match="two packages with the name 'bad'"):
            await machine.manager.install([hostile, PackageRef("bad@v2", "sha256:" + "1" * 64, 10)])
        with pytest.raises(PackageMissing, match="is not the name of a directory"):
            await machine.manager.install([PackageRef("../x@v1", "sha256:" + "1" * 64, 10)])

    send(authority, tmp_path / "home", {digest: raw}, story)


def test_a_dozen_machines_fetch_from_each_other(tmp_path: Path, authority: Authority) -> None:
    """Install one package on twelve machines at once. The store serves one copy, and machines serve each other the
    rest.
    """
    app, raw = packed(tmp_path, serve=os.urandom(3_000_000))
    patient = FetchSettings(patience=FetchPatience(pause_s=0.02))

    async def whole(cell: Link) -> None:
        cell.store_at_once = 1
        addresses = [f"127.0.0.{number}" for number in range(2, 14)]
        machines = [
            await machine_of(
                cell,
                authority,
                tmp_path / address,
                hostname=address,
                serve=address,
                fetching=patient,
                settings=PackageSettings(keep_free_bytes=0, at_once=1),
            )
            for address in addresses
        ]
        try:
            for machine in machines:
                machine.in_use.add(app.digest)
            async with asyncio.timeout(60):
                await asyncio.gather(*[machine.manager.install([app]) for machine in machines])
            for machine, address in zip(machines, addresses, strict=True):
                assert machine.manager.installed() == [app.digest]
                assert (tmp_path / address / "packages").is_dir()
            served = [machine.peers.served for machine in machines if machine.peers is not None]
            assert len(cell.served) == 1
            assert sum(served) == len(machines) - 1
        finally:
            for machine in machines:
                await machine.close()

    with link_of(authority, {app.digest: raw}) as cell:
        asyncio.run(whole(cell))
