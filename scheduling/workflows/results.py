"""Results of nodes: a small JSON value that a task of the node sets with its own identity token.

task ── PUT $WORKFLOW_RESULT_URL ──► WorkflowNode.result ──► RESULT_NODE of later nodes, `for_each`, `when`
"""

from __future__ import annotations

from typing import Any

import msgspec

from quota.vocabulary.errors import Conflict, Forbidden, NotFound, invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.journal.sql import execute, query
from scheduling.models import Cell
from scheduling.spec.nesting import TOO_DEEP, too_deep
from scheduling.workflows.workflow_spec import MAX_RESULT_BYTES, has_nul

_TASK = "task:"


def result_read(body: Any) -> Any:
    """Return the JSON value in the body of a request. Raises `Rejected` if it is not valid or too large. `body`: bytes;
    REST passes something else if the body is empty.
    """
    if not isinstance(body, bytes):
        body = b""
    if len(body) > MAX_RESULT_BYTES:
        detail = (
            f"the result has {len(body):,} bytes; send at most {MAX_RESULT_BYTES:,}, and put more data into a package"
        )
        raise invalid("result", detail)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid("result", f"the body is not JSON: {error}; correct it at this place"[:500]) from None
    except RecursionError:
        raise invalid("result", TOO_DEEP) from None
    if too_deep(value):
        raise invalid("result", TOO_DEEP)
    if has_nul(value):
        raise invalid("result", "it contains a NUL character; remove it")
    return value


def result_set(*, principal: Principal, cell: Cell, tenant: str, job: str, value: Any) -> None:
    """Set the result of the node, or of the branch, whose live job is `job`. A later call replaces the result.

    Only a running task of this job may do so. Its job file needs `api: read` or `api: submit`, without which it has no
    access to the API. This does not lock the cell: the job ends after it, and later nodes start after that.
    """
    require_tenant(principal, Action.JOB_VIEW, tenant, cell.name)
    if principal.user_id is not None or not principal.name.startswith(f"{_TASK}{cell.name}/{tenant}/{job}/"):
        detail = f"{principal.name} is not a task of job {job}; send the request from a task, with its own identity"
        raise Forbidden("workflow.result", detail)
    written = execute(
        "UPDATE scheduling_workflownode AS n SET result = %s::jsonb FROM scheduling_job AS j"
        " JOIN quota_tenant AS t ON t.id = j.tenant_id WHERE n.job_id = j.id AND n.state = 'running'"
        " AND j.cell_id = %s AND t.name = %s AND j.name = %s AND j.state <> 'dead'",
        [msgspec.json.encode(value).decode(), cell.pk, tenant, job],
    )
    if written:
        return
    if query(
        "SELECT FROM scheduling_job AS j JOIN quota_tenant AS t ON t.id = j.tenant_id"
        " WHERE j.cell_id = %s AND t.name = %s AND j.name = %s AND j.state <> 'dead'",
        [cell.pk, tenant, job],
    ):
        detail = f"job {job} is not a node of a live workflow, so it has no result; submit a file of kind Workflow"
        raise Conflict("no-workflow", detail)
    raise NotFound("job", job)
