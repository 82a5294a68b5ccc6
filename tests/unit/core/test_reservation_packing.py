"""Tests of the compact form in which the reservations of many tasks are stored."""

from __future__ import annotations

import base64
import zlib

import msgspec
import numpy as np
import pytest

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.events import ReservationsSet
from scheduling.core.vocabulary.reservation_packing import pack, unpack

MIB = 2**20


def many(number: int, *, unit: int = MIB) -> ReservationsSet:
    rng = np.random.default_rng(5)
    amounts = rng.integers(1, 4000, (number, 3)) * (1, unit, unit)
    tails = [(0, 0, 1), (0, 2000, 3, 7)]
    return ReservationsSet(
        tasks=tuple((7 + n // 90, n % 90) for n in range(number)),
        reservations=tuple((*row, *tails[n % 17 == 0]) for n, row in enumerate(amounts.tolist())),
    )


@pytest.mark.parametrize("number", [1, 2, 1000])
@pytest.mark.parametrize("unit", [1, MIB])
def test_an_event_is_the_same_after_it_was_stored(number: int, unit: int) -> None:
    event = many(number, unit=unit)
    stored = events.encode(event)
    assert events.decode(stored) == event
    assert msgspec.json.decode(stored)["number"] == number


def test_the_order_of_the_tasks_does_not_matter() -> None:
    event = ReservationsSet(tasks=((9, 1), (2, 5), (9, 0)), reservations=((1, 2, 3), (4, 5, 6), (7, 8, 9, 1)))
    assert events.decode(events.encode(event)) == event


def test_a_thousand_tasks_take_a_quarter_of_the_bytes() -> None:
    event = many(1000)
    plain = msgspec.json.encode({"tasks": event.tasks, "reservations": event.reservations})
    assert len(events.encode(event)) < len(plain) / 4


def test_an_event_of_version_1_stays_readable() -> None:
    stored = b'{"kind":"reservations.set","tasks":[[4,0]],"reservations":[[250,1048576,2097152,0,0,1]]}'
    assert events.decode(stored) == ReservationsSet(tasks=((4, 0),), reservations=((250, MIB, 2 * MIB, 0, 0, 1),))


@pytest.mark.parametrize(
    "packed",
    [
        "nonsense",
        "z:nonsense",
        "z:" + base64.b64encode(zlib.compress(b"[1]")).decode(),
        "z:" + base64.b64encode(zlib.compress(pack(((1, 1),), ((1, 2, 3),)).encode())[:-6]).decode(),
        "[1,[[]],[1],[1],[1],[1],[1],[3]]",
        "[1,[[]],[1,2],[1],[1],[1],[1],[0]]",
    ],
)
def test_a_damaged_text_is_rejected_with_its_field(packed: str) -> None:
    with pytest.raises(
        msgspec.ValidationError,
        match=r"list of reservations \(field `packed`\) cannot be read: the packed reservations are damaged: ",
    ):
        events.decode(msgspec.json.encode({"kind": "reservations.set", "number": 1, "packed": packed}))


def test_lists_of_different_lengths_are_rejected() -> None:
    with pytest.raises(ValueError, match="2 tasks have 1 reservations"):
        pack(((1, 0), (1, 1)), ((1, 2, 3),))
    with pytest.raises(ValueError, match="fewer than three amounts"):
        pack(((1, 0),), ((1, 2),))


def test_an_empty_event_stays_empty() -> None:
    assert events.decode(events.encode(ReservationsSet())) == ReservationsSet()
    assert unpack(pack((), ())) == ((), ())
