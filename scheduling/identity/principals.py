"""The principal of a task that calls the REST API: its checked identity, and what its job and tenant allow (§2.3)."""

from __future__ import annotations

from django.conf import settings
from django.db import connection

from quota.vocabulary.errors import Forbidden
from quota.vocabulary.permissions import Action, Principal
from scheduling.core.vocabulary.states import TaskState
from scheduling.identity.signing_keys import public_key
from scheduling.identity.tokens import LEVELS, BadIdentity, TaskClaims, read

_MOST_NAME = 200  # length of the columns that store who did something


def principal_of_identity(token: str, *, request_id: str = "") -> Principal:
    """The task that calls. Two queries.

    It may do what its job file asks for as `api`, and at most what its tenant allows, in its own cell and for its own
    tenant. Raises `BadIdentity` for a token that is none, has expired, or whose incarnation runs no more; `Forbidden`
    where job or tenant let it do nothing.
    """
    claims, _ = read(token, public_key, issuer=settings.PORTAL_URL)
    asked, allowed = _levels(claims)
    level = min(asked, allowed, key=list(LEVELS).index)
    scopes, role = LEVELS[level]
    if role is None:
        cure = (
            f"tenant {claims.tenant} does not allow its tasks to call the API (task_api: none); ask its owner"
            if allowed == "none"
            else "put `api: read` or `api: submit` into its job file"
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
    """Return the level that the job asks for, and the highest that its tenant allows. Raise `BadIdentity` for a task
    that no longer runs.
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
        raise BadIdentity(f"task {claims.name} of this identity (incarnation {claims.incarnation}) no longer runs")
    return row[2], row[3]
