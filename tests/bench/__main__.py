"""`make bench [BENCH=name]`: measure, and print one JSON object a line (DESIGN §14)."""

from __future__ import annotations

import importlib
import json
import sys

# Name of the bench -> module with `measure()`, which yields `tests.bench.result.Result`s.
BENCHES = {"pack": "tests.bench.pack", "commit": "tests.bench.commit", "start": "tests.bench.start"}


def main(wanted: list[str]) -> int:
    unknown = [name for name in wanted if name not in BENCHES]
    if unknown:
        print(f"no bench {', '.join(unknown)}; there is {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    for name in wanted or BENCHES:
        for result in importlib.import_module(BENCHES[name]).measure():
            print(json.dumps({"bench": name, **result}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
