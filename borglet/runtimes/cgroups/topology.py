"""How the machine's cores lie: which are threads of one physical core, which are on one memory node."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from borglet.runtimes.cgroups.cpulists import parse_cpus


def places_of(cores: Collection[int], *, system: Path = Path("/sys/devices/system/cpu")) -> dict[int, tuple[int, int]]:
    """Core -> (NUMA node, the lowest number among its physical core's threads). Unknown: 0, the core."""
    found = {}
    for core in cores:
        directory = system / f"cpu{core}"
        try:
            siblings = parse_cpus((directory / "topology" / "thread_siblings_list").read_text())
        except OSError:
            siblings = frozenset()
        nodes = sorted(int(entry.name[4:]) for entry in directory.glob("node[0-9]*"))
        found[core] = (nodes[0] if nodes else 0, min(siblings, default=core))
    return found
