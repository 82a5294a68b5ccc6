"""Limits on guessing passwords, for the sign-in form, `POST /api/v1/login/` and reauthentication.

    attempt ─► waiting time ended? ─ no ─► TooManyAttempts (429, Retry-After); the password is not checked
                   │ yes: count the attempt as wrong
                   ▼
               check ─► right: do not count the attempt, and mark the address as usual for this account

An address is *usual* for an account for 30 days after a sign-in to the account from this address. The first wrong
attempts cause no wait. Each further wrong attempt doubles the waiting time, up to a maximum. Three kinds of wrong
attempts are limited separately. At a usual address, only the first kind is limited:

* wrong attempts on the account from this address,
* wrong attempts on the account from all addresses that are not usual for the account,
* wrong attempts from this address on all accounts for which the address is not usual.

So attempts from other addresses never make the owner wait at a usual address. Wrong attempts from the owner's own
address make the owner wait for at most a minute. The numbers of wrong attempts are stored in Django's cache, which is
per process.
"""

from __future__ import annotations

import hashlib
import ipaddress
import threading
import unicodedata
from collections.abc import Callable
from math import ceil
from typing import NamedTuple, TypeVar

from django.core.cache import cache
from django.http import HttpRequest

from quota import clock
from quota.vocabulary.errors import Rejected

_Found = TypeVar("_Found")


class Limit(NamedTuple):
    """A limit on wrong attempts. `free`: how many attempts cause no wait. `longest_s`: the longest wait in seconds."""

    free: int
    longest_s: float

    def wait_s(self, wrong: int) -> float:
        """Return how many seconds a user must wait after `wrong` wrong attempts in a row."""
        return 0.0 if wrong < self.free else min(self.longest_s, 2.0 ** min(wrong - self.free, 16))


PAIR, ACCOUNT, ADDRESS = Limit(10, 60.0), Limit(50, 30.0), Limit(50, 30.0)
# Counts are reset this many seconds after the last wrong attempt.
FORGOTTEN_AFTER_S = 900
# An address is usual for an account for this many seconds after a sign-in.
USUAL_FOR_S = 30 * 86_400
_lock = threading.Lock()


TOO_MANY = "too-many-attempts"


class TooManyAttempts(Rejected):
    """The rejection of a sign-in attempt before the waiting time has ended. `figures["retry_after_s"]`: how many
    seconds the user must still wait.
    """

    status = 429

    def __init__(self, seconds: int) -> None:
        super().__init__(
            TOO_MANY,
            f"Cannot check the password: there were too many wrong attempts. Try again in {seconds} s.",
            figures={"retry_after_s": seconds},
        )


class _Wrong(NamedTuple):
    """The number of wrong attempts in a row, and the time of the last wrong attempt in seconds since 1970."""

    count: int  # type: ignore[assignment]
    at: float


def check_limited(username: str, address: str, check: Callable[[], _Found | None]) -> _Found | None:
    """Call `check` if the limits allow it, and return its result: the user, or None if the password is wrong.

    While `check` runs, the attempt counts as wrong, so that parallel attempts are limited too. Raises `TooManyAttempts`
    if the limits do not allow the attempt.
    """
    account, place = _account(username), place_of(address)
    pair, usual = f"sign-in:pair:{account}:{place}", f"sign-in:usual:{account}:{place}"
    limits = {pair: PAIR}
    with _lock:
        if not cache.get(usual):
            limits |= {f"sign-in:account:{account}": ACCOUNT, f"sign-in:address:{place}": ADDRESS}
        now = clock.now().timestamp()
        counts = {key: cache.get(key) or _Wrong(0, now) for key in limits}
        wait_s = max(limits[key].wait_s(wrong.count) + wrong.at - now for key, wrong in counts.items())
        if wait_s > 0:
            raise TooManyAttempts(ceil(wait_s))
        for key, wrong in counts.items():
            cache.set(key, _Wrong(wrong.count + 1, now), FORGOTTEN_AFTER_S)
    try:
        found = check()
    except BaseException:
        _take_back(limits)
        raise
    if found is not None:
        _take_back(limits)
        cache.delete(pair)
        cache.set(usual, True, USUAL_FOR_S)
    return found


def address_of(request: HttpRequest) -> str:
    """Return the address of the client. For a request through a trusted proxy, uvicorn has already put the client's
    address in the place of the proxy's address.

    This function does not read the header `X-Forwarded-For`, because clients can set it themselves.
    """
    return str(request.META.get("REMOTE_ADDR", ""))


def _take_back(keys: dict[str, Limit]) -> None:
    with _lock:
        for key in keys:
            wrong = cache.get(key)
            if wrong is not None:
                cache.set(key, _Wrong(max(0, wrong.count - 1), wrong.at), FORGOTTEN_AFTER_S)


def _account(username: str) -> str:
    """Return a digest of the user name.

    All spellings of the same name have the same digest. The account need not exist.
    """
    name = unicodedata.normalize("NFKC", username).strip().casefold()
    return hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()


def place_of(address: str) -> str:
    """Return an IPv4 address unchanged. For an IPv6 address, return its /64 network.

    One client can use all addresses of a /64 network.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return hashlib.sha256(address.encode(errors="backslashreplace")).hexdigest()
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(found), 64), strict=False).network_address)
    return str(getattr(found, "ipv4_mapped", None) or found)
