"""Limits on the rate of requests per token, tenant and address, with the headers of the IETF draft
draft-ietf-httpapi-ratelimit-headers-10.

    RateLimit-Policy: "token";q=3000;w=10, "address";q=10000;w=10      q requests per w seconds
    RateLimit: "token";r=2999;t=1, "address";r=9998;t=1                r requests are left; all are in t seconds

A request is rejected before its body is read. So the portal has not checked its token yet, and a *token* here is any
credential: a bearer token, or the cookie of a session. The tenant of a token is known after the first request with it:
the tenant that the token is bound to, or the only tenant of its owner. People with several tenants are limited by token
and by address.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from math import ceil
from typing import Any

from django.conf import settings
from django.http.cookie import parse_cookie

from portal.http.errors import FOR_PROGRAMS
from portal.http.outages import Outage
from quota.tenancy.sign_in_limits import place_of
from quota.vocabulary.permissions import Principal
from serving.buckets import WINDOW_S, Bucket, Rate
from serving.shared_buckets import SharedBuckets, Taken

_MOST_TENANTS = 50_000
_CALLERS = {"token": "this token", "tenant": "the tenant of this token", "address": "your address"}
_tenants: dict[str, str] = {}

Headers = list[tuple[bytes, bytes]]


class RequestRates:
    """Limits the rate of requests per token, tenant and address. Its methods may be called only in the event loop.

    `token`, `tenant`, `address`: requests per second; 0 means no limit.
    """

    def __init__(self, buckets: SharedBuckets, *, token: int, tenant: int, address: int) -> None:
        self._buckets = buckets
        self._token, self._tenant = Rate("token", token), Rate("tenant", tenant)
        self._address = Rate("address", address)

    def take(self, scope: dict[str, Any]) -> Taken:
        """Count a request. The result says whether it may run, and which limits it has."""
        return self._buckets.take((rate, name) for rate, name in self._callers(scope) if rate.per_s and name)

    async def close(self) -> None:
        await self._buckets.close()

    def _callers(self, scope: dict[str, Any]) -> Iterator[tuple[Rate, str]]:
        token = _digest(_credential(scope))
        yield self._token, token
        yield self._tenant, _tenants.get(token, "")
        yield self._address, place_of(scope["client"][0]) if scope.get("client") else ""


def parts_of(header: str) -> tuple[str, str]:
    """Return the scheme and the secret in the header `Authorization`."""
    scheme, _, secret = header.partition(" ")
    return scheme, secret.strip()


def _credential(scope: dict[str, Any]) -> str:
    """Return the bearer token or the session of a request. Return an empty text if it has neither.

    The function reads the headers in the same way as Django, because otherwise a caller could send the same credential
    in many spellings, each with its own limit. Pages ignore the header `Authorization`.
    """
    secret, cookies = "", []
    for name, value in scope["headers"]:
        if name == b"authorization" and scope["path"].startswith(FOR_PROGRAMS):
            secret = parts_of(value.decode("latin-1"))[1]
        elif name == b"cookie":
            cookies.append(value.decode("latin-1"))
    if secret or not cookies:
        return secret
    return parse_cookie(",".join(cookies)).get(settings.SESSION_COOKIE_NAME, "")


def remember_tenant(token: str, principal: Principal) -> None:
    """Remember the tenant of a token that was checked, so that later requests with it count for the tenant. Any thread
    may call this function.
    """
    only = next(iter(principal.roles)) if len(principal.roles) == 1 else ""
    if len(_tenants) >= _MOST_TENANTS:
        _tenants.clear()
    _tenants[_digest(token)] = principal.tenant or only


def forget_tenant(token: str) -> None:
    """Forget the tenant of a token that is not valid any more, so that its requests no longer count for the tenant."""
    _tenants.pop(_digest(token), None)


def headers_of(taken: Taken, path: str) -> Headers:
    """Return the headers that show the limits of a request, and how many requests are left. Only programs get them."""
    if not taken.buckets or not path.startswith(FOR_PROGRAMS):
        return []
    now = taken.now
    policies = ", ".join(f'"{each.rate.name}";q={each.rate.quota};w={WINDOW_S}' for each in taken.buckets)
    state = ", ".join(f'"{each.rate.name}";r={each.left(now)};t={each.refill_s(now)}' for each in taken.buckets)
    return [(b"ratelimit-policy", policies.encode()), (b"ratelimit", state.encode())]


def rejection(bucket: Bucket, wait_s: float) -> Outage:
    """Return the answer to a request whose bucket has no token for `wait_s` seconds."""
    rate, retry_after_s = bucket.rate, ceil(wait_s)
    return Outage(
        "too-many-requests",
        f"The request was not carried out, because {_CALLERS[rate.name]} has sent more requests than the limit of "
        f"{rate.per_s} per second allows. Try again in {retry_after_s} s, and send fewer requests.",
        retry_after_s,
        status=429,
        figures={"limit": rate.name, "quota": rate.quota, "window_s": WINDOW_S, "retry_after_s": retry_after_s},
    )


def _digest(secret: str) -> str:
    """Return a name for a credential that does not reveal it."""
    return blake2b(secret.encode(), digest_size=12).hexdigest() if secret else ""
