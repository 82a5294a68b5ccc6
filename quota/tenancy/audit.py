"""Reads the audit log, newest records first. Owners see the records of their tenants, and SREs see all records."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from django.db.models import Q, QuerySet

from quota.models import Record, ServiceAccount
from quota.selectors import tenant_named
from quota.tenancy.member_lists import administered
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Action, Principal, may, require

MAX_TEXT = 200


def records_visible(
    principal: Principal,
    *,
    tenant: str = "",
    kind: str = "",
    actor: str = "",
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> QuerySet[Record]:
    """Return the records of `tenant`. If it is empty, return those of all tenants that the principal owns, or all for
    SREs.

    `kind`: the kind of the records, such as `member.set`, or the part before the dot, such as `member`. Records at the
    time `until` are left out. Raises `Rejected` if a text is too long or contains a NUL character. Raises `NotFound` or
    `Forbidden` if the caller may not see the records of `tenant`.
    """
    rows = Record.objects.order_by("-revision")
    for name, text in (("kind", kind), ("actor", actor)):
        if len(text) > MAX_TEXT or "\x00" in text:
            raise invalid(
                name, f"the {name} is too long or contains a NUL character; give at most {MAX_TEXT} characters"
            )
    if tenant:
        require(principal, Action.TENANT_ADMIN, tenant=tenant_named(principal, tenant).name)
        rows = rows.filter(tenant=tenant)
    elif principal.tenant is not None or not may(principal, Action.PLATFORM_ADMIN):
        rows = rows.filter(tenant__in=administered(principal))
    if kind:
        rows = rows.filter(Q(kind=kind) | Q(kind__startswith=kind.rstrip(".") + "."))
    limits = {"actor": actor, "time__gte": since, "time__lt": until}
    return rows.filter(**{name: value for name, value in limits.items() if value})


def makers_of(actors: Iterable[str]) -> dict[str, str]:
    """Return, for each service account that `actors` names, the user name of its creator. Makes one query."""
    found = ServiceAccount.objects.filter(user__username__in=set(actors))
    return dict(found.values_list("user__username", "created_by"))
