"""Who may do what: one pure function over values, asked by every service and every page.

    person or token ──► Principal ──► may(principal, action, tenant=…, cell=…) ──► True | False

A token narrows what its user may do: to its tenant, and to its scopes. What a principal may not even see is
reported as not found, so that names of other tenants don't leak.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from quota.errors import Forbidden


class Role(StrEnum):
    """Of a member in a tenant; each includes `viewer`."""

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
    """Of a token: what its user may do, it may do only within these."""

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
    TENANT_VIEW = "tenant.view"
    TENANT_ADMIN = "tenant.admin"  # members, settings
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
    Action.TENANT_VIEW: Scope.READ,
    Action.TENANT_ADMIN: Scope.ADMIN,
    Action.PLATFORM_ADMIN: Scope.ADMIN,
}
_VIEW = frozenset({Action.JOB_VIEW, Action.PACKAGE_VIEW, Action.QUOTA_VIEW, Action.TENANT_VIEW})
_ROLE: Mapping[Role, frozenset[Action]] = {
    Role.VIEWER: _VIEW,
    Role.OPERATOR: _VIEW | {Action.JOB_WRITE, Action.PACKAGE_WRITE},
    Role.BUYER: _VIEW | {Action.QUOTA_BUY},
    Role.OWNER: _VIEW | {Action.JOB_WRITE, Action.PACKAGE_WRITE, Action.QUOTA_BUY, Action.TENANT_ADMIN},
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. `name` goes into every event as its actor; `request_id` ties the events of one request.

    `roles`: tenant name -> role. `capabilities`: (kind, cell) pairs in force, cell "" for all.
    `tenant`, `cell`: set when a token is bound to one. `sre`: runs the cells, may do everything its scopes allow.
    `expires_at`: when the token that asks ends; None for one without an end, and for sessions.
    """

    name: str
    request_id: str = ""
    user_id: int | None = None
    sre: bool = False
    roles: Mapping[str, Role] = field(default_factory=dict)
    capabilities: frozenset[tuple[CapabilityKind, str]] = frozenset()
    tenant: str | None = None
    cell: str | None = None
    scopes: frozenset[Scope] = frozenset(Scope)
    expires_at: dt.datetime | None = None

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
        return principal.has(CapabilityKind.SHELL, cell) and may(
            principal, Action.JOB_WRITE, tenant=tenant, cell=cell
        )
    if action in (Action.JOB_VIEW, Action.JOB_WRITE) and principal.has(CapabilityKind.ANY_JOB, cell):
        return True
    role = principal.roles.get(tenant)
    return role is not None and action in _ROLE[role]


def require(principal: Principal, action: Action, *, tenant: str | None = None, cell: str = "") -> None:
    """Raises `Forbidden` unless `may(...)`."""
    if not may(principal, action, tenant=tenant, cell=cell):
        what = f" for tenant {tenant}" if tenant else ""
        if action is Action.SHELL_OPEN:
            raise Forbidden(
                action,
                f"{principal.name} may not open shells{what}; that needs the capability {CapabilityKind.SHELL}, which"
                f" an SRE grants, and a role that may change jobs, through a token with scope {_SCOPE[action]}",
            )
        raise Forbidden(
            action,
            f"{principal.name} may not do {action}{what}; ask an owner of the tenant for a role, "
            f"or use a token with scope {_SCOPE[action]}",
        )
