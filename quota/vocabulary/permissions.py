"""Permissions: one pure function over values, used by every service and every page.

    person or token ──► Principal ──► may(principal, action, tenant=…, cell=…) ──► True | False

A token narrows what its user may do: to its tenant, and to its scopes. What a principal may not even see is
reported as not found, so that names of other tenants don't leak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from quota.vocabulary.errors import Forbidden


class Role(StrEnum):
    """The role of a member in a tenant; each includes `viewer`."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    BUYER = "buyer"
    OWNER = "owner"


class CapabilityKind(StrEnum):
    """Privileges granted to a person, with a reason and an end (§2.5)."""

    ANY_JOB = "any-job"  # change or kill any job of the cell
    NO_RECLAMATION = "no-reclamation"  # switch resource estimation off on own jobs
    RESERVE_CORES = "reserve-cores"
    SHELL = "shell"


class Scope(StrEnum):
    """The scopes of a token, which limit what it may do of what its user may do."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Action(StrEnum):
    CELL_VIEW = "cell.view"
    CELL_ADMIN = "cell.admin"
    MACHINE_ADMIN = "machine.admin"
    JOB_VIEW = "job.view"
    JOB_WRITE = "job.write"
    PACKAGE_VIEW = "package.view"
    PACKAGE_WRITE = "package.write"
    SHELL_OPEN = "shell.open"  # in a task: who may change the job, and has the capability besides
    QUOTA_VIEW = "quota.view"
    QUOTA_BUY = "quota.buy"
    QUOTA_APPROVE = "quota.approve"  # orders that a rule leaves to an owner
    BILLING_VIEW = "billing.view"  # balances, ledger, budgets, invoices, costs: for buyers, not for every viewer
    BILLING_ADMIN = "billing.admin"  # how the budget is watched; hand money down to teams
    TENANT_VIEW = "tenant.view"
    TENANT_ADMIN = "tenant.admin"  # members, settings
    TENANT_SELF = "tenant.self"  # leave it, ask for capabilities
    PLATFORM_ADMIN = "platform.admin"  # bands, tenants, grants


_SCOPE: Mapping[Action, Scope] = {
    Action.CELL_VIEW: Scope.READ,
    Action.CELL_ADMIN: Scope.ADMIN,
    Action.MACHINE_ADMIN: Scope.ADMIN,
    Action.JOB_VIEW: Scope.READ,
    Action.JOB_WRITE: Scope.WRITE,
    Action.PACKAGE_VIEW: Scope.READ,
    Action.PACKAGE_WRITE: Scope.WRITE,
    Action.SHELL_OPEN: Scope.WRITE,
    Action.QUOTA_VIEW: Scope.READ,
    Action.QUOTA_BUY: Scope.WRITE,
    Action.QUOTA_APPROVE: Scope.WRITE,
    Action.BILLING_VIEW: Scope.READ,
    Action.BILLING_ADMIN: Scope.ADMIN,
    Action.TENANT_VIEW: Scope.READ,
    Action.TENANT_ADMIN: Scope.ADMIN,
    Action.TENANT_SELF: Scope.WRITE,
    Action.PLATFORM_ADMIN: Scope.ADMIN,
}
# The names of actions in rejections.
_WORDS: Mapping[Action, str] = {
    Action.CELL_VIEW: "look at cells",
    Action.CELL_ADMIN: "change how the cell is run",
    Action.MACHINE_ADMIN: "change machines",
    Action.JOB_VIEW: "see jobs",
    Action.JOB_WRITE: "change jobs",
    Action.PACKAGE_VIEW: "see packages",
    Action.PACKAGE_WRITE: "change packages",
    Action.SHELL_OPEN: "open shells",
    Action.QUOTA_VIEW: "see quota",
    Action.QUOTA_BUY: "buy quota",
    Action.QUOTA_APPROVE: "decide about orders",
    Action.BILLING_VIEW: "see money",
    Action.BILLING_ADMIN: "set budgets and hand credits on",
    Action.TENANT_VIEW: "see the tenant",
    Action.TENANT_ADMIN: "change members and settings",
    Action.TENANT_SELF: "do this as a member",
    Action.PLATFORM_ADMIN: "do what only SREs may",
}
_VIEW = frozenset({Action.JOB_VIEW, Action.PACKAGE_VIEW, Action.QUOTA_VIEW, Action.TENANT_VIEW, Action.TENANT_SELF})
_ROLE: Mapping[Role, frozenset[Action]] = {
    Role.VIEWER: _VIEW,
    Role.OPERATOR: _VIEW | {Action.JOB_WRITE, Action.PACKAGE_WRITE},
    Role.BUYER: _VIEW | {Action.QUOTA_BUY, Action.BILLING_VIEW},
    Role.OWNER: _VIEW
    | {
        Action.JOB_WRITE,
        Action.PACKAGE_WRITE,
        Action.QUOTA_BUY,
        Action.QUOTA_APPROVE,
        Action.TENANT_ADMIN,
        Action.BILLING_VIEW,
        Action.BILLING_ADMIN,
    },
}


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller. `name` goes into every event as its actor; `request_id` ties the events of one request.

    `roles`: tenant name -> role; `inherited`: the role that the organisation of a team gives in it, beside one's own.
    Each tenant of `inherited` is in `roles` too. `capabilities`: (kind, cell) pairs in force, cell "" for all.
    `tenant`, `cell`: set when a token is bound to one. `sre`: runs the cells, may do everything its scopes allow.
    `token`: the key of the token that asks; empty for sessions, tasks and our own processes. `time_zone`: of the
    first tenant by name, for times on pages.
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
    scopes: frozenset[Scope] = frozenset(Scope)
    token: str = ""
    time_zone: str = "UTC"

    def has(self, kind: CapabilityKind, cell: str) -> bool:
        return self.sre or (kind, "") in self.capabilities or (kind, cell) in self.capabilities


SYSTEM = Principal(name="system", sre=True)


def system(part: str, *, request_id: str = "") -> Principal:
    """The principal of one of our own processes, e.g. `system("master")`."""
    return Principal(name=f"system:{part}", request_id=request_id, sre=True)


def may(principal: Principal, action: Action, *, tenant: str | None = None, cell: str = "") -> bool:
    """Whether `principal` may do `action` for `tenant` (where the action is about one) in `cell`."""
    if _SCOPE[action] not in principal.scopes:
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
    if action is Action.SHELL_OPEN:
        return principal.has(CapabilityKind.SHELL, cell) and may(principal, Action.JOB_WRITE, tenant=tenant, cell=cell)
    if action in (Action.JOB_VIEW, Action.JOB_WRITE) and principal.has(CapabilityKind.ANY_JOB, cell):
        return True
    held = (principal.roles.get(tenant), principal.inherited.get(tenant))
    return any(role is not None and action in _ROLE[role] for role in held)


def require(principal: Principal, action: Action, *, tenant: str | None = None, cell: str = "") -> None:
    """Raises `Forbidden` unless `may(...)`."""
    if not may(principal, action, tenant=tenant, cell=cell):
        what = f" for tenant {tenant}" if tenant else ""
        if action is Action.SHELL_OPEN:
            raise Forbidden(
                action,
                f"{principal.name} may not open shells{what}; that needs the capability {CapabilityKind.SHELL}, which"
                " an SRE grants (ask on the portal's page Capabilities of the tenant), and"
                f" a role that may change jobs, through a token with scope {_SCOPE[action]}",
            )
        roles = [role for role, actions in _ROLE.items() if action in actions]
        cure = f"ask an owner of the tenant for the role {' or '.join(roles)}" if roles else "ask an SRE"
        raise Forbidden(
            action,
            f"{principal.name} may not {_WORDS[action]}{what}; {cure}, or use a token with scope {_SCOPE[action]}",
        )
