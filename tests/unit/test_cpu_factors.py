"""Tests of the factors with which the CPU of a platform is normalised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.vocabulary.errors import Rejected
from scheduling.policy import cell_settings
from scheduling.policy.cpu_factors import LEAST, MOST, ONE, factor_of, machine_milli, normalised, parse_cpu_factors


def test_a_text_names_platforms_and_their_factors() -> None:
    factors = parse_cpu_factors(" haswell=1, sky=lake = 1.25,,slow=0.5 ")
    assert factors == {"haswell": 1000, "sky=lake": 1250, "slow": 500}
    assert [factor_of(factors, name) for name in ("sky=lake", "other", "")] == [1250, ONE, ONE]
    assert parse_cpu_factors("") == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("skylake", "'skylake' is not a platform and its factor; write, for example, skylake=1.25"),
        ("=2", "is not a platform and its factor"),
        ("a" * 64 + "=2", "is not a platform and its factor"),
        ("a=fast", "the factor of platform a is 'fast'; give a number from 0.1 to 10, with at most three decimals"),
        ("a=nan", "give a number from 0.1 to 10"),
        ("a=0.05", "give a number from 0.1 to 10"),
        ("a=11", "give a number from 0.1 to 10"),
        ("a=1e99999999", "give a number from 0.1 to 10"),
        ("a=1.2345", "with at most three decimals"),
        ("a=1,a=2", "platform a is named twice"),
        (",".join(f"p{n}=2" for n in range(101)), "101 platforms have a factor; name at most 100"),
    ],
)
def test_a_wrong_text_is_rejected_with_the_cure(text: str, problem: str) -> None:
    with pytest.raises(Rejected) as caught:
        cell_settings.accept({"cpu_factors": text})
    assert problem in caught.value.fields["settings.cpu_factors"]


@given(milli=st.integers(1, 10**7), factor=st.integers(LEAST, MOST))
def test_a_task_gets_at_least_what_it_asks_for_and_a_machine_promises_no_more_than_it_has(milli, factor) -> None:
    assert normalised(machine_milli(milli, factor), factor) >= milli
    assert machine_milli(normalised(milli, factor), factor) <= milli
    assert normalised(milli, ONE) == machine_milli(milli, ONE) == milli
