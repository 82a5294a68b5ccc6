"""Tests of reading and writing amounts of money."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.vocabulary import money


@pytest.mark.parametrize(
    "micro, text",
    [
        (0, "0.00"),
        (1, "0.000001"),
        (12_500_000, "12.50"),
        (1_234_567_891_000, "1,234,567.891"),
        (-500_000, "-0.50"),
        (2**63 - 1, "9,223,372,036,854.775807"),
    ],
)
def test_an_amount_is_reported_without_loss(micro, text) -> None:
    assert money.format_credits(micro) == text


@pytest.mark.parametrize(
    "micro, text", [(4_999, "0.00"), (5_000, "0.00"), (15_000, "0.02"), (995_001, "1.00"), (-4_000, "0.00")]
)
def test_an_amount_is_rounded_where_that_is_asked_for(micro, text) -> None:
    assert money.format_credits(micro, places=2) == text


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_what_is_reported_is_read_again(micro) -> None:
    assert money.parse(money.format_credits(micro)) == micro


@pytest.mark.parametrize("text", ["", "x", "1.2345678", "1e9", "٣", "--1", "9223372036855", "1.", "0x1"])
def test_input_that_is_not_an_amount_is_refused(text) -> None:
    with pytest.raises(money.AmountError, match="credits"):
        money.parse(text)
