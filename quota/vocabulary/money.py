"""Amounts of money as people read and write them. 1 credit is 1,000,000 micro-credits (pure)."""

from __future__ import annotations

import re

CREDIT = 1_000_000
# The largest amount that a column stores.
MOST = 2**63 - 1

_AMOUNT = re.compile(r"^(-?)([0-9]{1,19})(?:\.([0-9]{1,6}))?\Z")


class AmountError(ValueError):
    """The error for a text that is not a valid amount. The message says what was given and what is accepted."""


def format_credits(micro: int, *, places: int = 6) -> str:
    """Return an amount in credits as text: `format_credits(1_234_500_000)` is `"1,234.50"`.

    The text has two to `places` decimals. With 6 places, nothing is rounded; with fewer, halves are rounded to even.
    """
    unit = 10 ** (6 - places)
    whole, left = divmod(abs(micro), unit)
    if 2 * left > unit or (2 * left == unit and whole % 2):
        whole += 1
    digits = f"{whole:0{places + 1}d}"
    whole_credits, behind = digits[:-places], digits[-places:].rstrip("0").ljust(2, "0")
    sign = "-" if micro < 0 and whole else ""
    return f"{sign}{int(whole_credits):,}.{behind}"


def parse(text: str) -> int:
    """Return the micro-credits of an amount in credits, such as `"12.5"` or `"1,200"`. Raises `AmountError` if the text
    is not an amount or the amount is too large.
    """
    match = _AMOUNT.match(text.strip().replace(",", "").replace("_", ""))
    if match is None:
        raise AmountError(
            f"{text[:40]!r} is not an amount of credits; give a number such as 12.5, with at most six decimals"
        )
    sign, whole, behind = match.groups()
    micro = int(whole) * CREDIT + int((behind or "").ljust(6, "0"))
    if micro > MOST:
        raise AmountError(f"{text[:40]!r} is too many credits; give at most {MOST // CREDIT}")
    return -micro if sign else micro
