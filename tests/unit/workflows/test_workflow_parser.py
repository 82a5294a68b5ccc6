"""Tests of job files of kind `Workflow`."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from quota.vocabulary.errors import Rejected
from scheduling.spec.parser import CellLimits
from scheduling.workflows import workflow_parser
from scheduling.workflows.workflow_spec import WorkflowSpecification

JOB = {"task": {"command": ["count"]}}


def parse(nodes: dict[str, Any], **fields: Any) -> WorkflowSpecification:
    file = {"kind": "Workflow", "name": "w", "nodes": nodes, **fields}
    return workflow_parser.parse(msgspec.json.encode(file), limits=CellLimits())


def problems(nodes: dict[str, Any], **fields: Any) -> dict[str, str]:
    with pytest.raises(Rejected) as rejected:
        parse(nodes, **fields)
    assert rejected.value.code == "invalid-spec"
    return rejected.value.fields


def node(**fields: Any) -> dict[str, Any]:
    return {"job": JOB, **fields}


def test_a_workflow_is_read_and_written_back() -> None:
    spec = parse(
        {
            "split": node(),
            "map": node(for_each={"result_of": "split", "at_most": 8}, retries=2),
            "check": node(when={"result_of": "split", "key": "mode", "equals": "full"}),
            "reduce": node(after={"map": "succeeded", "check": "ended"}),
        },
        parameters={"FILE": "words", "PARTS": 4, "FAST": True},
    )
    assert spec.parameters == {"FILE": "words", "PARTS": "4", "FAST": "true"}
    assert spec.nodes["map"].after == {"split": "succeeded"}  # added, because it needs the result
    assert spec.nodes["check"].after == {"split": "succeeded"}
    assert [spec.nodes[name].layer for name in ("split", "map", "check", "reduce")] == [0, 1, 1, 2]
    assert [spec.nodes[name].jobs for name in ("split", "map", "reduce")] == [1, 8, 1]
    again = workflow_parser.parse(spec.to_json(), limits=CellLimits())
    assert (again.digest(), again.nodes) == (spec.digest(), spec.nodes)
    assert len(spec.jobs) == 1  # equal jobs are parsed once


def test_a_cycle_is_named() -> None:
    found = problems(
        {"a": node(after={"b": "succeeded"}), "b": node(after={"a": "succeeded"}), "c": node(after={"a": "ended"})}
    )
    ((path, message),) = found.items()
    assert path in ("nodes.a.after", "nodes.b.after")
    assert "a → b" in message
    assert "b → a" in message
    assert "c" not in message.split(";")[0].replace("each", "")


@pytest.mark.parametrize(
    ("nodes", "path", "text"),
    [
        ({"a": node(after={"zz": "succeeded"})}, "nodes.a.after.zz", "there is no node 'zz'"),
        ({"a": node(after={"a": "succeeded"})}, "nodes.a.after", "a → a"),
        ({"a": node(), "b": node(after={"a": "done"})}, "nodes.b.after.a", "one of succeeded, failed, ended"),
        ({"a": node(for_each={"result_of": "b"})}, "nodes.a.for_each.at_most", "is missing"),
        ({"a": node(for_each={"result_of": "b", "at_most": 9_999})}, "nodes.a.for_each.at_most", "out of range"),
        ({"a": node(for_each=[])}, "nodes.a.for_each", "is empty"),
        ({"a": node(for_each=["x\0"])}, "nodes.a.for_each", "NUL"),
        ({"a": node(for_each=["x" * 5_000])}, "nodes.a.for_each[0]", "at most 4,096"),
        (
            {"s": node(), "a": node(for_each={"result_of": "s", "at_most": 5_000})},
            "nodes.a.for_each",
            "5,001 nodes after fan-out",
        ),
        ({"a": node(for_each={"result_of": "b", "at_most": 2})}, "nodes.a.for_each.result_of", "there is no node 'b'"),
        ({"a": node(when={"result_of": "b", "equals": 1})}, "nodes.a.when.result_of", "there is no node 'b'"),
        (
            {"a": node(job={"task": {"command": ["x"], "env": {"E": "x" * 62_000}}})},
            "nodes.a.job.task.env",
            "variables of the system",
        ),
        ({"a": {}}, "nodes.a.job", "is missing"),
        ({"a": node(job={"task": {"command": []}})}, "nodes.a.job.task.command", "is missing"),
        ({"a": node(job={**JOB, "name": "x"})}, "nodes.a.job.name", "remove this field"),
        ({"a": node(job={**JOB, "after": {"w-b": "ended"}}), "b": node()}, "nodes.a.job.after", "`after` of the node"),
        ({"a": node(job={**JOB, "labels": {"node": "x"}})}, "nodes.a.job.labels.node", "remove it"),
        ({"a": node(retries=-1)}, "nodes.a.retries", "out of range"),
        ({"A": node()}, "nodes.A", "not a DNS label"),
        ({"a": node(colour=1)}, "nodes.a.colour", "unknown field"),
        ({"a": node(when={"parameter": "X", "equals": 1})}, "nodes.a.when.parameter", "no parameter 'X'"),
        ({"a": node(when={"equals": 1})}, "nodes.a.when", "either `parameter` or `result_of`"),
        ({"s": node(), "a": node(when={"result_of": "s"})}, "nodes.a.when", "one of `equals`"),
        ({}, "nodes", "is empty"),
        ({"a": node(for_each=[1, 2]), "a-1": node()}, "nodes.a-1", "rename one of the nodes"),
        ({"n" * 62: node()}, f"nodes.{'n' * 62}", "64 characters"),
    ],
)
def test_a_wrong_graph_is_rejected_with_its_field(nodes, path, text) -> None:
    found = problems(nodes)
    assert text in found[path], found


@pytest.mark.parametrize("name", ["1x", "BORG_X", "RESULT_A", "WORKFLOW_NAME", "ITEM", "a-b"])
def test_a_parameter_needs_the_free_name_of_a_variable(name) -> None:
    assert f"parameters.{name}" in problems({"a": node()}, parameters={name: "x"})


def test_large_parameters_are_rejected() -> None:
    assert "at most 16,384" in problems({"a": node()}, parameters={"X": "x" * 20_000})["parameters"]


def _chain(number: int, *, closed: bool) -> dict[str, Any]:
    nodes = {f"n{i}": node(after={f"n{i - 1}": "succeeded"} if i else {}) for i in range(number)}
    if closed:
        nodes["n0"] = node(after={f"n{number - 1}": "succeeded"})
    return nodes


def test_a_cycle_of_5000_nodes_is_rejected_within_a_second() -> None:
    nodes = _chain(5_000, closed=True)
    for number, one in enumerate(nodes.values()):  # all jobs differ, and are not read
        one["job"] = {"task": {"command": ["count", str(number)]}}
    start = time.process_time()
    ((_, message),) = problems(nodes).items()
    assert time.process_time() - start < 1.0
    assert "(5000 nodes)" in message
    assert len(message) < 500


@pytest.mark.parametrize(
    "nodes",
    [
        {f"n{i}": node() for i in range(5_001)},
        {f"n{i}": node(after={f"n{j}": "ended" for j in range(i)}) for i in range(400)},
        {f"n{i}": node(for_each={"result_of": "n0", "at_most": 5_000}) for i in range(1, 3_000)},
    ],
)
def test_oversize_graphs_are_rejected_within_a_second(nodes) -> None:
    start = time.process_time()
    assert problems(nodes)
    assert time.process_time() - start < 1.0


def test_a_node_with_many_unknown_names_has_few_problems() -> None:
    start = time.process_time()
    assert len(problems({"a": node(after={f"x{i}": "succeeded" for i in range(40_000)})})) <= 21
    assert set(problems({"a": node(after={f"x{i}": "succeeded" for i in range(150_000)})})) == {"nodes"}
    assert time.process_time() - start < 2.0


def test_a_chain_of_5000_nodes_is_read() -> None:
    spec = parse(_chain(5_000, closed=False))
    assert spec.nodes["n4999"].layer == 4_999
