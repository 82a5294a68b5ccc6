"""`python -m tests.ha`, the program of `make ha-test`: faults on a cell of several hosts. Prints JSON lines.

    FAULT=name,name     run these faults; by default, each fault once, or with a plant those that show it
    MINUTES=10 SEED=7   for this time, inject faults in an order that the seed gives
    PLANT=lease-ignored the cell lacks a protection (`tests.ha.plants`); the checker must find violations
    HA_MACHINES=6       number of machines; with three, a minority is one
    HA_KEEP=1           keep the folder with logs and the history

Exit status: 0 if the checker found nothing, 1 if it found violations or the cell did not recover, 2 if the test cannot
run.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from tests.ha.faults import FAULTS
from tests.ha.plants import FITTING
from tests.ha.run import Plan, run


def main() -> int:
    """Run the plan that the environment describes. Return the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen, plant = os.environ.get("FAULT", ""), os.environ.get("PLANT", "")
    plan = Plan(
        faults=chosen.split(",") if chosen else FITTING.get(plant, list(FAULTS)),
        minutes=float(os.environ.get("MINUTES") or 0),
        seed=int(os.environ.get("SEED") or 1),
        plant=plant,
        machines=int(os.environ.get("HA_MACHINES") or 6),
    )
    last: dict[str, object] = {}
    try:
        for last in run(plan):
            print(json.dumps(last), flush=True)
    except TimeoutError as error:
        print(f"ha-test: {error}", file=sys.stderr)
        return 1
    except (PermissionError, ValueError, RuntimeError) as error:
        print(f"ha-test: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ha-test: interrupted", file=sys.stderr)
        return 2
    return 1 if last.get("violations") else 0


if __name__ == "__main__":
    sys.exit(main())
