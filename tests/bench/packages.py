"""`packages`: seconds until every machine has a package that all machines need at once, and the load of the package
store.

The network is simulated (see `tests.bench.swarm`): each machine has a line of 1 Gbit/s, and the store has one such
line. The package has 200 MiB. Machines also fetch it from each other. `alone_s`: the seconds if the store sent all
copies. `store_copies`: the copies that it did send. In the cases `…-hostile`, a tenth of the machines cannot be
reached, and a tenth sends wrong content. A case fails if the store sends more than 24 copies, or if ten times as many
machines need much more time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.bench.swarm import Swarm, World

SIZES = (10, 100, 1000)
# Copies that the store may send, for any number of machines.
MOST_COPIES = 24
# Ten times as many machines may take longer by this multiple of the time of one copy over one line.
MOST_ADDED = 14.0


def measure() -> Iterator[dict[str, object]]:
    copy_s = World(1).size_bytes / World(1).line_bytes_s
    before: float | None = None
    for machines in SIZES:
        for case, world in (
            (f"{machines}", World(machines)),
            (f"{machines}-hostile", World(machines, liars=0.1, away=0.1)),
        ):
            began = time.perf_counter()
            outcome = Swarm(world).run()
            last_s = max(outcome.installed_at, default=0.0)
            failed = []
            if outcome.gave_up or len(outcome.installed_at) != machines:
                failed.append(f"{machines - len(outcome.installed_at)} machines have it not")
            if "hostile" not in case:
                if outcome.store_copies > MOST_COPIES:
                    failed.append(f"the store gave {outcome.store_copies} copies")
                if before is not None and last_s - before > MOST_ADDED * copy_s:
                    failed.append(f"{last_s - before:.1f} s more than for a tenth of the machines")
                before = last_s
            result: dict[str, object] = {
                "case": case,
                "value": round(last_s, 2),
                "unit": "s",
                "better": "lower",
                "machines": machines,
                "median_s": round(outcome.installed_at[len(outcome.installed_at) // 2], 2),
                "alone_s": round(machines * copy_s, 1),
                "store_copies": outcome.store_copies,
                "store_at_once": outcome.busiest_store,
                "asked": outcome.asked,
                "failed_tries": outcome.failed,
                "simulated_in_s": round(time.perf_counter() - began, 2),
            }
            yield result | ({"failed": "; ".join(failed)} if failed else {})
