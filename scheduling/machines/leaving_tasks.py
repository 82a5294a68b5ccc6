"""Which tasks leave a draining machine: all of them, or only those that a re-packing has named (`Drain.only`)."""

from __future__ import annotations

from django.db.models import F, Q


def leaves() -> Q:
    """Return the condition that a task on a draining machine leaves. Tasks inside an alloc leave with it."""
    only = "machine__drain__only"
    named = Q(**{f"{only}__contains": [F("id")]}) | Q(**{f"{only}__contains": [F("alloc_id")]})
    return Q(**{f"{only}__isnull": True}) | named
