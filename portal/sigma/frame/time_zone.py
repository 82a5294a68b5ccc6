"""The time zone of the times on a page."""

from __future__ import annotations

from django.http import HttpRequest

from quota.tenancy.tenants import time_zones
from quota.vocabulary.permissions import Principal

# `sigma.js` stores the time zone of the browser in this cookie, because requests do not contain it.
COOKIE = "borg-time-zone"


def zone_for(request: HttpRequest, principal: Principal) -> str:
    """Return the name of the time zone for the times on a page: the one that the user chose, or else that of the
    browser, or else that of the user's first tenant.
    """
    browser = request.COOKIES.get(COOKIE, "")
    return principal.time_zone or (browser if browser in time_zones() else principal.tenant_zone)
