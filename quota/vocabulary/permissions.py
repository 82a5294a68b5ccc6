"""Decides which principal may do which action, in one pure function that all services and pages use.

    person or token ──► Principal ──► may(principal, action, tenant=…, cell=…) ──► True | False

With a token, a user has only those rights that the tenant and the scopes of the token allow. Objects that a principal
may not see are reported as not found, so that nobody can find out the names of other tenants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from quota.vocabulary.errors import Forbidden


class Role(StrEnum):
    """The role of a member in a tenant. Each role includes the rights of `viewer`."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    BUYER = "buyer"
    OWNER = "owner"


class CapabilityKind(StrEnum):
    """The kinds of privileges that an SRE grants to a user, with a reason and an end (§2.5)."""

    ANY_JOB = "any-job"  # change or kill any job of the cell
    NO_RECLAMATION = "no-reclamation"  # switch off resource estimation for the user's own jobs
    RESERVE_CORES = "reserve-cores"
    SHELL = "shell"


class Scope(StrEnum):
    """The scopes that a token can have. A token gives only those rights of its user that its scopes allow.

    A token with the scope `dispatch` has no other scope. It may only dispatch the templates that it was issued for, and
    read the state of the jobs that it has dispatched.
    """

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    DISPATCH = "dispatch"


# The scopes that tokens of people can have together.
GENERAL_SCOPES = (Scope.READ, Scope.WRITE, Scope.ADMIN)


class Action(StrEnum):
    """An action that needs a permission.

    `scope`: the scope that a token needs for the action. `words`: the name of the action in error messages.
    """

    scope: Scope
    words: str

    def __new__(cls, value: str, scope: Scope, words: str) -> Action:
        action = str.__new__(cls, value)
        action._value_, action.scope, action.words = value, scope, words
        return action

    CELL_VIEW = "cell.view", Scope.READ, "see cells"
    CELL_ADMIN = "cell.admin", Scope.ADMIN, "change the settings of the cell"
    MACHINE_ADMIN = "machine.admin", Scope.ADMIN, "change machines"
    JOB_VIEW = "job.view", Scope.READ, "see jobs"
    JOB_WRITE = "job.write", Scope.WRITE, "change jobs"
    PACKAGE_VIEW = "package.view", Scope.READ, "see packages"
    PACKAGE_WRITE = "package.write", Scope.WRITE, "change packages"
    SECRET_VIEW = "secret.view", Scope.READ, "see the names of secrets"
    SECRET_WRITE = "secret.write", Scope.WRITE, "set values of secrets"
    SECRET_GRANT = "secret.grant", Scope.ADMIN, "grant and delete secrets"
    CONFIG_VIEW = "config.view", Scope.READ, "see config files"
    CONFIG_WRITE = "config.write", Scope.WRITE, "change config files"
    LOCK_VIEW = "lock.view", Scope.READ, "see locks"
    LOCK_WRITE = "lock.write", Scope.WRITE, "acquire and change locks"
    LOCK_EVICT = "lock.evict", Scope.ADMIN, "end the sessions of holders of locks"
    QUOTA_VIEW = "quota.view", Scope.READ, "see quota"
    QUOTA_BUY = "quota.buy", Scope.WRITE, "buy quota"
    QUOTA_APPROVE = "quota.approve", Scope.WRITE, "decide about orders"  # orders that owners approve
    BILLING_VIEW = "billing.view", Scope.READ, "see money"  # for buyers, not for every viewer
    BILLING_ADMIN = "billing.admin", Scope.ADMIN, "set budgets and move credits to teams"
    TENANT_VIEW = "tenant.view", Scope.READ, "see the tenant"
    TENANT_ADMIN = "tenant.admin", Scope.ADMIN, "change members and settings"
    TENANT_SELF = (
        "tenant.self",
        Scope.WRITE,
        "leave the tenant or request capabilities",
    )  # leave the tenant, request capabilities
    PLATFORM_ADMIN = "platform.admin", Scope.ADMIN, "use actions of SREs"  # bands, tenants, grants


_VIEW = frozenset(
    {
        *(Action.JOB_VIEW, Action.PACKAGE_VIEW, Action.SECRET_VIEW, Action.CONFIG_VIEW, Action.QUOTA_VIEW),
        *(Action.LOCK_VIEW, Action.TENANT_VIEW, Action.TENANT_SELF),
    }
)
_ROLE: Mapping[Role, frozenset[Action]] = {
    Role.VIEWER: _VIEW,
    Role.OPERATOR: _VIEW
    | {Action.JOB_WRITE, Action.PACKAGE_WRITE, Action.SECRET_WRITE, Action.CONFIG_WRITE, Action.LOCK_WRITE},
    Role.BUYER: _VIEW | {Action.QUOTA_BUY, Action.BILLING_VIEW},
    Role.OWNER: _VIEW
    | {
        Action.JOB_WRITE,
        Action.PACKAGE_WRITE,
        Action.SECRET_WRITE,
        Action.SECRET_GRANT,
        Action.CONFIG_WRITE,
        Action.LOCK_WRITE,
        Action.LOCK_EVICT,
        Action.QUOTA_BUY,
        Action.QUOTA_APPROVE,
        Action.TENANT_ADMIN,
        Action.BILLING_VIEW,
        Action.BILLING_ADMIN,
    },
}


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a service.

    `name`: recorded as the actor in every event. `request_id`: recorded in all events of one request. `roles`: the
    caller's role in each tenant, by tenant name, including roles from organisations. `inherited`: only the roles from
    organisations, by team name. `capabilities`: the present capabilities, as pairs (kind, cell); the cell "" means all
    cells. `tenant`, `cell`: set if the caller's token is limited to this tenant or cell. `sre`: true for SREs, who may
    do everything within their scopes. `token`: the key of the caller's token; empty if the caller uses no token.
    `time_zone`: the time zone that the caller chose for times on pages; empty for that of the browser. `tenant_zone`:
    the time zone of the caller's first tenant in the order of names.
    """

    name: str
    request_id: str = ""
    user_id: int | None = None
    sre: bool = False
    roles: Mapping[str, Role] = field(default_factory=dict)
    inherited: Mapping[str, Role] = field(default_factory=dict)
    capabilities: frozenset[tuple[CapabilityKind, str]] = frozenset()
    tenant: str | None = None
    cell: str | None = None
    scopes: frozenset[Scope] = frozenset(GENERAL_SCOPES)
    token: str = ""
    time_zone: str = ""
    tenant_zone: str = "UTC"

    def has(self, kind: CapabilityKind, cell: str) -> bool:
        return self.sre or (kind, "") in self.capabilities or (kind, cell) in self.capabilities


def system(part: str, *, request_id: str = "") -> Principal:
    """Return the principal of a process of the portal, such as `system("master")`."""
    return Principal(name=f"system:{part}", request_id=request_id, sre=True)


def may(principal: Principal, action: Action, *, tenant: str | None = None, cell: str = "") -> bool:
    """Return whether `principal` may do `action` in `tenant` (None for actions without a tenant) and `cell`."""
    if action.scope not in principal.scopes:
        return False
    if principal.tenant is not None and tenant is not None and tenant != principal.tenant:
        return False
    if principal.cell is not None and cell and cell != principal.cell:
        return False
    if principal.sre and (principal.tenant is None or tenant == principal.tenant):
        return True
    if action is Action.CELL_VIEW:
        return True
    if tenant is None:
        return False
    if action in (Action.JOB_VIEW, Action.JOB_WRITE) and principal.has(CapabilityKind.ANY_JOB, cell):
        return True
    held = (principal.roles.get(tenant), principal.inherited.get(tenant))
    return any(role is not None and action in _ROLE[role] for role in held)


def require(principal: Principal, action: Action, *, tenant: str | None = None, cell: str = "") -> None:
    """Raise `Forbidden` unless the principal may do `action` in `tenant` and `cell`."""
    if not may(principal, action, tenant=tenant, cell=cell):
        what = f" for tenant {tenant}" if tenant else ""
        roles = [role for role, actions in _ROLE.items() if action in actions]
        cure = f"ask an owner of the tenant for the role {' or '.join(roles)}" if roles else "ask an SRE"
        raise Forbidden(
            action, f"{principal.name} may not {action.words}{what}; {cure}, or use a token with scope {action.scope}"
        )
