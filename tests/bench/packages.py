"""packages: how long until every machine has a package that all want at once, and how often the store gives it.

Simulated (see `swarm`): machines with lines of 1 Gbit/s, a package of 200 MiB, a store with one such line. A store
alone would need `alone` seconds: the sum of all copies over its line. Growth is reported as the time beyond a tenth of
the machines. Also with a tenth of the machines out of reach and a tenth that serve something else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.bench.swarm import Swarm, World

SIZES = (10, 100, 1000)
# Copies that the store may give, whatever the number of machines.
MOST_COPIES = 24
# Each tenfold may add so many times what one copy over one line takes.
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
