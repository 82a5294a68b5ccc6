"""Normalised CPU (§5.4): how much faster or slower a core of each platform is than a normalised core. Pure.

cores that a machine reports ── × factor of its platform ──► normalised cores: capacity, limits, quota, prices, usage
limit of a task              ── ÷ factor ──────────────────► cores of this machine: what its Borglet gets

A factor is stored in thousandths, so that all amounts stay whole milli-cores. `ONE` stands for a factor of 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

ONE = 1000
LEAST, MOST = 100, 10_000
MOST_PLATFORMS = 100
_NUMBER = re.compile(r"[0-9]{1,2}(\.[0-9]{1,3})?")
_MOST_PLATFORM_NAME = 63
# The largest amount of a resource, as in `quota.vocabulary.resources`.
_MOST_MILLI = 2**53


def parse_cpu_factors(text: str) -> dict[str, int]:
    """Return the factor of each platform in thousandths, from a text such as `haswell=1, skylake=1.25`. Raises
    ValueError if the text is wrong; the message says what to do.
    """
    factors: dict[str, int] = {}
    parts = [part for part in (part.strip() for part in text.split(",")) if part]
    if len(parts) > MOST_PLATFORMS:
        raise ValueError(f"{len(parts)} platforms have a factor; name at most {MOST_PLATFORMS}")
    for part in parts:
        platform, _, number = (piece.strip() for piece in part.rpartition("="))
        if not 1 <= len(platform) <= _MOST_PLATFORM_NAME:
            raise ValueError(f"{part[:80]!r} is not a platform and its factor; write, for example, skylake=1.25")
        if platform in factors:
            raise ValueError(f"platform {platform} is named twice; name each platform once")
        factors[platform] = _thousandths(platform, number)
    return factors


def normalised(milli: int, factor: int) -> int:
    """Return an amount of CPU of a machine in normalised milli-cores, rounded down. `factor`: in thousandths."""
    return milli if factor == ONE else min(milli * factor // ONE, _MOST_MILLI)


def machine_milli(milli: int, factor: int) -> int:
    """Return a normalised amount of CPU in milli-cores of a machine, rounded up, so that a task gets at least what it
    asks for. `factor`: in thousandths.
    """
    return milli if factor == ONE else -(-milli * ONE // factor)


def factor_of(factors: Mapping[str, int], platform: str) -> int:
    """Return the factor of a platform in thousandths. A platform that has no factor has the factor 1."""
    return factors.get(platform, ONE)


def _thousandths(platform: str, number: str) -> int:
    """Return a factor such as `1.25` in thousandths. Raises ValueError if it has another form, or is out of range."""
    if not _NUMBER.fullmatch(number) or not LEAST <= (factor := int(Decimal(number) * ONE)) <= MOST:
        wanted = "give a number from 0.1 to 10, with at most three decimals, such as 1.25"
        raise ValueError(f"the factor of platform {platform} is {number[:20]!r}; {wanted}")
    return factor
