"""Saved and shared queries: people keep queries under a title, and may share them with the members of a tenant."""

from __future__ import annotations

import datetime as dt

from django.db import transaction
from django.db.models import Q, QuerySet

from quota.selectors import tenant_named, tenants_visible
from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.permissions import Action, Principal, Scope, require
from scheduling.models import SavedQuery

MOST_PER_PERSON = 200
_LONGEST_TITLE, _LONGEST_QUERY = 100, 20_000


def saved_queries(principal: Principal) -> QuerySet[SavedQuery]:
    """Return the principal's own queries, and those that are shared with a tenant that the principal may see."""
    if Scope.READ not in principal.scopes:
        return SavedQuery.objects.none()
    shared = Q(tenant__in=tenants_visible(principal))
    own = Q(owner=principal.name) if principal.tenant is None else Q(pk__in=())
    return SavedQuery.objects.filter(own | shared).select_related("tenant").order_by("title", "id")


@transaction.atomic
def query_save(*, principal: Principal, title: str, query: str, tenant: str, now: dt.datetime) -> SavedQuery:
    """Save a query under a title. A query of the same person with this title is replaced.

    `tenant`: the tenant to share it with, or "". Raises `Rejected` if a value is not valid, and `NotFound` or
    `Forbidden` if the principal may not see the tenant's jobs.
    """
    title = title.strip()
    if not 1 <= len(title) <= _LONGEST_TITLE:
        raise invalid("title", f"the title has {len(title)} characters; give 1 to {_LONGEST_TITLE}")
    if not 1 <= len(query.strip()) <= _LONGEST_QUERY:
        raise invalid("query", f"the query has {len(query)} characters; give 1 to {_LONGEST_QUERY}")
    shared = tenant_named(principal, tenant) if tenant else None
    if shared is not None:
        require(principal, Action.JOB_VIEW, tenant=shared.name)
    own = SavedQuery.objects.filter(owner=principal.name)
    if own.exclude(title=title).count() >= MOST_PER_PERSON:
        raise invalid("title", f"you have {MOST_PER_PERSON} saved queries; delete one of them first")
    saved, _ = SavedQuery.objects.update_or_create(
        owner=principal.name, title=title, defaults={"query": query, "tenant": shared, "changed_at": now}
    )
    return saved


@transaction.atomic
def query_delete(*, principal: Principal, number: int) -> None:
    """Delete a query that the principal saved. Raises `NotFound` for any other query."""
    deleted, _ = SavedQuery.objects.filter(owner=principal.name, pk=number).delete()
    if not deleted:
        raise NotFound("saved query", str(number))
