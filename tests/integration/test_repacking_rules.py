"""Tests of the rules by which a master runs a re-packing, with rows made by hand and without passes."""

from __future__ import annotations

from scheduling.core.vocabulary.plan import Booking
from scheduling.core.vocabulary.policy import Policy
from scheduling.master.loop import Master
from scheduling.repacking.repacker import Repacker
from tests.builders import World


def test_a_master_re_packs_only_after_it_has_found_out_what_is_booked(monkeypatch) -> None:
    world = World().machine("m1").job("gang", cpu=5000, tasks=2, gang=True)
    booked: list[frozenset[int]] = []
    monkeypatch.setattr(Repacker, "turn", lambda *_, **given: booked.append(given["booked"]))
    master = Master(1, state=world.state, _policy=Policy())
    master._repack()
    assert booked == [], "a gang may have booked what this master has not computed yet"
    master._bookings = (Booking(world.jobs["gang"].job_id, 1.0, ((world.id_of("m1"), 1),)),)
    master._repack()
    world.end("gang", 0).end("gang", 1)
    master._repack()
    assert booked == [{world.id_of("m1")}, frozenset()]
