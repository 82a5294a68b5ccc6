"""Members of tenants and their roles. A tenant without an organisation always keeps an owner."""

from __future__ import annotations

from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Q

from quota import clock, records
from quota.models import Invitation, Membership, ServiceAccount, Tenant
from quota.notifications.notices import notify
from quota.records import RecordEntry
from quota.tenancy.authentication import user_named
from quota.tenancy.tenants import tenants_locked
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, Role, may, require


class InvitationNeeded(Rejected):
    """The rejection of an owner's request to add a person who has not accepted an invitation.

    The rejection is the same whether the user name exists or not.
    """

    status = 403

    def __init__(self, tenant: Tenant, username: str) -> None:
        path = f"/api/v1/tenants/{tenant.name}/invitations/"
        super().__init__(
            "invitation-needed",
            f"Cannot make {username!r} a member of {tenant.name}: people join by accepting an invitation, unless an SRE"
            " adds them. Send an invitation to the person's e-mail address: on the page Invitations of the tenant, with"
            f" `borgctl tenant invite`, or with POST {path}.",
            fields={"user": "not a member; send an invitation"},
            figures={"invitations": path},
        )


def membership_set(
    *, principal: Principal, tenant: Tenant, user: AbstractBaseUser, role: str | None
) -> Membership | None:
    """Set the role of `user` in `tenant`. If `role` is None, remove the member. Idempotent.

    Owners can change the roles of members, but only SREs can add other people. If an owner tries to add a person,
    raises `InvitationNeeded`. Raises `Conflict` if the last owner would lose the role. Raises `Rejected` if a service
    account would become an owner or belong to two tenants. If an owner loses the role, the open invitations that this
    owner sent are withdrawn. Locks: the tenant's row.
    """
    require(principal, Action.TENANT_ADMIN, tenant=tenant.name)
    if role is not None:
        check_role(role)
    with records.write(principal) as entry:
        tenants_locked(tenant.name)
        before = Membership.objects.filter(tenant=tenant, user_id=user.pk).first()
        if role is not None and before is None and not _may_join(principal, user):
            raise InvitationNeeded(tenant, user.get_username())
        account = ServiceAccount.objects.select_related("tenant").filter(user_id=user.pk).first()
        if account is not None:
            _check_account(account, tenant, role)
        if before is not None and role != Role.OWNER:
            _check_owner(entry, before)
        if role is None:
            if before is not None:
                before.delete()
                entry.append("member.removed", tenant=tenant.name, user=user.get_username(), role=before.role)
                _notify(entry, tenant, f"{user.get_username()} is no longer a member of {tenant.name}")
            return None
        if before is not None and before.role == role:
            return before
        return member_set(entry, tenant, user, role)


def member_named(principal: Principal, tenant: Tenant, username: str, *, joining: bool = False) -> AbstractBaseUser:
    """Return the user named `username`.

    SREs can get any user. Owners can get only members of `tenant`, so that they cannot find out other user names.
    `joining`: whether the caller wants to add the user as a member; callers may then name themselves. For any other
    name, raises `InvitationNeeded` if `joining` is true, otherwise `NotFound`. The error does not show whether the user
    exists.
    """
    require(principal, Action.TENANT_ADMIN, tenant=tenant.name)
    member = Membership.objects.select_related("user").filter(tenant=tenant, user__username=username).first()
    if member is not None:
        found: AbstractBaseUser = member.user
        return found
    if may(principal, Action.PLATFORM_ADMIN) or (joining and username == principal.name):
        return user_named(username)
    if joining:
        raise InvitationNeeded(tenant, username)
    raise NotFound("member", username)


def _may_join(principal: Principal, user: AbstractBaseUser) -> bool:
    """Return whether `principal` may add `user`: an SRE may add anybody, and an owner only himself or herself."""
    return may(principal, Action.PLATFORM_ADMIN) or (user.pk is not None and user.pk == principal.user_id)


def member_set(entry: RecordEntry, tenant: Tenant, user: AbstractBaseUser, role: str) -> Membership:
    """Set a member's role in the caller's transaction. The caller has checked the permission."""
    membership, made = Membership.objects.update_or_create(tenant=tenant, user_id=user.pk, defaults={"role": role})
    entry.append("member.set", tenant=tenant.name, user=user.get_username(), role=role)
    verb = "joined" if made else "has another role in"
    _notify(entry, tenant, f"{user.get_username()} {verb} {tenant.name}: {role}")
    return membership


def member_leave(*, principal: Principal, tenant: Tenant, user: AbstractBaseUser) -> None:
    """Remove the caller from the tenant. Locks: the tenant's row.

    Raises `Conflict` if the caller is the last owner or a service account, or has the role from the organisation.
    """
    require(principal, Action.TENANT_SELF, tenant=tenant.name)
    if principal.user_id is None or principal.user_id != user.pk:
        raise Forbidden(
            "tenant.leave", f"{principal.name} can remove only itself; ask an owner to remove other members"
        )
    with records.write(principal) as entry:
        row = tenants_locked(tenant.name)[tenant.name]
        member = Membership.objects.filter(tenant=row, user_id=user.pk).first()
        if member is None:
            above = Tenant.objects.filter(pk=row.parent_id).first()  # type: ignore[misc]
            where = f"; your role comes from {above.name}, so leave {above.name} instead" if above is not None else ""
            raise Conflict(
                "no-member",
                f"you are not a member of {row.name}, so you cannot leave it{where}",
                fields={"user": "not a member"},
            )
        if ServiceAccount.objects.filter(user_id=user.pk).exists():
            raise Conflict(
                "service-account",
                f"{principal.name} is a service account and cannot leave; ask an owner of {row.name} to remove it",
                fields={"user": "this is a service account"},
            )
        _check_owner(entry, member)
        member.delete()
        entry.append("member.left", tenant=row.name, user=user.get_username(), role=member.role)
        _notify(entry, row, f"{user.get_username()} has left {row.name}")


def check_role(role: str) -> None:
    """Check a role. Raises `Rejected` if the role is unknown."""
    if role not in {known.value for known in Role}:
        known = ", ".join(known.value for known in Role)
        raise invalid("role", f"the role {role[:50]!r} is unknown; give one of {known}")


def _check_account(account: ServiceAccount, tenant: Tenant, role: str | None) -> None:
    if account.tenant_id != tenant.pk:
        raise Conflict(
            "service-account",
            f"{account.user.get_username()} is a service account of {account.tenant.name} and cannot join another"
            f" tenant; create a service account for {tenant.name}",
            fields={"user": f"this is a service account of another tenant; create one for {tenant.name}"},
        )
    if role is None:
        raise Conflict(
            "service-account",
            f"{account.user.get_username()} is a service account and stays a member; disable or delete the account",
            fields={"user": "this is a service account"},
        )
    if role == Role.OWNER:
        raise invalid("role", "a service account cannot be an owner; give viewer, operator or buyer")


def member_drop(entry: RecordEntry, member: Membership, *, keep: bool = False) -> None:
    """Take away a member's role in the caller's transaction, also that of the last owner. The caller has checked the
    permission. `keep`: the member gets another role next, so keep the row.
    """
    if member.role == Role.OWNER:
        _withdraw_invitations(entry, member)
    if not keep:
        username, tenant = member.user.get_username(), member.tenant
        member.delete()
        entry.append("member.removed", tenant=tenant.name, user=username, role=member.role)
        _notify(entry, tenant, f"{username} is no longer a member of {tenant.name}")


def _check_owner(entry: RecordEntry, member: Membership) -> None:
    """Withdraw the open invitations that `member` has sent, because `member` loses the role of an owner.

    Raises `Conflict` if `member` is the last owner. A team needs no owner if its organisation has one. If `member` has
    another role, this function does nothing.
    """
    if member.role != Role.OWNER:
        return
    tenant, username = member.tenant, member.user.get_username()
    homes = [tenant.pk] if tenant.parent_id is None else [tenant.pk, tenant.parent_id]
    owners = Membership.objects.filter(tenant__in=homes, role=Role.OWNER.value, user__is_active=True)
    if not owners.exclude(pk=member.pk).exists():
        raise Conflict(
            "last-owner",
            f"{username} is the last owner of {tenant.name}; make another member an owner first",
            fields={"user": "the last owner"},
        )
    _withdraw_invitations(entry, member)


def _withdraw_invitations(entry: RecordEntry, member: Membership) -> None:
    """Withdraw the open invitations that an owner has sent, to the tenant and to its teams."""
    tenant, username, now = member.tenant, member.user.get_username(), clock.now()
    waiting = Invitation.objects.filter(
        Q(tenant=tenant) | Q(tenant__parent=tenant),
        invited_by=username,
        accepted_at=None,
        withdrawn_at=None,
        expires_at__gt=now,
    )
    keys: dict[str, list[str]] = {}
    for name, key in waiting.order_by("tenant__name", "key").values_list("tenant__name", "key"):
        keys.setdefault(name, []).append(key)
    waiting.update(withdrawn_at=now)
    for name, withdrawn in keys.items():
        entry.append("invitation.withdrawn", tenant=name, keys=withdrawn, because=f"{username} is no longer an owner")


def _notify(entry: RecordEntry, tenant: Tenant, subject: str) -> None:
    notify(entry, tenant, "member.changed", subject, subject + ".", url=f"/tenants/{tenant.name}/")
