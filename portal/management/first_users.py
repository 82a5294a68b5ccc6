"""The first users of a new installation, `sre` and `demo`, with passwords and tokens that are drawn at random."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from django.contrib.auth import get_user_model

from quota.models import Membership, Tenant
from quota.tenancy.members import membership_set
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import GENERAL_SCOPES, Principal, Role, Scope


def first_users_create(*, principal: Principal, tenant: Tenant) -> dict[str, dict[str, str]]:
    """Create the SRE `sre`, and the user `demo`, who owns `tenant`. Return the name, password and token of each user by
    its name. For a user that exists, return only the name.
    """
    return {
        "sre": _user(principal, "sre", staff=True, scopes=list(GENERAL_SCOPES)),
        "demo": _user(principal, "demo", staff=False, scopes=[Scope.READ, Scope.WRITE], tenant=tenant),
    }


def _user(
    principal: Principal, name: str, *, staff: bool, scopes: Sequence[Scope], tenant: Tenant | None = None
) -> dict[str, str]:
    users = get_user_model().objects
    if users.filter(username=name).exists():
        return {"username": name}
    password = secrets.token_urlsafe(12)
    user = users.create_user(name, password=password, is_staff=staff, is_superuser=staff)
    if tenant is not None and not Membership.objects.filter(user=user, tenant=tenant).exists():
        membership_set(principal=principal, tenant=tenant, user=user, role=Role.OWNER)
    _, token = token_issue(
        principal=principal, user=user, name="made at the first start", scopes=[s.value for s in scopes], tenant=tenant
    )
    return {"username": name, "password": password, "token": token}
