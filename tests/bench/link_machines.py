"""A process with a fleet of simulated machines, which the bench `link` controls by lines on standard input.

    connected             return the number of connected machines
    polled                return how many machines were polled since the start, or since `unpoll`
    unpoll                forget which machines were polled
    record                record the intervals between polls from now on
    intervals             return the recorded intervals: {milliseconds: how often}
    cut | mend            break all connections; allow them again
    live FILE             write the incarnations that have processes to FILE, one per line:
                          `job/index/incarnation hostname run`

The process answers each line with one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from borglet import json_logging
from borglet.agent import Agent
from borglet.fleet import Fleet, load_secrets
from borglet.machine_specs import read_fleet
from borglet.messages import Poll


class CuttableFleet(Fleet):
    """A fleet of machines whose network can fail."""

    _network: asyncio.Event | None = None  # set while the network works

    def cut(self) -> None:
        """Break all connections, and prevent new ones until `mend` is called. Tasks continue to run."""
        self._network = asyncio.Event()
        for machine in self.machines:
            machine.link.drop()

    def mend(self) -> None:
        assert self._network is not None
        self._network.set()

    @asynccontextmanager
    async def _admit(self) -> AsyncIterator[None]:
        async with super()._admit():
            if self._network is not None:
                await self._network.wait()
            yield


class Machines:
    """One fleet, and the record of when its machines were polled."""

    def __init__(self, home: Path, url: str) -> None:
        self._intervals: Counter[int] | None = None
        self._polled: set[int] = set()  # by id of the agent
        self.fleet = CuttableFleet(read_fleet(home / "machines.csv"), load_secrets(home), url, home)
        for machine in self.fleet.machines:
            self._observe(machine.agent)

    def _observe(self, agent: Agent) -> None:
        """Record each poll of a machine, and the interval since the previous poll of the same session."""
        polled, last = agent.polled, (0, 0.0)

        def observed(session: int, poll: Poll) -> None:
            nonlocal last
            now = time.monotonic()
            if self._intervals is not None and session == last[0]:
                self._intervals[round(1000 * (now - last[1]))] += 1
            last = (session, now)
            self._polled.add(id(agent))
            polled(session, poll)

        agent.polled = observed  # type: ignore[method-assign]

    def do(self, line: str) -> Any:
        match line.split():
            case ["connected"]:
                return self.fleet.connected
            case ["polled"]:
                return len(self._polled)
            case ["unpoll"]:
                self._polled.clear()
            case ["record"]:
                self._intervals = Counter()
            case ["intervals"]:
                kept, self._intervals = self._intervals, None
                return kept
            case ["cut"]:
                self.fleet.cut()
            case ["mend"]:
                self.fleet.mend()
            case ["live", path]:
                return self._live(Path(path))
            case _:
                raise ValueError(f"{line!r} is not a command of this bench")
        return None

    def _live(self, path: Path) -> int:
        lines = [
            f"{inc.key} {machine.hostname} {inc.run}"
            for machine in self.fleet.machines
            for inc in machine.agent.state.incarnations()
            if inc.has_processes
        ]
        path.write_text("\n".join(lines))
        return len(lines)


async def _serve(machines: Machines) -> None:
    loop = asyncio.get_running_loop()
    running = loop.create_task(machines.fleet.run())
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).decode().strip():
        print(json.dumps(machines.do(line)), flush=True)
        if running.done():
            break
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def main() -> None:
    json_logging.configure("warning")
    uvloop.run(_serve(Machines(Path(sys.argv[1]), sys.argv[2])))


if __name__ == "__main__":
    main()
