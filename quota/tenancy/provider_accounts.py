"""Gives a person who signs in through an identity provider the rights that the person's groups there give.

The provider decides about all tenants, user groups and SREs that the setting BORG_OIDC_ROLES names: at each sign-in,
the person gets what the groups give, and loses everything else there. Other tenants are not changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import Group

from quota import records
from quota.models import Membership, Tenant
from quota.records import RecordEntry
from quota.tenancy.members import member_drop, member_set
from quota.tenancy.second_factor import second_factors_drop
from quota.tenancy.tenants import tenants_locked
from quota.tenancy.tokens import revoke, tokens_in_force
from quota.vocabulary.permissions import Action, Principal, require, system
from quota.vocabulary.provider_groups import GroupRoles, Rights


def rights_apply(*, user: Any, rights: Rights, decided: GroupRoles, request_id: str = "") -> None:
    """Set the roles, the user groups and the state as SRE of `user`. Idempotent. Locks: the rows of the tenants.

    `decided`: the setting, which says what the provider decides about. Tenants that do not exist are ignored. A person
    also loses the role of the last owner of a tenant, because the provider is right; an SRE can add another owner.
    """
    with records.write(system("identity-provider", request_id=request_id)) as entry:
        _apply_roles(entry, user, rights, decided)
        _apply_groups(entry, user, rights, decided)
        if decided.sre and (user.is_staff != rights.sre or (user.is_superuser and not rights.sre)):
            user.is_staff = rights.sre
            user.is_superuser = user.is_superuser and rights.sre
            user.save(update_fields=["is_staff", "is_superuser"])
            entry.append("sre.set", user=user.get_username(), sre=rights.sre)


def from_provider(user: Any) -> bool:
    """Return whether `user` belongs to a person of the identity provider, who signs in only there."""
    return bool(SocialAccount.objects.filter(user_id=user.pk).exists())


def provider_unlink(*, principal: Principal, users: Iterable[Any]) -> int:
    """Separate accounts from the people of the identity provider, and return how many accounts were linked.

    Such an account can sign in with a password that an SRE sets, and can be linked to another person, for example after
    a change of the provider. Raises `Forbidden` unless the caller is an SRE.
    """
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as entry:
        linked = SocialAccount.objects.filter(user_id__in=[user.pk for user in users]).select_related("user")
        names = sorted({row.user.get_username() for row in linked})
        linked.delete()
        for name in names:
            entry.append("account.unlinked", user=name)
    return len(names)


def account_handed_over(*, user: Any, request_id: str = "") -> None:
    """Take from the account `user` all ways to use it, before a person of the identity provider gets it.

    Somebody else may have prepared the account for this person. So its password and its second factors are removed, its
    tokens are revoked, and its sessions end. Locks: the tokens, in order of their ids.
    """
    with records.write(system("identity-provider", request_id=request_id)) as entry:
        user.set_unusable_password()
        user.save(update_fields=["password"])
        own = tokens_in_force().filter(user_id=user.pk).select_for_update().order_by("id")
        revoke(entry, list(own.values_list("pk", flat=True)))
        second_factors_drop(entry, {user.pk: user.get_username()})


def _apply_roles(entry: RecordEntry, user: Any, rights: Rights, decided: GroupRoles) -> None:
    known = Tenant.objects.filter(name__in=decided.tenants).values_list("name", flat=True)
    tenants = tenants_locked(*sorted(known))
    held = {row.tenant_id: row for row in Membership.objects.select_related("tenant", "user").filter(user=user)}
    for name, tenant in tenants.items():
        role, before = rights.roles.get(name), held.get(tenant.pk)
        if before is not None and before.role != role:
            member_drop(entry, before, keep=role is not None)
        if role is not None and (before is None or before.role != role):
            member_set(entry, tenant, user, role.value)


def _apply_groups(entry: RecordEntry, user: Any, rights: Rights, decided: GroupRoles) -> None:
    rows = {group.name: group for group in Group.objects.filter(name__in=decided.groups)}
    held = set(user.groups.filter(name__in=rows).values_list("name", flat=True))
    wanted = rights.groups & rows.keys()
    if held != wanted:
        user.groups.remove(*(rows[name] for name in held - wanted))
        user.groups.add(*(rows[name] for name in wanted - held))
        entry.append("user-groups.set", user=user.get_username(), groups=sorted(wanted))
