"""Tests of the environment variables of nodes, of `when`, and of items."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quota.vocabulary.errors import Rejected
from scheduling.workflows import node_variables
from scheduling.workflows.node_variables import Result
from scheduling.workflows.workflow_spec import ItemsOf, When


def result(value: Any) -> Result:
    return Result(value, len(msgspec.json.encode(value)))


def variables(**given: Any) -> dict[str, str]:
    fixed: dict[str, Any] = {"workflow": "w", "node": "map", "parameters": {}, "results": {}, "own": {}}
    return node_variables.variables_of(**fixed | given)


def test_a_task_gets_parameters_and_results() -> None:
    found = variables(
        parameters={"FILE": "words"},
        results={"split-text": result([1, {"a": "b"}]), "quiet": Result(), "name": result("text")},
    )
    assert found == {
        "FILE": "words",
        "RESULT_SPLIT_TEXT": '[1,{"a":"b"}]',
        "RESULT_NAME": "text",
        "WORKFLOW_NAME": "w",
        "WORKFLOW_NODE": "map",
    }


def test_a_branch_gets_its_item() -> None:
    assert node_variables.of_item(2, {"from": 0}) == {"ITEM": '{"from":0}', "ITEM_INDEX": "2"}


def test_data_does_not_refer_to_variables_of_the_borglet() -> None:
    assert node_variables.as_data({"X": "$(cell) $HOME"}) == {"X": "$$(cell) $HOME"}


def test_a_large_result_is_rejected() -> None:
    with pytest.raises(Rejected, match=r"too large.* a \(40,000 bytes\).*packages"):
        variables(results={"a": Result(None, 40_000)})


def test_many_results_are_rejected_together_and_the_largest_are_named() -> None:
    results = {f"n{number}": Result("x", 4_000 + number) for number in range(20)}
    with pytest.raises(Rejected, match=r"65,536 bytes together.*n19 \(4,019 bytes\), n18"):
        variables(results=results)
    assert variables(results=dict(list(results.items())[:14]))
    with pytest.raises(Rejected):
        variables(results=dict(list(results.items())[:14]), own={"MINE": "x" * 5_000})


@pytest.mark.parametrize(
    ("when", "found", "holds"),
    [
        ({"result_of": "a", "equals": 3}, result(3), True),
        ({"result_of": "a", "equals": "3"}, result(3), True),
        ({"result_of": "a", "equals": True}, result("true"), True),
        ({"result_of": "a", "differs": 3}, result(3), False),
        ({"result_of": "a", "one_of": ["x", "y"]}, result("y"), True),
        ({"result_of": "a", "one_of": []}, result("y"), False),
        ({"result_of": "a", "key": "mode", "equals": "full"}, result({"mode": "full"}), True),
        ({"result_of": "a", "key": "mode", "equals": None}, result({}), True),
        ({"result_of": "a", "key": "mode", "equals": "full"}, result([1]), False),
        ({"result_of": "a", "equals": None}, Result(), True),
        ({"parameter": "P", "equals": 7}, Result(), True),
        ({"parameter": "P", "differs": "7"}, Result(), False),
    ],
)
def test_when(when, found, holds) -> None:
    read = msgspec.convert(when, When)
    assert node_variables.holds(read, {"P": "7"}, {"a": found}) is holds


def test_when_rejects_a_result_that_was_not_read() -> None:
    with pytest.raises(Rejected, match="too large"):
        node_variables.holds(msgspec.convert({"result_of": "a", "equals": 1}, When), {}, {"a": Result(None, 40_000)})


def test_items_are_the_list_or_the_result() -> None:
    assert node_variables.items_of("n", [1, 2], {}) == [1, 2]
    assert node_variables.items_of("n", ItemsOf("a", 3), {"a": result([1, None])}) == [1, None]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (Result(), "no-result"),
        (result({"a": 1}), "not-a-list"),
        (result([1, 2, 3, 4]), "too-many-items"),
        (Result(None, 5 * 2**20), "results-too-large"),
    ],
)
def test_a_result_that_gives_no_items_is_rejected(found, code) -> None:
    with pytest.raises(Rejected) as rejected:
        node_variables.items_of("n", ItemsOf("a", 3), {"a": found})
    assert rejected.value.code == code


def test_variables_and_secrets_of_the_job_file_come_before_those_that_are_added() -> None:
    task = {"env": {"OWN": "1"}, "secrets": [{"name": "r", "env": "REGION"}, {"name": "f", "file": "ITEM"}]}
    overrides = {"0": {"secrets": [{"name": "i", "env": "ITEM"}], "env": {"OWN": "2"}}, "1": {"env": {"OWN": None}}}
    added = {"REGION": "eu", "ITEM": "x", "OWN": "w"}
    assert node_variables.with_variables({"task": task, "overrides": overrides}, added) == {
        "task": task | {"env": {"ITEM": "x", "OWN": "1"}},
        "overrides": {"0": overrides["0"] | {"env": {"ITEM": None, "OWN": "2"}}, "1": overrides["1"]},
    }
    assert node_variables.with_variables({"task": {}}, added) == {"task": {"env": added}, "overrides": {}}
