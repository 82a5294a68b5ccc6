"""Tests of the amounts that are credited for broken promises."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from quota.billing.credits.credit_rules import (
    EVICTIONS,
    PENDING,
    Breach,
    CapKey,
    HourCharge,
    HourKey,
    amounts,
    price_of,
)

KEY = HourKey("cc", "1" * 32, 1, 7)
KEY_OF_A = HourKey("cc", "a", 1, 0)
CAP = CapKey("cc", "1" * 32, 3)
# Ten tasks of a core and a GiB for an hour: the CPU costs 600, the RAM 300, and the usage 100.
CHARGE = HourCharge((10_000 * 3600, 10 * 2**30 * 3600), (Fraction(600), Fraction(300)), usage=100)


def breach(id: int = 1, kind: str = PENDING, *, tasks: float = 1, hours: float = 1, share: int = 1000) -> Breach:
    affected = (int(1000 * 3600 * tasks * hours), int(2**30 * 3600 * tasks * hours))
    return Breach(id, KEY, 3, kind, affected, share)


def test_a_pending_task_gets_its_part_of_the_quota_and_no_usage() -> None:
    assert price_of(breach(), CHARGE) == 90
    assert price_of(breach(hours=0.5), CHARGE) == 45
    assert price_of(breach(share=250), CHARGE) == Fraction(45, 2)


def test_pending_tasks_get_at_most_the_quota_of_the_job() -> None:
    assert price_of(breach(tasks=25), CHARGE) == 900


def test_an_eviction_gets_the_price_of_its_hours_with_usage() -> None:
    assert price_of(breach(kind=EVICTIONS, hours=2), CHARGE) == 2 * (90 + 10)


def test_a_resource_without_a_limit_adds_nothing() -> None:
    charge = HourCharge((10_000 * 3600, 0), (Fraction(600), Fraction(0)), usage=100)
    assert price_of(breach(kind=EVICTIONS), charge) == 60 + 10


def test_the_charge_of_the_job_is_the_cap_and_pending_time_comes_first() -> None:
    found = amounts([breach(1, EVICTIONS, hours=8), breach(2)], {KEY: CHARGE}, {CAP: 200}, 10_000)
    assert found == {2: 90, 1: 110}


def test_a_tenant_gets_at_most_what_it_paid() -> None:
    assert amounts([breach(1), breach(2)], {KEY: CHARGE}, {CAP: 1000}, 100) == {1: 90, 2: 10}


def test_an_hour_without_a_charge_gets_nothing() -> None:
    assert amounts([breach()], {}, {CAP: 1000}, 1000) == {1: 0}
    assert amounts([breach()], {KEY: CHARGE}, {}, 1000) == {1: 0}


breaches = st.lists(
    st.builds(
        lambda key, kind, affected, share: (key, kind, affected, share),
        st.sampled_from([HourKey("cc", "a", 1, 0), HourKey("cc", "a", 1, 1), HourKey("cc", "b", 2, 0)]),
        st.sampled_from([PENDING, EVICTIONS]),
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**15)),
        st.integers(0, 1500),
    ),
    max_size=12,
)
charge = st.builds(
    HourCharge,
    st.tuples(st.integers(0, 10**8), st.integers(0, 10**14)),
    st.tuples(st.fractions(0, 10**9), st.fractions(0, 10**9)),
    st.integers(0, 10**9),
)


@given(
    breaches,
    st.dictionaries(st.sampled_from([("a", 1, 0), ("a", 1, 1), ("b", 2, 0)]), charge),
    st.booleans(),
    st.randoms(),
)
@example(
    [(KEY_OF_A, EVICTIONS, (10**9, 10**9), 1000)],
    {
        ("a", 1, 0): HourCharge((1000, 1000), (Fraction(10), Fraction(10)), 1),
        ("b", 2, 0): HourCharge((1000, 1000), (Fraction(1000), Fraction(0)), 0),
    },
    False,
    Random(1),
)
def test_credits_never_exceed_the_charge_and_do_not_depend_on_the_order(given_breaches, found, tight, random) -> None:
    charges = {HourKey("cc", job, band, hour): one for (job, band, hour), one in found.items()}
    caps: dict[CapKey, int] = {}
    for key, one in charges.items():
        cap = CapKey("cc", key.job_uid, 3)
        caps[cap] = caps.get(cap, 0) + int(sum(one.quota)) + one.usage
    rows = [Breach(n, key, 3, kind, affected, share) for n, (key, kind, affected, share) in enumerate(given_breaches)]
    most = sum(caps.values()) // (2 if tight else 1)
    credited = amounts(rows, charges, caps, most)
    assert set(credited) == {row.id for row in rows}
    assert all(amount >= 0 for amount in credited.values())
    assert sum(credited.values()) <= most
    for job in ("a", "b"):
        of_job = sum(credited[row.id] for row in rows if row.key.job_uid == job)
        assert of_job <= caps.get(CapKey("cc", job, 3), 0)
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert amounts(shuffled, charges, caps, most) == credited
