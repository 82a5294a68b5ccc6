"""Tokens with the scope `dispatch`, for webhooks of other systems: they dispatch named templates, read the state of the
jobs that they have dispatched, and do nothing else.

    dispatch_token_issue ─► Token (scope dispatch) + TokenTemplate per template
    request ─► caller: is the template one of the token's? ─► the permissions of the token's user for this request

A job that such a token has dispatched has the label `dispatched-by` with the key of the token.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import replace

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import Q, QuerySet

from quota import records
from quota.models import ServiceAccount, Tenant, Token
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.service_accounts import service_account_named, service_account_token
from quota.tenancy.tokens import token_issue
from quota.vocabulary.errors import Forbidden, NotFound, invalid
from quota.vocabulary.permissions import Action, Principal, Scope, may
from scheduling.access.selectors import cell_named
from scheduling.access.tenant_permission import require_tenant
from scheduling.job_templates.selectors import template_named
from scheduling.job_templates.template_spec import DISPATCHED_BY, LABEL
from scheduling.models import Job, JobTemplate, TokenTemplate

MAX_TEMPLATES = 20
_MOST_OFFERED = 500


def dispatch_token_issue(
    *,
    principal: Principal,
    user: AbstractBaseUser,
    name: str,
    templates: Sequence[str],
    account: str = "",
    expires_at: dt.datetime | None = None,
) -> tuple[Token, str]:
    """Return a new token that may only dispatch `templates`, and its secret, which is not stored.

    `templates`: full names, CELL/TENANT/TEMPLATE, of one tenant. `account`: a service account of this tenant, for which
    the token is issued instead of for `user`. The rules of `token_issue` and `service_account_token` apply, and the
    caller must be allowed to dispatch the templates. If a template is deleted, the token may no longer dispatch it,
    also if another one gets its name.
    """
    rows = _templates(principal, templates)
    tenant = Tenant.objects.get(pk=rows[0].tenant_id)
    found = _account(principal, tenant, account) if account else None
    _check_role(user if found is None else found.user, tenant)
    with transaction.atomic():
        if found is not None:
            token, secret = service_account_token(
                principal=principal, account=found, name=name, scopes=[Scope.DISPATCH.value], expires_at=expires_at
            )
        else:
            token, secret = token_issue(
                principal=principal,
                user=user,
                name=name,
                scopes=[Scope.DISPATCH.value],
                tenant=tenant,
                expires_at=expires_at,
            )
        TokenTemplate.objects.bulk_create([TokenTemplate(token=token, template=row) for row in rows])
        with records.write(principal) as entry:
            entry.append(
                "token.restricted", tenant=tenant.name, key=token.key, templates=", ".join(map(full_name, rows))
            )
    return token, secret


def caller(principal: Principal, cell: str, tenant: str, name: str) -> Principal:
    """Return the principal with whose permissions a request about a template is executed: `principal`, or for a token
    with the scope `dispatch` its user with the scopes read and write in the cell and tenant of the template. It has the
    role of the user in the tenant, but no capabilities and no rights of an SRE, because other members can change the
    template. Raises `Forbidden` if the token may not dispatch this template. Makes one query for such a token.
    """
    if not only_dispatches(principal):
        return principal
    own = [full_name(row) for row in templates_of([principal.token])[principal.token]]
    if f"{cell}/{tenant}/{name}" not in own:
        what = ", ".join(own) or "no template, because its templates were deleted"
        detail = f"token {principal.token} may not dispatch template {cell}/{tenant}/{name}; it may dispatch {what}"
        raise Forbidden("template.dispatch", detail)
    scopes = principal.scopes | {Scope.READ, Scope.WRITE}
    return replace(_unprivileged(principal), scopes=scopes, cell=cell, tenant=tenant)


def only_dispatches(principal: Principal) -> bool:
    """Return whether the caller uses a token that may only dispatch templates."""
    return Scope.DISPATCH in principal.scopes


def check_dispatched(principal: Principal, job: Job, template: str) -> None:
    """Raise `NotFound` unless the job was dispatched from this template, and by the caller's token if that may only
    dispatch.
    """
    labels = job.labels
    if labels.get(LABEL) != template or (only_dispatches(principal) and labels.get(DISPATCHED_BY) != principal.token):
        raise NotFound("job", job.name)


def templates_of(keys: Sequence[str]) -> dict[str, list[JobTemplate]]:
    """Return the templates that each token may dispatch, by the key of the token, without contents. Makes one query."""
    found: dict[str, list[JobTemplate]] = {key: [] for key in keys}
    rows = TokenTemplate.objects.filter(token__key__in=keys).select_related(
        "token", "template__cell", "template__tenant"
    )
    for row in rows.defer("template__content").order_by("template__cell__name", "template__name"):
        found[row.token.key].append(row.template)
    return found


def set_dispatches(tokens: Iterable[Token]) -> None:
    """Set the attribute `dispatches` of each token: the full names of the templates that it may dispatch. Makes one
    query, or none if no token has the scope `dispatch`.
    """
    rows = list(tokens)
    keys = [row.key for row in rows if Scope.DISPATCH.value in row.scopes]
    found = templates_of(keys) if keys else {}
    for row in rows:
        row.dispatches = [full_name(template) for template in found.get(row.key, ())]  # type: ignore[attr-defined]


def templates_offered(principal: Principal) -> QuerySet[JobTemplate]:
    """Return the templates that the caller may dispatch, without contents, for a list of choices."""
    rows = JobTemplate.objects.select_related("cell", "tenant").defer("content")
    if not principal.sre:
        own = [name for name in principal.roles if may(principal, Action.JOB_WRITE, tenant=name)]
        rows = rows.filter(tenant__name__in=own)
    limit = Q(tenant__name=principal.tenant) if principal.tenant is not None else Q()
    return rows.filter(limit).order_by("tenant__name", "cell__name", "name")[:_MOST_OFFERED]


def full_name(template: JobTemplate) -> str:
    return f"{template.cell.name}/{template.tenant.name}/{template.name}"


def _templates(principal: Principal, names: Sequence[str]) -> list[JobTemplate]:
    """Return the templates of these names. Raises `Rejected` if there are none, too many, or some of other tenants."""
    names = sorted(set(names))
    if not 1 <= len(names) <= MAX_TEMPLATES:
        raise invalid("templates", f"the token has {len(names)} templates; give 1 to {MAX_TEMPLATES}")
    rows = []
    for name in names:
        parts = name.split("/")
        if len(parts) != 3:
            raise invalid("templates", f"{name[:100]!r} is not the full name of a template; write CELL/TENANT/TEMPLATE")
        row = template_named(principal, cell_named(principal, parts[0]), parts[1], parts[2])
        require_tenant(principal, Action.JOB_WRITE, row.tenant.name, row.cell.name)
        rows.append(row)
    if len({row.tenant_id for row in rows}) > 1:
        raise invalid("templates", "the templates belong to several tenants; issue one token per tenant")
    return rows


def _account(principal: Principal, tenant: Tenant, name: str) -> ServiceAccount:
    """Return the service account. Raises `NotFound` if it does not exist or the caller may not see the tenant."""
    if not may(principal, Action.TENANT_VIEW, tenant=tenant.name):
        raise NotFound("service account", name)
    return service_account_named(tenant, name)


def _check_role(user: AbstractBaseUser, tenant: Tenant) -> None:
    """Raise `Forbidden` if the user of a new token could not dispatch with it."""
    if not may(_unprivileged(principal_of_user(user)), Action.JOB_WRITE, tenant=tenant.name):
        detail = (
            f"{user.get_username()} has no role in tenant {tenant.name} that may submit jobs, so every dispatch with"
        )
        cure = "issue the token for a service account with the role operator (--account; REST: account)"
        raise Forbidden("token.issue", f"{detail} the token would be rejected; {cure}")


def _unprivileged(principal: Principal) -> Principal:
    return replace(principal, sre=False, capabilities=frozenset())
