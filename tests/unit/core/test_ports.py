"""Tests of counting the free numbers of a machine's port range while ports are taken and released."""

from __future__ import annotations

import random

from scheduling.core.cell.ports import PortMap


def test_free_is_what_a_count_would_say() -> None:
    rng = random.Random(5)
    ports = PortMap(10, 29)
    held: list[tuple[tuple[int, int], int]] = []
    for turn in range(400):
        action = rng.random()
        if action < 0.5:
            one = ((rng.randrange(4), turn), rng.randrange(5, 35))  # some outside the range, some shared
            ports.hold(one[0], [one[1]])
            held.append(one)
        elif action < 0.95 and held:
            holder, port = held.pop(rng.randrange(len(held)))
            ports.release(holder, [port, 99])
        else:
            low = rng.randrange(5, 20)
            ports.set_range(low, low + rng.randrange(15))
        taken = {port for _, port in held}
        assert ports.free == sum(port not in taken for port in range(ports.low, ports.high + 1))
