"""Manage all packages of one machine: install them for tasks, remove unused ones, and find archives for other machines.

    install ─► installed? ─► use it            (one installation per package; all tasks that need it wait)
                 no ─► free space ─► fetch ─► check, unpack ─► rename into place ─► notify the link

Blocking work runs in a few threads. An installation stops soon if no task waits for it any more.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from borglet.messages import MAX_REPORTED_PACKAGES, PackageRef
from borglet.packages.archives.limits import ArchiveRefused
from borglet.packages.base import InUse, PackageMissing, mounts
from borglet.packages.disk_space import excess_of, to_remove
from borglet.packages.fetch import Fetcher
from borglet.packages.sources import Sources
from borglet.packages.store import PackageStore, StoredPackage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackageSettings:
    """Limits on the disk space and the installations of packages on one machine."""

    budget_bytes: int = 20 * 2**30  # disk space of archives and trees together
    keep_free_bytes: int = 2**30  # disk space that stays free for tasks
    at_once: int = 4  # installations at the same time
    attempts: int = 3  # to install a package that another task removes again


class _Cancelled(Exception):
    """Raised to stop an installation that no task waits for any more, or that runs when the Borglet ends."""


@dataclass(slots=True)
class _Installation:
    package: PackageRef
    stop: threading.Event = field(default_factory=threading.Event)
    waiting: int = 0
    work: asyncio.Task[None] | None = None

    def checkpoint(self) -> None:
        if self.stop.is_set():
            raise _Cancelled

    def pause(self, seconds: float) -> None:
        self.stop.wait(seconds)
        self.checkpoint()


class PackageManager:
    """The packages of a real machine. Call `open` first. `port`: the port at which other machines download packages; 0
    if this machine offers no downloads.
    """

    def __init__(
        self,
        store: PackageStore,
        sources: Sources,
        fetcher: Fetcher,
        *,
        now: Callable[[], float],
        settings: PackageSettings = PackageSettings(),
    ) -> None:
        self._store, self._sources, self._fetcher = store, sources, fetcher
        self._now, self._settings = now, settings
        self.port = 0
        self._in_use: InUse = frozenset
        self._installed: dict[str, StoredPackage] = {}
        self._installations: dict[str, _Installation] = {}
        self._promised: dict[str, int] = {}  # disk space of present installations, in bytes by digest
        self._threads = ThreadPoolExecutor(settings.at_once, thread_name_prefix="packages")
        self._notices = ThreadPoolExecutor(1, thread_name_prefix="package-notices")
        self._collecting = asyncio.Lock()
        self._closing = threading.Event()
        self._unchecked: set[str] = set()  # digests of present packages that are not checked yet
        self._checks: dict[str, asyncio.Future[None]] = {}
        self._opened: asyncio.Future[None] | None = None
        self._checking: asyncio.Future[None] | None = None
        self._port_report: asyncio.Future[None] | None = None

    def bind(self, in_use: InUse) -> None:
        self._in_use = in_use

    # -- starting and ending

    def open(self) -> None:
        """Start to check the packages on the disk, in the background. A call of `install` waits only for the check of
        its own packages.
        """
        self._opened = asyncio.ensure_future(self._open())
        self._checking = asyncio.ensure_future(self._check_all())

    async def _open(self) -> None:
        try:
            self._unchecked = set(await asyncio.to_thread(self._store.open))
        except OSError as error:
            log.error("cannot read the installed packages; the Borglet installs them again: %s", error)

    async def _check_all(self) -> None:
        await self._ready()
        for digest in sorted(self._unchecked):
            await self._check(digest)
        log.info("%d packages are installed", len(self._installed))

    async def _check(self, digest: str) -> None:
        """Check a package on the disk, unless it was checked before. Concurrent callers wait for the same check."""
        if digest not in self._unchecked:
            return
        check = self._checks.get(digest)
        if check is None:
            check = self._checks[digest] = asyncio.ensure_future(self._check_one(digest))
        await asyncio.shield(check)

    async def _check_one(self, digest: str) -> None:
        look = functools.partial(self._store.check, digest, checkpoint=self._go_on)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look)
        self._unchecked.discard(digest)
        del self._checks[digest]
        if found is not None:
            self._installed[digest] = found

    def _go_on(self) -> None:
        if self._closing.is_set():
            raise _Cancelled

    async def _ready(self) -> None:
        assert self._opened is not None, "call open() first"
        await asyncio.shield(self._opened)

    async def checked(self) -> None:
        """Wait until all packages on the disk have been checked."""
        assert self._checking is not None, "call open() first"
        await asyncio.shield(self._checking)

    async def close(self) -> None:
        self._closing.set()
        for installation in self._installations.values():
            installation.stop.set()
        running: list[asyncio.Future[None]] = [
            each.work for each in self._installations.values() if each.work is not None
        ]
        running += [each for each in (self._opened, self._port_report) if each is not None]
        if self._checking is not None:
            self._checking.cancel()
            running += [self._checking, *self._checks.values()]
        await asyncio.gather(*running, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        # Wait for notices to the link that are being sent: the end of the process would wait for them, too.
        await asyncio.to_thread(self._notices.shutdown, wait=True, cancel_futures=True)

    # -- reading

    def trees(self, packages: Sequence[PackageRef]) -> Mapping[str, Path]:
        return mounts(packages, self._tree)

    def _tree(self, package: PackageRef) -> Path:
        if package.digest not in self._installed:
            raise PackageMissing(
                f"package {package.name!r} ({package.digest}) is not installed on this machine; restart the task, so"
                " that the machine installs the package"
            )
        return self._store.tree(package.digest)

    def installed(self) -> list[str]:
        latest = sorted(self._installed.values(), key=lambda each: (-each.used_at, each.digest))
        return [each.digest for each in latest[:MAX_REPORTED_PACKAGES]]

    @property
    def disk_bytes(self) -> int:
        return sum(each.disk_bytes for each in self._installed.values())

    def archive(self, digest: str) -> Path | None:
        """Return the path of a package's archive, which other machines may download; None if there is none."""
        return self._store.archive(digest) if digest in self._installed else None

    # -- installing

    async def install(self, packages: Sequence[PackageRef]) -> None:
        mounts(packages, lambda package: Path())
        await self._ready()
        for package in packages:
            await self._check(package.digest)
        attempts = 0
        while missing := [package for package in packages if package.digest not in self._installed]:
            if attempts == self._settings.attempts:
                raise PackageMissing(
                    f"package {missing[0].name!r}: the machine removed it to make space for other packages before this"
                    " task started; use fewer packages on this machine, or give its Borglet more disk space with"
                    " --package-bytes"
                )
            attempts += await self._install_all(missing)
        for package in packages:
            self._use(package.digest)

    async def _install_all(self, packages: Sequence[PackageRef]) -> bool:
        """Install packages. Return False if this call waited for an installation that was being cancelled. The caller
        must then try again.
        """
        if self._closing.is_set():
            raise PackageMissing(
                f"package {packages[0].name!r}: this Borglet is shutting down; the next Borglet installs the package"
            )
        joined = [self._join(package) for package in packages]
        try:
            for installation in joined:
                assert installation.work is not None
                await asyncio.shield(installation.work)
        except _Cancelled:
            return False
        finally:
            for installation in joined:
                self._leave(installation)
        return True

    def _join(self, package: PackageRef) -> _Installation:
        known = self._installations.get(package.digest)
        if known is None:
            known = self._installations[package.digest] = _Installation(package)
            known.work = asyncio.get_running_loop().create_task(self._install(known))
            known.work.add_done_callback(lambda done: done.cancelled() or done.exception())
        known.waiting += 1
        return known

    def _leave(self, installation: _Installation) -> None:
        installation.waiting -= 1
        if installation.waiting == 0:
            installation.stop.set()

    async def _install(self, installation: _Installation) -> None:
        package = installation.package
        try:
            most_bytes = await self._free_space(package)
            found = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._fetch_and_unpack, installation, most_bytes
            )
            self._installed[package.digest] = found
            log.info("package %s (%s) is installed: %d bytes", package.name, package.digest, found.disk_bytes)
            self._notices.submit(self._sources.have, package.digest, self.port)
        except ArchiveRefused as error:
            raise PackageMissing(f"package {package.name!r} ({package.digest}) is rejected: {error}") from error
        except OSError as error:
            raise PackageMissing(
                f"package {package.name!r}: this machine cannot store it: {error}; an SRE can check the machine's disk"
            ) from error
        finally:
            self._promised.pop(package.digest, None)
            del self._installations[package.digest]
        await self.collect()

    def _fetch_and_unpack(self, installation: _Installation, most_bytes: int) -> StoredPackage:
        package = installation.package
        installation.checkpoint()
        incoming = self._store.begin(package)
        try:
            self._fetcher.fetch(
                package, incoming / "archive", checkpoint=installation.checkpoint, pause=installation.pause
            )
            return self._store.complete(package, incoming, most_bytes=most_bytes, checkpoint=installation.checkpoint)
        finally:
            self._sources.rest()
            self._store.abandon(incoming)

    def _use(self, digest: str) -> None:
        at = self._now()
        known = self._installed[digest]
        self._installed[digest] = replace(known, used_at=at)
        self._store.used(digest, at)

    # -- disk space

    async def _free_space(self, package: PackageRef) -> int:
        """Make space on the disk for a package. Return how many bytes its unpacked files may have in total.

        Raises `PackageMissing` if there is not enough space.
        """
        wanted = 2 * package.size_bytes
        self._promised[package.digest] = wanted
        await self.collect()
        in_use = self._in_use()
        kept = sum(each.disk_bytes for each in self._installed.values() if each.digest in in_use)
        others = sum(self._promised.values()) - wanted
        left = self._settings.budget_bytes - kept - others
        if self._excess() > 0:
            raise PackageMissing(
                f"package {package.name!r}: it needs about {wanted} bytes; packages in use leave {max(0, left)} of the"
                f" {self._settings.budget_bytes} bytes for packages, and the disk has {self._store.free_bytes()} bytes"
                f" free, of which {self._settings.keep_free_bytes} must stay free. Use fewer packages on this machine,"
                " or give its Borglet more disk space with --package-bytes"
            )
        return max(0, left - package.size_bytes)

    def _excess(self) -> int:
        return excess_of(
            self.disk_bytes,
            sum(self._promised.values()),
            budget_bytes=self._settings.budget_bytes,
            free_bytes=self._store.free_bytes(),
            keep_free_bytes=self._settings.keep_free_bytes,
        )

    async def collect(self) -> int:
        """Remove unused packages until the remaining packages fit into their share of the disk and enough disk is free.
        Return the freed bytes.
        """
        freed = 0
        async with self._collecting:
            keep = {*self._in_use(), *self._installations}
            for each in to_remove(self._installed.values(), keep, excess_bytes=self._excess()):
                if each.digest in self._in_use():
                    continue  # a task has begun to use it
                del self._installed[each.digest]  # no task and no peer gets it from now on
                try:
                    await asyncio.to_thread(self._store.remove, each.digest)
                except OSError:
                    log.exception("cannot remove package %s", each.name)
                    continue
                freed += each.disk_bytes
                used = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(each.used_at))
                log.info("the Borglet removed package %s, which was last used at %s", each.name, used)
                self._notices.submit(self._sources.gone, each.digest)
        return freed

    def publish_port(self) -> None:
        """Send to the link the port at which other machines can download packages. Call this each time a shard has
        welcomed the machine.
        """
        if self._port_report is not None:
            self._port_report.cancel()
        self._port_report = asyncio.ensure_future(self._report_port())

    async def _report_port(self) -> None:
        await self.checked()
        latest = self.installed()
        if self.port and latest:
            self._notices.submit(self._sources.have, latest[0], self.port)
