"""Workflows, `kind: Workflow`: the structure of their job files, and checked workflows. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from scheduling.spec import parser
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.schema import API_VERSION

KIND = "Workflow"
# Labels of each job of a workflow.
LABEL, NODE_LABEL = "workflow", "node"
MAX_NODES = 5_000  # after fan-out
MAX_EDGES = 50_000
MAX_RETRIES = 100
MAX_RESULT_BYTES = 4 * 2**10
MAX_PARAMETERS_BYTES = 16 * 2**10
MAX_TEMPLATE_BYTES = 256 * 2**10  # because one turn reads the jobs of many nodes
MAX_JOB_LABELS = parser.MAX_LABELS - 2
MAX_KEEP_S = 90 * 86_400.0
# Names of environment variables that the system sets, and the beginnings of such names.
RESERVED = ("ITEM", "ITEM_INDEX")
RESERVED_PREFIXES = ("BORG_", "RESULT_", "WORKFLOW_")


class ItemsOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`for_each` over the result of another node, which must be a list of at most `at_most` items."""

    result_of: str
    at_most: int


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The condition `when` of a node. It compares a parameter, or the result of a node, or one field of this result
    (`key`), with a value. Exactly one of `equals`, `differs` and `one_of` is given.
    """

    parameter: str = ""
    result_of: str = ""
    key: str = ""
    equals: Any = msgspec.UNSET
    differs: Any = msgspec.UNSET
    one_of: list[Any] | msgspec.UnsetType = msgspec.UNSET


class NodeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a node. `job`: a job file without name, tenant and cell. `after`: the condition of each node that
    must end before. `retries`: how often a failed job is submitted again. `for_each`: the job runs once per item.
    """

    job: dict[str, Any]
    after: dict[str, str] = {}
    when: When | None = None
    retries: int = 0
    for_each: list[Any] | ItemsOf | None = None


class WorkflowFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a job file of kind `Workflow`."""

    name: str
    nodes: dict[str, Any]
    kind: str = KIND
    apiVersion: str = API_VERSION  # noqa: N815 - the file's own spelling
    tenant: str = ""
    cell: str = ""
    labels: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    parallel: int = 1_000
    keep_s: float = 7 * 86_400.0


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A checked node. `template`: its job as a job file without name, tenant and cell. `tasks`: of one job. `job`:
    its place in the jobs of the workflow. `layer`: the length of the longest path to the node.
    """

    template: dict[str, Any]
    tasks: int
    job: int
    layer: int
    after: dict[str, str]
    when: When | None
    retries: int
    for_each: list[Any] | ItemsOf | None

    @property
    def jobs(self) -> int:
        """Return how many jobs the node has at most."""
        if self.for_each is None:
            return 1
        return self.for_each.at_most if isinstance(self.for_each, ItemsOf) else len(self.for_each)

    @property
    def size(self) -> int:
        """Return how many bytes the start of the node reads at most, in round figures."""
        rules = 0 if self.for_each is None else len(msgspec.json.encode(self.for_each))
        return len(msgspec.json.encode(self.template)) + rules + MAX_RESULT_BYTES * len(self.after)

    def to_json(self) -> dict[str, Any]:
        file: dict[str, Any] = {"job": self.template}
        for name, empty in (("after", {}), ("when", None), ("retries", 0), ("for_each", None)):
            if (value := getattr(self, name)) != empty:
                file[name] = msgspec.to_builtins(value)
        return file


class WorkflowSpecification(msgspec.Struct, frozen=True, kw_only=True):
    """A checked workflow. `parallel`: how many of its jobs are live at once at most. `keep_s`: for how many seconds
    after its end the workflow is kept. `jobs`: the different jobs of the nodes, without names.
    """

    name: str
    tenant: str
    cell: str
    labels: dict[str, str]
    parameters: dict[str, str]
    parallel: int
    keep_s: float
    nodes: dict[str, Node]
    jobs: tuple[JobSpecification, ...] = ()

    def at(self, *, cell: str, tenant: str) -> WorkflowSpecification:
        return msgspec.structs.replace(self, cell=cell, tenant=tenant)

    def to_json(self) -> dict[str, Any]:
        """Return a job file that parses to an equal workflow."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "tenant": self.tenant,
            "cell": self.cell,
            "labels": dict(sorted(self.labels.items())),
            "parameters": self.parameters,
            "parallel": self.parallel,
            "keep_s": self.keep_s,
            "nodes": {name: node.to_json() for name, node in self.nodes.items()},
        }

    def digest(self) -> str:
        """Return the SHA-256 of the workflow in hexadecimal. Equal workflows have equal digests."""
        return hashlib.sha256(msgspec.json.encode(self.to_json(), order="deterministic")).hexdigest()


def job_name(workflow: str, node: str, branch: int | None = None) -> str:
    """Return the name of the job of a node, for example `count-reduce`, or of a branch, for example `count-map-3`."""
    return f"{workflow}-{node}" if branch is None else f"{workflow}-{node}-{branch}"


def has_nul(value: Any) -> bool:
    """Return whether a JSON value contains a NUL character, which PostgreSQL cannot store."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str) and "\x00" in one:
            return True
        if isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one
    return False
