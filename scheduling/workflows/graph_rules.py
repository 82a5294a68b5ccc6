"""Rules of the graph of a workflow: its order, its layers, and how the state of one node changes others. Pure.

waiting ── all conditions are met ──► ready ── job submitted ──► running ──► succeeded
   │                                   │  ▲                        │
   │ a condition cannot be met         │  └──── failed, retries ───┤
   └────────────► skipped ◄── `when` ──┘                           └──────► failed
                  each state that is not an end ── cancel ──► cancelled
"""

from __future__ import annotations

import graphlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class NodeState(StrEnum):
    """The state of a node, or of one branch of a node with `for_each`."""

    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class Condition(StrEnum):
    """What a node in `after` must do before the node that names it starts. `ended`: it succeeded, failed or was
    skipped.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"


ENDS = frozenset({NodeState.SUCCEEDED, NodeState.FAILED, NodeState.SKIPPED, NodeState.CANCELLED})
# Seconds before the first retry of a failed node; each further one waits twice as long.
_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 300.0

After = Mapping[str, Mapping[str, str]]


class CycleFound(Exception):
    """Raised for a graph with a cycle. `nodes`: the nodes of the cycle in order; the first one is also the last one."""

    def __init__(self, nodes: list[str]) -> None:
        super().__init__(" → ".join(nodes))
        self.nodes = nodes


@dataclass(frozen=True, slots=True)
class Waiting:
    """What decides whether a node starts. `unmet`: the number of conditions in `after` that are not met yet."""

    state: NodeState
    unmet: int


def ordered(after: Mapping[str, Collection[str]]) -> list[str]:
    """Return the nodes in an order in which each node comes after those in its `after`. Raises `CycleFound`."""
    try:
        return list(graphlib.TopologicalSorter(after).static_order())
    except graphlib.CycleError as error:
        raise CycleFound(error.args[1][::-1]) from None


def layers(after: Mapping[str, Collection[str]], order: Iterable[str]) -> dict[str, int]:
    """Return the layer of each node: the length of the longest path that leads to it. `order`: from `ordered`."""
    found: dict[str, int] = {}
    for name in order:
        found[name] = max((found[before] + 1 for before in after[name]), default=0)
    return found


def is_met(condition: str, state: str) -> bool:
    """Return whether a node that ended in `state` meets a condition. If not, it never does."""
    if condition == Condition.ENDED:
        return state in (NodeState.SUCCEEDED, NodeState.FAILED, NodeState.SKIPPED)
    return state == condition


def after_ends(node: Waiting, met: Iterable[bool]) -> Waiting:
    """Return the node after some nodes before it have ended. `met`: for each of these, whether it met its condition.
    Only a waiting node changes.
    """
    if node.state is not NodeState.WAITING:
        return node
    verdicts = list(met)
    if not all(verdicts):
        return replace(node, state=NodeState.SKIPPED)
    unmet = node.unmet - len(verdicts)
    return Waiting(NodeState.READY if unmet <= 0 else NodeState.WAITING, max(0, unmet))


def after_job(how: str, retries_left: int, *, cancelling: bool) -> NodeState:
    """Return the state of a node whose job has ended. `how`: `finished`, `failed` or `killed`. A failed node with
    retries becomes ready again. A job that a person killed is not retried.
    """
    if how == "finished":
        return NodeState.SUCCEEDED
    if cancelling:
        return NodeState.CANCELLED
    return NodeState.READY if how == "failed" and retries_left > 0 else NodeState.FAILED


def retry_delay_s(attempt: int) -> float:
    """Return how many seconds a failed node waits before its next attempt. `attempt`: the failed one, from 1."""
    return float(min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** min(attempt - 1, 30)))


def after_branches(left: int, failed: int) -> NodeState:
    """Return the state of a node with `for_each`. `left`: its branches that have not ended. `failed`: those that did
    not succeed.
    """
    if left > 0:
        return NodeState.RUNNING
    return NodeState.FAILED if failed else NodeState.SUCCEEDED


def after_retry(after: After, states: Mapping[str, str]) -> dict[str, Waiting]:
    """Return the nodes that a retry of an ended workflow changes, as they are then. `states`: of all nodes.

    Nodes that succeeded stay as they are. A node whose conditions can still not be met stays skipped.
    """
    kept: dict[str, str] = {}
    changed: dict[str, Waiting] = {}
    for name in ordered({name: list(before) for name, before in after.items()}):
        if states[name] == NodeState.SUCCEEDED:
            kept[name] = NodeState.SUCCEEDED
            continue
        known = {before: condition for before, condition in after[name].items() if before in kept}
        if not all(is_met(condition, kept[before]) for before, condition in known.items()):
            kept[name] = NodeState.SKIPPED
            if states[name] != NodeState.SKIPPED:
                changed[name] = Waiting(NodeState.SKIPPED, 0)
            continue
        unmet = len(after[name]) - len(known)
        changed[name] = Waiting(NodeState.WAITING if unmet else NodeState.READY, unmet)
    return changed
