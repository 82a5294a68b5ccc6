"""The packages of a real machine, put together: its disk, its cell's link, and the peers that it serves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from borglet.identity.credentials import Credentials
from borglet.packages.fetch import Fetcher
from borglet.packages.manager import PackageManager, PackageSettings
from borglet.packages.peers import PeerServer, PeerSettings
from borglet.packages.sources import LinkSources
from borglet.packages.store import PackageStore
from borglet.packages.tickets import authority_keys

log = logging.getLogger(__name__)

# A machine that is short of disk for reasons other than packages gets space within this time.
COLLECT_INTERVAL_S = 30.0


class MachinePackages:
    """`manager` is what the agent needs. `authorities` gives the certificates that tickets are checked with, PEM."""

    def __init__(
        self,
        home: Path,
        link: str,
        credentials: Credentials,
        authorities: Callable[[], str],
        *,
        address: str,
        boot_id: str,
        settings: PackageSettings,
        peer_port: int,
        peers: PeerSettings,
    ) -> None:
        sources = LinkSources(link, credentials)
        self.manager = PackageManager(
            PackageStore(home, boot_id=boot_id), sources, Fetcher(sources), now=time.time, settings=settings
        )
        self._peers = PeerServer(
            self.manager.archive, lambda: authority_keys(authorities()), now=time.time, settings=peers
        )
        self._address, self._peer_port = address, peer_port

    async def open(self) -> None:
        """Serve peers, where this machine can; begin to look at what is installed."""
        if self._peer_port >= 0:
            try:
                self.manager.port = await self._peers.open(self._address, self._peer_port)
            except OSError as error:
                log.warning("cannot give packages to other machines: %s", error)
            else:
                log.info("other machines can download packages at %s:%d", self._address, self.manager.port)
        self.manager.open()

    async def collect_forever(self) -> None:
        await self.manager.checked()
        while True:
            try:
                await self.manager.collect()
            except OSError:
                log.exception("cannot delete unused packages; the Borglet tries again later")
            await asyncio.sleep(COLLECT_INTERVAL_S)

    async def close(self) -> None:
        """The manager is closed by its agent."""
        await self._peers.close()
