"""The parser of job files of kind `Workflow`. Pure.

    bytes or dict ─ parse ─► header ─► nodes ─► graph: unknown nodes, cycles, size ─► jobs ─► WorkflowSpecification
                                └─────────┴───── Rejected with fields: {"nodes.b.after": …} ──┘

The graph is checked before the jobs, so that a bad graph is rejected fast, whatever its size.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quota.vocabulary.errors import Rejected
from scheduling.spec import parser
from scheduling.spec.field_errors import Problems, convert, rejection
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.schema import SERVICE_LABEL
from scheduling.spec.task_spec import MAX_ENV_BYTES
from scheduling.workflows import graph_rules
from scheduling.workflows.graph_rules import Condition, CycleFound
from scheduling.workflows.node_variables import OWN_BYTES, bytes_of
from scheduling.workflows.workflow_spec import (
    KIND,
    LABEL,
    MAX_EDGES,
    MAX_JOB_LABELS,
    MAX_KEEP_S,
    MAX_NODES,
    MAX_PARAMETERS_BYTES,
    MAX_RESULT_BYTES,
    MAX_RETRIES,
    MAX_TEMPLATE_BYTES,
    NODE_LABEL,
    RESERVED,
    RESERVED_PREFIXES,
    ItemsOf,
    Node,
    NodeFile,
    When,
    WorkflowFile,
    WorkflowSpecification,
    has_nul,
    job_name,
)

_MOST_PROBLEMS = 20  # wrong jobs after which the others are not read
_MOST_IN_CYCLE = 20  # nodes of a cycle that the error names
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(slots=True)
class _Jobs:
    """The jobs that were read. Equal jobs are parsed once. `reserved`: bytes of environment variables that are added to
    each job. `places`: the place in `different` by the SHA-256 of the job in the file.
    """

    reserved: int
    different: list[JobSpecification] = field(default_factory=list)
    places: dict[bytes, int] = field(default_factory=dict)


def parse(data: bytes | Mapping[str, Any], *, limits: parser.CellLimits) -> WorkflowSpecification:
    """Return the checked workflow of a job file. Raises `Rejected` with the code `invalid-spec`, whose `fields` contain
    the problems by their path. Wrong jobs are only looked for in a correct graph.
    """
    problems = Problems()
    file = convert(parser.decode(data), WorkflowFile, problems, "")
    if file is None:
        raise rejection(problems.found)
    _check_header(file, problems)
    parameters = _read_parameters(file.parameters, problems)
    nodes = _read_nodes(file, parameters, problems)
    after = {name: _conditions(node) for name, node in nodes.items()}
    layers = _check_graph(nodes, after, problems)
    if problems.found:
        raise rejection(problems.found)
    jobs = _Jobs(bytes_of(parameters) + OWN_BYTES)
    checked = _read_jobs(file, nodes, after, layers, problems, limits, jobs)
    if problems.found:
        raise rejection(problems.found)
    return WorkflowSpecification(
        name=file.name,
        tenant=file.tenant,
        cell=file.cell,
        labels=file.labels,
        parameters=parameters,
        parallel=file.parallel,
        keep_s=file.keep_s,
        nodes=checked,
        jobs=tuple(jobs.different),
    )


def _check_header(file: WorkflowFile, problems: Problems) -> None:
    parser.check_header(file, (KIND,), problems)
    problems.number("parallel", file.parallel, 1, MAX_NODES)
    problems.number("keep_s", file.keep_s, 0, MAX_KEEP_S)
    parser.check_labels(file.labels, problems)
    if SERVICE_LABEL in file.labels:
        problems.add(f"labels.{SERVICE_LABEL}", "a workflow is not a service; set this label in the job of a node")
    if not file.nodes:
        problems.add("nodes", "is empty; give at least one node")
    elif len(file.nodes) > MAX_NODES:
        problems.add("nodes", f"has {len(file.nodes):,} nodes; give at most {MAX_NODES:,}, or use several workflows")


def _read_parameters(given: Mapping[str, Any], problems: Problems) -> dict[str, str]:
    """Return the parameters as texts, because tasks get them as environment variables."""
    found: dict[str, str] = {}
    for name, value in given.items():
        path = f"parameters.{name}"
        if not _PARAMETER.fullmatch(name):
            problems.add(path, "is not the name of a variable; use letters, digits and underscores")
        elif name in RESERVED or name.startswith(RESERVED_PREFIXES):
            problems.add(path, f"the system sets variables such as {name}; choose another name")
        elif isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            found[name] = str(value)
        else:
            problems.add(path, "is not text, a number, true or false; give one of these")
        if "\x00" in found.get(name, ""):
            problems.add(path, "contains a NUL character; remove it")
    size = sum(len(name) + len(value.encode()) + 2 for name, value in found.items())
    if size > MAX_PARAMETERS_BYTES:
        cure = f"give at most {MAX_PARAMETERS_BYTES:,}, and put data into a package"
        problems.add("parameters", f"has {size:,} bytes; {cure}")
    return found


def _read_nodes(file: WorkflowFile, parameters: Mapping[str, str], problems: Problems) -> dict[str, NodeFile]:
    """Return the nodes of a file, without those that have a wrong structure."""
    nodes: dict[str, NodeFile] = {}
    edges = 0
    if len(file.nodes) > MAX_NODES:
        return nodes
    for name, given in file.nodes.items():
        path = f"nodes.{name}"
        problems.label(path, name)
        node = convert(given, NodeFile, problems, path)
        if node is None:
            continue
        nodes[name] = node
        problems.number(f"{path}.retries", node.retries, 0, MAX_RETRIES)
        edges += len(node.after)
        if edges > MAX_EDGES:
            problems.add("nodes", f"the nodes have more than {MAX_EDGES:,} conditions in `after`; give fewer")
            break
        _check_names_of(node, file.nodes, problems, path)
        if node.when is not None:
            _check_when(node.when, parameters, problems, f"{path}.when")
        if isinstance(node.for_each, ItemsOf):
            problems.number(f"{path}.for_each.at_most", node.for_each.at_most, 1, MAX_NODES)
        elif node.for_each is not None:
            _check_items(node.for_each, problems, f"{path}.for_each")
        if len(problems.found) >= _MOST_PROBLEMS:
            break
    return nodes


def _check_names_of(node: NodeFile, known: Mapping[str, Any], problems: Problems, path: str) -> None:
    """Check the names of other nodes in a node, and the conditions."""
    cure = "correct the name, or add the node"
    for before, condition in node.after.items():
        if before not in known:
            problems.add(f"{path}.after.{before}", f"there is no node {before[:63]!r}; {cure}")
        problems.choice(f"{path}.after.{before}", condition, Condition)
        if len(problems.found) >= _MOST_PROBLEMS:
            return
    for field_, name in (
        ("for_each", node.for_each.result_of if isinstance(node.for_each, ItemsOf) else ""),
        ("when", node.when.result_of if node.when is not None else ""),
    ):
        if name and name not in known:
            problems.add(f"{path}.{field_}.result_of", f"there is no node {name[:63]!r}; {cure}")


def _check_text(value: Any, problems: Problems, path: str) -> None:
    """Add a problem if a value contains a NUL character, which PostgreSQL cannot store."""
    if has_nul(value):
        problems.add(path, "contains a NUL character; remove it")


def _check_items(items: list[Any], problems: Problems, path: str) -> None:
    if not items:
        problems.add(path, "is empty; give at least one item, or remove the node")
    for number, item in enumerate(items):
        if (size := len(msgspec.json.encode(item))) > MAX_RESULT_BYTES:
            cure = f"give at most {MAX_RESULT_BYTES:,}, and put data into a package"
            problems.add(f"{path}[{number}]", f"has {size:,} bytes in JSON; {cure}")
            return
    _check_text(items, problems, path)


def _check_when(when: When, parameters: Mapping[str, str], problems: Problems, path: str) -> None:
    if bool(when.parameter) == bool(when.result_of):
        problems.add(path, "give either `parameter` or `result_of`")
    elif when.parameter and when.parameter not in parameters:
        problems.add(f"{path}.parameter", f"the workflow has no parameter {when.parameter!r}; add it to `parameters`")
    if when.key and not when.result_of:
        problems.add(f"{path}.key", "names a field of a result; give `result_of` too, or remove this field")
    given = [value for value in (when.equals, when.differs, when.one_of) if value is not msgspec.UNSET]
    if len(given) != 1:
        problems.add(path, "give one of `equals`, `differs` and `one_of`")
    _check_text([when.key, *given], problems, path)


def _conditions(node: NodeFile) -> dict[str, str]:
    """Return the `after` of a node. Nodes whose results it needs are added, because their results are known only after
    their success.
    """
    after = dict(node.after)
    for name in (
        node.for_each.result_of if isinstance(node.for_each, ItemsOf) else "",
        node.when.result_of if node.when is not None else "",
    ):
        if name:
            after.setdefault(name, Condition.SUCCEEDED.value)
    return after


def _check_graph(
    nodes: Mapping[str, NodeFile], after: Mapping[str, Mapping[str, str]], problems: Problems
) -> dict[str, int]:
    """Check the graph, and return the layer of each node."""
    if problems.found:
        return {}
    _check_size(nodes, problems)
    if problems.found:
        return {}
    try:
        order = graph_rules.ordered(after)
    except CycleFound as cycle:
        named = " → ".join(cycle.nodes[:_MOST_IN_CYCLE])
        if len(cycle.nodes) > _MOST_IN_CYCLE:
            named += f" → … ({len(cycle.nodes) - 1} nodes)"
        problems.add(
            f"nodes.{cycle.nodes[0]}.after", f"the nodes wait for each other: {named}; remove one of these conditions"
        )
        return {}
    return graph_rules.layers(after, order)


def _check_size(nodes: Mapping[str, NodeFile], problems: Problems) -> None:
    total = 0
    for name, node in nodes.items():
        if isinstance(node.for_each, ItemsOf):
            total += node.for_each.at_most
        else:
            total += 1 if node.for_each is None else len(node.for_each)
        if total > MAX_NODES:
            path = f"nodes.{name}.for_each" if node.for_each is not None else "nodes"
            cure = f"at most {MAX_NODES:,} are possible; lower `at_most`, or use several workflows"
            problems.add(path, f"with this node the workflow has {total:,} nodes after fan-out; {cure}")
            return


def _read_jobs(
    file: WorkflowFile,
    nodes: Mapping[str, NodeFile],
    after: Mapping[str, dict[str, str]],
    layers: Mapping[str, int],
    problems: Problems,
    limits: parser.CellLimits,
    jobs: _Jobs,
) -> dict[str, Node]:
    checked: dict[str, Node] = {}
    for name, node in nodes.items():
        place = _read_job(node.job, problems, limits, f"nodes.{name}.job", jobs)
        if place is not None:
            job = jobs.different[place]
            template = {key: value for key, value in job.to_json().items() if key not in ("name", "tenant", "cell")}
            checked[name] = Node(
                template=template,
                tasks=job.tasks,
                job=place,
                layer=layers[name],
                after=after[name],
                when=node.when,
                retries=node.retries,
                for_each=node.for_each,
            )
            _check_name(file.name, name, checked[name], nodes, problems)
        if len(problems.found) >= _MOST_PROBLEMS:
            break
    return checked


def _check_name(workflow: str, name: str, node: Node, nodes: Mapping[str, NodeFile], problems: Problems) -> None:
    last = None if node.for_each is None else node.jobs - 1
    if len(longest := job_name(workflow, name, last)) > 63:
        cure = "names of jobs have at most 63; shorten the name of the workflow or of the node"
        problems.add(f"nodes.{name}", f"its job would have the name {longest}, with {len(longest)} characters; {cure}")
    base, _, number = name.rpartition("-")
    if base in nodes and nodes[base].for_each is not None and number.isdecimal():
        cure = f"node {base} has `for_each`, so its jobs have names like {workflow}-{base}-0; rename one of the nodes"
        problems.add(f"nodes.{name}", f"its job would have the name {workflow}-{name}; {cure}")


def _read_job(
    given: Mapping[str, Any], problems: Problems, limits: parser.CellLimits, path: str, jobs: _Jobs
) -> int | None:
    """Return the place of the job of a node in `jobs`, or None if it is wrong."""
    before = len(problems.found)
    for name in ("name", "tenant", "cell"):
        if name in given:
            problems.add(f"{path}.{name}", f"a node gets its {name} from the workflow; remove this field")
    if given.get("start_after") is not None:
        problems.add(f"{path}.start_after", "the graph decides when a node starts; remove this field")
    if given.get("after"):
        cure = "name nodes in the `after` of the node, or remove this field"
        problems.add(f"{path}.after", f"the graph decides when a node starts; {cure}")
    if given.get("kind", "Job") != "Job":
        problems.add(f"{path}.kind", "a node is always a job; write Job, or remove this field")
    labels = given.get("labels")
    if isinstance(labels, dict):
        for label in {LABEL, NODE_LABEL} & labels.keys():
            problems.add(f"{path}.labels.{label}", "the system sets this label on each job of a workflow; remove it")
        if len(labels) > MAX_JOB_LABELS:
            cure = f"give at most {MAX_JOB_LABELS}, because each job gets the labels {LABEL} and {NODE_LABEL} too"
            problems.add(f"{path}.labels", f"has {len(labels)} labels; {cure}")
    if len(problems.found) > before:
        return None
    key = hashlib.sha256(msgspec.json.encode(given, order="deterministic")).digest()
    if (place := jobs.places.get(key)) is not None:
        return place
    try:
        job = parser.parse({**given, "name": "node"}, limits=limits)
    except Rejected as problem:
        for inner, message in problem.fields.items():
            problems.add(f"{path}.{inner}", message)
        return None
    if (size := len(job.canonical)) > MAX_TEMPLATE_BYTES:
        cure = f"give at most {MAX_TEMPLATE_BYTES:,}; move data into a package"
        problems.add(path, f"the job has {size:,} bytes in JSON; {cure}")
    most = MAX_ENV_BYTES - jobs.reserved
    if (size := max(bytes_of(task.env) for _, _, task in job.segments())) > most:
        cure = f"give at most {most:,}, because the parameters and the variables of the system are added"
        problems.add(f"{path}.task.env", f"has {size:,} bytes; {cure}")
    jobs.places[key] = len(jobs.different)
    jobs.different.append(job)
    return jobs.places[key]
