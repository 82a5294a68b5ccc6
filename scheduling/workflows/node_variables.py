"""The environment variables of a node's tasks, its condition `when`, and the items of its `for_each`. Pure.

parameters ──► NAME            results of the nodes before it ──► RESULT_NODE
its item   ──► ITEM, ITEM_INDEX       the workflow and the node ──► WORKFLOW_NAME, WORKFLOW_NODE, WORKFLOW_RESULT_URL
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from quota.vocabulary.errors import Rejected
from scheduling.spec.task_spec import MAX_ENV_BYTES
from scheduling.workflows.workflow_spec import MAX_RESULT_BYTES, ItemsOf, When

# Results of one node together, as an environment variable, and as the items of `for_each`.
MAX_RESULTS_BYTES, MAX_ITEMS_BYTES = 32 * 2**10, 4 * 2**20
# Bytes of a task's variables that are kept free for those that differ between the branches of a node: the item and the
# address for the result.
OWN_BYTES = MAX_RESULT_BYTES + 2**10


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a node. `value`: None if it has none, or if it is too large to be read. `size`: bytes in JSON."""

    value: Any = None
    size: int = 0

    @property
    def is_set(self) -> bool:
        return self.size > 0


Results = Mapping[str, Result]


def result_variable(node: str) -> str:
    """Return the name of the variable with the result of a node: `RESULT_SPLIT_TEXT` for the node `split-text`."""
    return "RESULT_" + node.replace("-", "_").upper()


def as_text(value: Any) -> str:
    """Return a value as the text of an environment variable. Text stays as it is; other values become JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def most_bytes(node: str, rules: Any) -> int:
    """Return up to how many bytes the results of a node before are read. `rules`: `when` and `for_each` of the node."""
    for_each = rules.for_each if rules is not None else None
    return MAX_ITEMS_BYTES if isinstance(for_each, ItemsOf) and for_each.result_of == node else MAX_RESULTS_BYTES


def variables_of(
    *, workflow: str, node: str, parameters: Mapping[str, str], results: Results, own: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables that the jobs of a node share. `results`: by node, the results of the nodes
    before it. `own`: the variables of its job file, which come before all others. Raises `Rejected` if they are too
    large together.
    """
    found = {**parameters, "WORKFLOW_NAME": workflow, "WORKFLOW_NODE": node}
    size = bytes_of({**found, **own}) + OWN_BYTES + sum(result.size for result in results.values())
    if size > MAX_ENV_BYTES or any(result.size > MAX_RESULTS_BYTES for result in results.values()):
        largest = sorted(results, key=lambda name: -results[name].size)[:3]
        named = ", ".join(f"{name} ({results[name].size:,} bytes)" for name in largest)
        detail = (
            f"the results of the nodes before node {node} are too large for its environment variables, which have at"
            f" most {MAX_ENV_BYTES:,} bytes together and {MAX_RESULTS_BYTES:,} for one node: {named}; set smaller"
            " results, and put the data into packages"
        )
        raise Rejected("results-too-large", detail)
    return found | {result_variable(name): as_text(one.value) for name, one in results.items() if one.is_set}


def of_item(branch: int, item: Any) -> dict[str, str]:
    """Return the variables of a branch. `branch`: the place of its item."""
    return {"ITEM": as_text(item), "ITEM_INDEX": str(branch)}


def as_data(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables so that `$(` in a value is not read as a variable of the Borglet."""
    return {name: value.replace("$(", "$$(") for name, value in variables.items()}


def with_variables(template: Mapping[str, Any], added: Mapping[str, str]) -> dict[str, Any]:
    """Return `task` and `overrides` of a job file with more environment variables. The variables and the secrets of the
    job file come before them. An override that sets a secret as a variable removes an added one from its tasks.
    """
    task = template["task"]
    kept = {name: value for name, value in added.items() if name not in _of_secrets(task)}
    overrides = {}
    for key, patch in template.get("overrides", {}).items():
        if hidden := dict.fromkeys(_of_secrets(patch) & kept.keys()):
            patch = {**patch, "env": {**hidden, **(patch.get("env") or {})}}
        overrides[key] = patch
    return {"task": {**task, "env": {**kept, **task.get("env", {})}}, "overrides": overrides}


def _of_secrets(task: Mapping[str, Any]) -> set[str]:
    """Return the names of the variables that the secrets of a task become."""
    return {use["env"] for use in task.get("secrets") or () if use.get("env")}


def bytes_of(variables: Mapping[str, str]) -> int:
    """Return the bytes of variables, as the limit of `task.env` counts them. `$(` in a value becomes `$$(`."""
    return sum(len(name.encode()) + len(value.encode()) + value.count("$(") + 2 for name, value in variables.items())


def holds(when: When, parameters: Mapping[str, str], results: Results) -> bool:
    """Return whether the condition `when` of a node is met. A missing result or field is null. A number or a boolean
    equals a text that shows it. Raises `Rejected` if the result is too large.
    """
    if when.parameter:
        found: Any = parameters.get(when.parameter)
    else:
        result = results.get(when.result_of, Result())
        if result.size > MAX_RESULTS_BYTES:
            detail = f"`when` reads the results of {when.result_of}, which are too large ({result.size:,} bytes)"
            raise Rejected("results-too-large", f"{detail}; at most {MAX_RESULTS_BYTES:,} are possible")
        found = result.value
        if when.key:
            found = found.get(when.key) if isinstance(found, dict) else None
    if when.equals is not msgspec.UNSET:
        return _equal(found, when.equals)
    if when.differs is not msgspec.UNSET:
        return not _equal(found, when.differs)
    return any(_equal(found, value) for value in when.one_of or ())


def items_of(node: str, for_each: list[Any] | ItemsOf, results: Results) -> list[Any]:
    """Return the items over which a node runs. Raises `Rejected` if the result is not a list, or is too long."""
    if not isinstance(for_each, ItemsOf):
        return for_each
    source = for_each.result_of
    result = results.get(source, Result())
    if not result.is_set:
        detail = f"node {node} runs for each item of the result of {source}, which has none"
        raise Rejected("no-result", f"{detail}; set it with a request to $WORKFLOW_RESULT_URL")
    if result.size > MAX_ITEMS_BYTES:
        detail = f"the results of {source} have {result.size:,} bytes, and `for_each` reads {MAX_ITEMS_BYTES:,}"
        raise Rejected("results-too-large", f"{detail}; set smaller results, and put the data into packages")
    if not isinstance(result.value, list):
        detail = f"node {node} needs a list of items, but the result of {source} is not one; set a list"
        raise Rejected("not-a-list", detail)
    if len(result.value) > for_each.at_most:
        detail = (
            f"the result of {source} has {len(result.value):,} items, and node {node} allows {for_each.at_most:,};"
            " raise `for_each.at_most`, or return fewer items"
        )
        raise Rejected("too-many-items", detail)
    return result.value


def _equal(found: Any, value: Any) -> bool:
    return (type(found) is type(value) and found == value) or as_text(found) == as_text(value)
