"""Choose which faults a run injects, and when. Pure: `python -m tests.ha.planning` prints the plan of a run.

A run has two lanes, which work at the same time. The faults of one lane come one after the other, each when the cell
has recovered from the one before:

    control     faults that harm a control host or its processes: never two of them at once
    machines    faults that harm machines alone

A run with a time works in rounds: each round has each fault once, in an order that the seed gives. So after some rounds
each fault has come equally often, and each kind at least as often as there are rounds.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from tests.ha.faults import FAULTS, harms_machines_alone, hold_s

CONTROL, MACHINES = "control", "machines"
# Seconds from the end of a fault until the cell is complete again, as measured with six machines on two cores.
_RECOVERY_S: Mapping[str, float] = {"kill": 4.0, "pause": 5.0, "skew": 6.0, "cut": 15.0, "off": 18.0, "full": 13.0}
_USUAL_RECOVERY_S = 3.0


@dataclass(frozen=True)
class Planned:
    """A fault of a plan. `at_s`: the expected seconds since the first fault. `takes_s`: for how many seconds it is
    expected to occupy its lane.
    """

    name: str
    lane: str
    at_s: float
    takes_s: float


def lane_of(name: str) -> str:
    """Return the lane in which a fault is injected."""
    return MACHINES if harms_machines_alone(name) else CONTROL


def takes_s(name: str) -> float:
    """Return the expected seconds from the beginning of a fault until the cell has recovered."""
    return hold_s(name) + _RECOVERY_S.get(FAULTS[name][1], _USUAL_RECOVERY_S)


def order(names: Sequence[str], lane: str, seed: int, *, rounds: bool) -> Iterator[str]:
    """Yield the faults of a lane. `rounds`: again and again, each round in another order, which `seed` gives."""
    own = [name for name in names if lane_of(name) == lane]
    if not rounds:
        yield from own
        return
    rng = random.Random(f"{seed} {lane}")
    while own:
        yield from rng.sample(own, len(own))


def planned(names: Sequence[str], *, minutes: float, seed: int) -> list[Planned]:
    """Return the faults that a run should have time for, by their expected time. Without `minutes`: each fault once."""
    found: list[Planned] = []
    for lane in (CONTROL, MACHINES):
        at = 0.0
        for name in order(names, lane, seed, rounds=bool(minutes)):
            if minutes and at >= minutes * 60:
                break
            found.append(Planned(name, lane, at, takes_s(name)))
            at += takes_s(name)
    return sorted(found, key=lambda one: one.at_s)


def kinds(names: Collection[str]) -> dict[str, int]:
    """Return how many of these faults there are of each kind, such as `kill`."""
    return dict(Counter(FAULTS[name][1] for name in names))


def main() -> int:
    """Print the plan of a run with this environment (`tests.ha.__main__`): a JSON line per fault, and their number."""
    chosen, minutes = os.environ.get("FAULT", ""), float(os.environ.get("MINUTES") or 0)
    names = chosen.split(",") if chosen else list(FAULTS)
    plan = planned(names, minutes=minutes, seed=int(os.environ.get("SEED") or 1))
    for one in plan:
        print(json.dumps(asdict(one)))
    print(json.dumps({"faults": len(plan), "kinds": kinds([one.name for one in plan])}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
