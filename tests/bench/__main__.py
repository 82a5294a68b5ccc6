"""Run benchmarks with `make bench [BENCH=name]`, and print each result as one line of JSON.

The docstring of each benchmark's module says what the benchmark measures. Without a name, all benchmarks run one after
the other. If a result has the key `failed`, its text says which target was missed, and the exit status is 1.
"""

from __future__ import annotations

import importlib
import json
import sys

# Name of the bench -> module with `measure()`, which yields `tests.bench.result.Result`s.
BENCHES = {
    "pack": "tests.bench.pack",
    "pass": "tests.bench.pass_",
    "backfill": "tests.bench.backfill",
    "compaction": "tests.bench.compaction",
    "repack": "tests.bench.repack",
    "commit": "tests.bench.commit",
    "quota": "tests.bench.quota",
    "start": "tests.bench.start",
    "api": "tests.bench.api",
    "failover": "tests.bench.failover",
    "growth": "tests.bench.growth",
    "reclaim": "tests.bench.reclaim",
    "archive": "tests.bench.archive",
    "ended-jobs": "tests.bench.ended_jobs",
    "metered-hours": "tests.bench.metered_hours",
    "upgrade": "tests.bench.upgrade",
    "packages": "tests.bench.packages",
    "journal": "tests.bench.journal",
    "simulate": "tests.bench.simulate",
    "link": "tests.bench.link",
    "overload": "tests.bench.overload",
    "contact": "tests.bench.contact",
    "neighbours": "tests.bench.neighbours",
    "quota-race": "tests.bench.quota_race",
    "dns": "tests.bench.dns",
    "dns-outage": "tests.bench.dns_outage",
    "dns-secondary": "tests.bench.dns_secondary",
    "dns-fuzz": "tests.bench.dns_fuzz",
    "checkpoint": "tests.bench.checkpoint",
    "moment": "tests.bench.moment",
    "peers": "tests.bench.peers",
    "map": "tests.bench.cell_map",
    "sql": "tests.bench.sql",
    "cron": "tests.bench.cron",
    "workflow": "tests.bench.workflow",
    "locks": "tests.bench.locks",
    "autoscale": "tests.bench.autoscale",
    "autoscale-turn": "tests.bench.autoscale_turn",
    "year": "tests.bench.year.run",
}


def main(wanted: list[str]) -> int:
    unknown = [name for name in wanted if name not in BENCHES]
    if unknown:
        print(f"no bench {', '.join(unknown)}; there is {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    status = 0
    for name in wanted or BENCHES:
        module = importlib.import_module(BENCHES[name])
        print((module.__doc__ or name).splitlines()[0], file=sys.stderr)
        for result in module.measure():
            print(json.dumps({"bench": name, **result}), flush=True)
            if result.get("failed"):
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
