"""What a person prefers on pages: the time zone, and whether the home page shows the first steps.

Preferences concern only the person, so their changes write no record to the journal.
"""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError

from quota import clock
from quota.models import Preferences
from quota.tenancy.tenants import time_zone_checked
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.permissions import Principal

SHOWN, HIDDEN = "shown", "hidden"
# A process does not write the same mark again for these users. The set is emptied when it is full.
_LOG_OPENED: set[int] = set()
_MOST_KNOWN = 10_000


def preferences_of(principal: Principal) -> Preferences:
    """Return the preferences of the caller, or the defaults. Makes one query."""
    return Preferences.objects.filter(pk=principal.user_id or 0).first() or Preferences(user_id=principal.user_id or 0)


def time_zone_set(*, principal: Principal, time_zone: str) -> None:
    """Store the time zone of times on the caller's pages; empty: that of the browser. Raises `Rejected` if there is no
    such time zone, or the caller is not a person.
    """
    _store(principal, time_zone=time_zone_checked(time_zone) if time_zone else "")


def first_steps_set(*, principal: Principal, first_steps: str) -> None:
    """Store whether the home page of the caller shows the first steps: `shown` or `hidden`. Raises `Rejected` for
    other values, and if the caller is not a person.
    """
    if first_steps not in (SHOWN, HIDDEN):
        raise invalid("first_steps", f"{first_steps[:20]!r} is not a choice; give {SHOWN} or {HIDDEN}")
    _store(principal, first_steps=first_steps)


def steps_done(principal: Principal) -> None:
    """Store that the caller has done all first steps."""
    _store(principal, steps_done_at=clock.now())


def log_opened(principal: Principal) -> None:
    """Store that the caller has opened the log of a task in a browser. Writes at most once per process and person. If
    PostgreSQL does not accept the write, the mark is missing, and the log is still answered.
    """
    user_id = principal.user_id
    if user_id is None or principal.token or user_id in _LOG_OPENED:
        return
    try:
        if not Preferences.objects.filter(pk=user_id, log_opened_at__isnull=False).exists():
            _store(principal, log_opened_at=clock.now())
    except DatabaseError:
        return
    if len(_LOG_OPENED) >= _MOST_KNOWN:
        _LOG_OPENED.clear()
    _LOG_OPENED.add(user_id)


def _store(principal: Principal, **values: Any) -> None:
    if principal.user_id is None:
        raise Rejected(
            "no-person",
            f"{principal.name} is not a person, and only people have preferences; sign in as a person",
            status=403,
        )
    Preferences.objects.update_or_create(user_id=principal.user_id, defaults=values)
