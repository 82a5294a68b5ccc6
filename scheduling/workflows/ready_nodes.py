"""Chooses nodes that are ready, and decides what to do with each: submit its job, run it per item, skip or fail it.

    ready nodes, shared by tenants ─► results of the nodes before ─► `when` ─► `for_each` ─► job with its variables

Everything here happens before the cell is locked. The turn checks under the lock that the nodes are still ready.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec
import structlog
from django.conf import settings

from quota.vocabulary.errors import Rejected
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import Cell
from scheduling.spec import parser
from scheduling.spec.job_spec import JobSpecification
from scheduling.workflows import node_rows, node_variables, workflow_spec
from scheduling.workflows.graph_rules import NodeState
from scheduling.workflows.node_rows import NodeEnd
from scheduling.workflows.workflow_spec import ItemsOf, When

log = structlog.get_logger(__name__)

# Nodes of one transaction, and bytes of their jobs together.
AT_ONCE, MAX_BYTES = 1_000, 16 * 2**20

# Ready nodes in the order in which they are chosen. The tenants share a turn, as those of cron jobs do, and so do the
# workflows of a tenant. Each workflow offers few nodes if there are many workflows, so the work has a limit.
_CHOOSE = """
WITH due AS (
  SELECT id, tenant_id, least(greatest(0, parallel::bigint - live), coalesce(nullif(asks, 0), parallel)) AS most,
         count(*) OVER () AS number
  FROM scheduling_workflow
  WHERE cell_id = %(cell)s AND ended_at IS NULL AND state = 'running' AND ready > 0
    AND (held_until IS NULL OR held_until <= %(now)s))
SELECT id, tasks, size
FROM (SELECT r.id, r.tasks, r.size, row_number() OVER (PARTITION BY due.tenant_id ORDER BY r.nth, random()) AS place
      FROM due CROSS JOIN LATERAL (
        SELECT id, tasks, size, row_number() OVER (ORDER BY id) AS nth FROM scheduling_workflownode
        WHERE workflow_id = due.id AND state = 'ready' AND (not_before IS NULL OR not_before <= %(now)s)
        ORDER BY id LIMIT least(due.most, %(at_once)s / due.number + 1)) AS r) AS offered
ORDER BY place, random() LIMIT %(at_once)s
"""
_READ = """
SELECT id, workflow_id, cell_id, name, branch, retries_left, item::text FROM scheduling_workflownode
WHERE id = ANY(%s) AND state = 'ready' ORDER BY id
"""
# The nodes of chosen nodes and branches, once each. Branches do not need the rules of their node.
_SHARED = """
SELECT p.workflow_id, p.name, p.layer, p.retries, p.template::text, CASE WHEN c.rules THEN p.rules::text END,
       p.after::text, p.variables::text, w.name, w.parameters::text, w.owner_id, t.name
FROM unnest(%s::bigint[], %s::text[], %s::boolean[]) AS c(workflow_id, name, rules)
JOIN scheduling_workflownode AS p ON p.workflow_id = c.workflow_id AND p.name = c.name AND p.branch = -1
JOIN scheduling_workflow AS w ON w.id = p.workflow_id JOIN quota_tenant AS t ON t.id = w.tenant_id
"""


class Rules(msgspec.Struct, frozen=True):
    """The column `rules` of a node."""

    when: When | None = None
    for_each: list[Any] | ItemsOf | None = None


@dataclass(frozen=True, slots=True)
class SharedNode:
    """What a node and its branches share. `variables`: of the branches, if the node has them already. `after`: the
    nodes before it. `rules`: None if only branches are started.
    """

    workflow_id: int
    name: str
    layer: int
    retries: int
    template: Mapping[str, Any]
    rules: Rules | None
    after: Sequence[str]
    variables: Mapping[str, str]
    workflow: str
    parameters: Mapping[str, str]
    owner_id: int | None
    tenant: str


@dataclass(frozen=True, slots=True)
class ReadyNode:
    """A node or branch that is ready. `item_json`: the item of a branch in JSON."""

    node_id: int
    workflow_id: int
    cell_id: int
    name: str
    branch: int
    retries_left: int
    item_json: str | None
    shared: SharedNode

    @property
    def job_name(self) -> str:
        return workflow_spec.job_name(self.shared.workflow, self.name, None if self.branch < 0 else self.branch)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a ready node. Exactly one is set. `job`: submit it. `items`: run the node once per item, and each
    branch has `variables`. `end`: the node is skipped or fails.
    """

    node: ReadyNode
    job: JobSpecification | None = None
    items: list[Any] | None = None
    variables: Mapping[str, str] | None = None
    end: NodeEnd | None = None


def ready_choose(cell_id: int, now: dt.datetime, at_once: int = AT_ONCE) -> list[Decision]:
    """Return decisions about ready nodes of the cell: at most `at_once`, with at most `journal.CHUNK` tasks and
    `MAX_BYTES` of jobs together. A single node may have more. Makes a constant number of queries.
    """
    chosen: list[int] = []
    tasks = size = 0
    for node_id, of_node, length in query(_CHOOSE, {"cell": cell_id, "now": now, "at_once": at_once}):
        of_node = min(of_node, journal.CHUNK)
        if not chosen or (tasks + of_node <= journal.CHUNK and size + length <= MAX_BYTES):
            chosen.append(node_id)
            tasks, size = tasks + of_node, size + length
    if not chosen:
        return []
    nodes = _read(chosen)
    wanted = {
        (node.workflow_id, before): node_variables.most_bytes(before, node.shared.rules)
        for node in nodes
        if node.branch < 0
        for before in node.shared.after
    }
    results = node_rows.results_of(wanted)
    name, extra = Cell.objects.values_list("name", "extra_resources").get(pk=cell_id)
    return [_decide(node, results, name, tuple(extra)) for node in nodes]


def _read(chosen: Sequence[int]) -> list[ReadyNode]:
    rows = query(_READ, [list(chosen)])
    whole: dict[tuple[int, str], bool] = {}  # whether the rules are needed
    for _, workflow_id, _, name, branch, *_ in rows:
        whole[workflow_id, name] = whole.get((workflow_id, name), False) or branch < 0
    keys = sorted(whole)
    found = query(_SHARED, [[key[0] for key in keys], [key[1] for key in keys], [whole[key] for key in keys]])
    shared = {(row[0], row[1]): _shared(*row) for row in found}
    return [
        ReadyNode(node_id, workflow_id, cell_id, name, branch, retries_left, item, shared[workflow_id, name])
        for node_id, workflow_id, cell_id, name, branch, retries_left, item in rows
        if (workflow_id, name) in shared
    ]


def _shared(
    workflow_id: int,
    name: str,
    layer: int,
    retries: int,
    template: str,
    rules: str | None,
    after: str,
    variables: str,
    workflow: str,
    parameters: str,
    owner_id: int | None,
    tenant: str,
) -> SharedNode:
    decode = msgspec.json.decode
    return SharedNode(
        workflow_id=workflow_id,
        name=name,
        layer=layer,
        retries=retries,
        template=decode(template),
        rules=None if rules is None else decode(rules, type=Rules),
        after=list(decode(after)),
        variables=decode(variables),
        workflow=workflow,
        parameters=decode(parameters),
        owner_id=owner_id,
        tenant=tenant,
    )


def failed(node: ReadyNode, problem: Rejected) -> NodeEnd:
    return NodeEnd(node.node_id, NodeState.FAILED, problem.code, problem.detail, retries_left=node.retries_left)


def internal(node: ReadyNode, what: str) -> Rejected:
    """Return the problem of a node that cannot be handled. `what`: what is wrong."""
    cure = f"run `borgctl workflow retry {node.shared.workflow}`, or ask an SRE for the log"
    return Rejected("internal", f"cannot start node {node.name}: {what}; {cure}", status=500)


def _decide(node: ReadyNode, results: node_rows.ResultsByNode, cell: str, extra: Sequence[str]) -> Decision:
    try:
        return _decided(node, results, cell, extra)
    except Rejected as problem:
        return Decision(node, end=failed(node, problem))
    except Exception:
        log.exception("a node of a workflow cannot be read", cell=cell, tenant=node.shared.tenant, job=node.job_name)
        return Decision(node, end=failed(node, internal(node, "its job cannot be read")))


def _decided(node: ReadyNode, results: node_rows.ResultsByNode, cell: str, extra: Sequence[str]) -> Decision:
    shared = node.shared
    if node.branch >= 0:
        item = msgspec.json.decode(node.item_json) if node.item_json is not None else None
        own = node_variables.of_item(node.branch, item)
        return Decision(node, job=_job(node, cell, extra, {**shared.variables, **own}))
    rules = shared.rules or Rules()
    known = {before: results[node.workflow_id, before] for before in shared.after}
    if rules.when is not None and not node_variables.holds(rules.when, shared.parameters, known):
        detail = "its condition `when` was not met"
        return Decision(node, end=NodeEnd(node.node_id, NodeState.SKIPPED, "when", detail))
    source = rules.for_each.result_of if isinstance(rules.for_each, ItemsOf) else ""
    variables = node_variables.variables_of(
        workflow=shared.workflow,
        node=node.name,
        parameters=shared.parameters,
        results={before: result for before, result in known.items() if before != source},
        own=shared.template["task"].get("env", {}),
    )
    if rules.for_each is not None:
        items = node_variables.items_of(node.name, rules.for_each, known)
        return Decision(node, items=items, variables=variables)
    return Decision(node, job=_job(node, cell, extra, variables))


def _job(node: ReadyNode, cell: str, extra: Sequence[str], variables: Mapping[str, str]) -> JobSpecification:
    shared, template = node.shared, node.shared.template
    url = {"WORKFLOW_RESULT_URL": result_url(cell, shared.tenant, node.job_name)}
    added = node_variables.as_data({**variables, **url})
    labels = {**template.get("labels", {}), workflow_spec.LABEL: shared.workflow, workflow_spec.NODE_LABEL: node.name}
    file = {**template, "name": node.job_name, "tenant": shared.tenant, "cell": cell, "labels": labels}
    return parser.load(file | node_variables.with_variables(template, added), extra=extra)


def result_url(cell: str, tenant: str, job: str) -> str:
    """Return the address to which a task of a node sends its result."""
    path = "/".join(quote(part, safe="") for part in (cell, "jobs", tenant, job))
    return f"{settings.PORTAL_URL.rstrip('/')}/api/v1/cells/{path}/result/"
