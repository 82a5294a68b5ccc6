"""Tests of a zone that is published in steps while names change: each serial stands for one instant."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import dns.message
import pytest

from naming.dns.transfer import messages
from naming.dns.zones.zone import Zone
from naming.table.table import NameTable
from scheduling.core.vocabulary import events
from tests.unit.naming.cells import directory_of, publish, records, reported, running, table_of
from tests.unit.naming.test_snapshots import random_event
from tests.unit.naming.test_zone import APEX, filled


def some_events(rng: Random, number: int) -> list[events.Event]:
    return [random_event(rng, rng.randrange(1, 6), rng.randrange(20), rng.randrange(8)) for _ in range(number)]


def replayed(many: Sequence[events.Event], serial: int) -> set[tuple[object, ...]]:
    """Return the whole zone after the events up to this serial, each of which has its own revision."""
    table = NameTable("cc")
    for revision, event in enumerate(many[:serial], start=1):
        table.apply(event, revision)
    table.ready = True
    return below_the_apex(filled(directory_of(table)))


def below_the_apex(zone: Zone) -> set[tuple[object, ...]]:
    """Return all records except those at the apex, where a TXT record contains the revision."""
    return {(record.owner, record.data) for record in records(zone) if record.owner}


@pytest.mark.parametrize("seed", range(15))
def test_a_serial_is_of_one_instant_whatever_moves_between_its_steps(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("naming.dns.zones.zone.STEP", 5)
    rng = Random(seed)
    seen = some_events(rng, 150)
    table = table_of(*seen)
    zone = filled(directory_of(table))
    steps = 0
    for _ in range(12):
        for event in some_events(rng, 25):
            seen.append(event)
            table.apply(event, len(seen))
        publishing = zone.publishing()
        aborted = rng.random() < 0.3
        for number, _ in enumerate(publishing):
            steps += 1
            if aborted and number == rng.randrange(8):
                publishing.close()
                break
            if number % 3 == 0:
                seen.extend(some_events(rng, 1))
                table.apply(seen[-1], len(seen))
        else:
            assert below_the_apex(zone) == replayed(seen, zone.serial)
    publish(zone)
    assert zone.serial == table.serial
    assert below_the_apex(zone) == replayed(seen, zone.serial)
    assert steps > 50


def test_a_transfer_is_of_the_zone_when_it_was_asked_for() -> None:
    table = table_of(*running(600))
    zone = filled(directory_of(table))
    asked = dns.message.make_query(APEX, "AXFR")
    still = b"".join(messages(asked, zone, "192.0.2.1"))
    parts = []
    for number, wire in enumerate(messages(asked, zone, "192.0.2.1")):
        parts.append(wire)
        table.apply(reported(number, "stopping"), 5_000 + number)
        publish(zone)
    assert len(parts) > 3
    assert b"".join(parts) == still
