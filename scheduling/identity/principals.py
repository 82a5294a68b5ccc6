"""The principal (caller with permissions) of a task that calls the REST API (§2.3)."""

from __future__ import annotations

from django.conf import settings
from django.db import connection

from quota.vocabulary.errors import Forbidden
from quota.vocabulary.permissions import Action, Principal
from scheduling.core.vocabulary.states import TaskState
from scheduling.identity.signing_keys import public_key
from scheduling.identity.task_tokens import LEVELS, BadIdentity, TaskClaims, read

_MOST_NAME = 200  # length of the columns that store the actor


def principal_of_identity(token: str, *, request_id: str = "") -> Principal:
    """Return the principal of the task whose identity token is `token`. Makes two queries.

    The field `api` of the job file and the limit of the tenant decide what the task may do in its own cell and
    tenant. Raises `BadIdentity` if the token is invalid or has expired, or if the task's incarnation no longer runs.
    Raises `Forbidden` if the job or the tenant allows no access to the API.
    """
    claims, _ = read(token, public_key, issuer=settings.PORTAL_URL)
    asked, allowed = _levels(claims)
    level = min(asked, allowed, key=list(LEVELS).index)
    scopes, role = LEVELS[level]
    if role is None:
        cure = (
            f"tenant {claims.tenant} does not allow this (task_api: none); ask an owner of the tenant to change it"
            if allowed == "none"
            else "its job file has `api: none`; set `api: read` or `api: submit`"
        )
        raise Forbidden(Action.JOB_VIEW, f"task {claims.name} may not call the API: {cure}")
    return Principal(
        name=f"task:{claims.name}"[:_MOST_NAME],
        request_id=request_id,
        roles={claims.tenant: role},
        tenant=claims.tenant,
        cell=claims.cell,
        scopes=scopes,
    )


def _levels(claims: TaskClaims) -> tuple[str, str]:
    """Return the level of access to the API that the job asks for, and the highest level that its tenant allows.

    Raises `BadIdentity` if the task no longer runs.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT t.incarnation, t.state, coalesce(s.spec->>'api', 'none'), o.task_api"
            " FROM scheduling_job AS j JOIN quota_tenant AS o ON o.id = j.tenant_id"
            " JOIN scheduling_task AS t ON t.job_id = j.id AND t.index = %s"
            " JOIN scheduling_jobspec AS s ON s.job_id = j.id AND s.version = j.spec_version WHERE j.uid = %s",
            [claims.index, claims.uid],
        )
        row = cursor.fetchone()
    if row is None or (row[0], row[1]) != (claims.incarnation, TaskState.RUNNING.value):
        raise BadIdentity(
            f"the task of this identity, {claims.name} (incarnation {claims.incarnation}), no longer runs; use the"
            " identity of a running task"
        )
    return row[2], row[3]
