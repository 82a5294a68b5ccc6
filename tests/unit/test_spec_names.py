"""Tests of the fields of a job file about its DNS names: time to live, delay of a stop, and weights (§2.6)."""

from __future__ import annotations

from typing import Any

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.core.vocabulary.published import Published
from scheduling.jobs.rollouts import restart_rule
from scheduling.jobs.rollouts.restart_rule import SpecChange
from scheduling.spec import parser
from scheduling.spec.parser import parse


def web(*, weight: int | None = None, **changes: Any) -> dict[str, Any]:
    """Return the job file of a server with ten tasks. `changes`: fields to set."""
    task: dict[str, Any] = {"command": ["serve"], "ports": ["http"]}
    if weight is not None:
        task["weight"] = weight
    return {"name": "web", "tasks": 10, "task": task, **changes}


def refused(data: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(Rejected) as caught:
        parse(data)
    return caught.value.fields


@pytest.mark.parametrize(
    "file, published",
    [
        (web(), Published()),
        (web(names={"ttl_s": 60}), Published(60)),
        (web(weight=5), Published(0, ((0, 9, 5),))),
        (web(overrides={"0": {"weight": 3}}), Published(0, ((0, 0, 3),))),
        (web(overrides={"9": {"weight": 0}, "2-4": {"weight": 7}}), Published(0, ((2, 4, 7), (9, 9, 0)))),
        # Neighbours of one weight are one range, whatever else differs.
        (web(overrides={"2-4": {"weight": 7}, "5": {"weight": 7, "env": {"A": "b"}}}), Published(0, ((2, 5, 7),))),
        (web(weight=2, overrides={"3": {"env": {"A": "b"}}, "9": {"weight": 1}}), Published(0, ((0, 8, 2),))),
    ],
)
def test_what_is_published_follows_from_the_file(file: dict[str, Any], published: Published) -> None:
    job = parse(file)
    assert job.published() == published
    again = parser.load(job.to_json())
    assert (again, again.digest(), again.published()) == (job, job.digest(), published)
    for first, last, weight in published.weights:
        assert {job.task(index).weight for index in range(first, last + 1)} == {weight}


def test_what_was_stored_before_keeps_its_digest() -> None:
    plain = parse(web())
    assert not {"names", "weight"} & {*plain.to_json(), *plain.to_json()["task"]}
    assert plain.digest() == parse(web(names={}, weight=1)).digest()
    assert plain.digest() == parse(web(names={"ttl_s": 0, "leave_s": None})).digest()
    others = [web(names={"ttl_s": 1}), web(names={"leave_s": 0}), web(weight=2)]
    assert len({plain.digest(), *(parse(other).digest() for other in others)}) == 4


@pytest.mark.parametrize(
    "changes",
    [{"names": {"ttl_s": 30}}, {"names": {"leave_s": 1.5}}, {"weight": 2}, {"overrides": {"3-9": {"weight": 0}}}],
)
def test_a_change_of_names_and_weights_is_in_place(changes: dict[str, Any]) -> None:
    old, new = parse(web()), parse(web(**changes))
    kinds = {kind for _, _, kind in restart_rule.changes(old, new)}
    assert SpecChange.IN_PLACE in kinds
    assert SpecChange.RESTART not in kinds


@pytest.mark.parametrize(
    "file, path, message",
    [
        (web(names={"ttl_s": -1}), "names.ttl_s", "-1 is out of range; give a number from 0 to 86400"),
        (web(names={"ttl_s": 86_401}), "names.ttl_s", "86401 is out of range"),
        (web(names={"ttl_s": "5"}), "names.ttl_s", "give a whole number, without quotes"),
        (web(names={"leave_s": "5s"}), "names.leave_s", "give a number, without quotes"),
        (web(names={"ttl_s": 1.5}), "names.ttl_s", "expected `int`, got `float`; give a whole number"),
        (web(names={"leave_s": 601}), "names.leave_s", "601 is out of range; give a number from 0 to 600"),
        (web(names={"leave_s": -0.1}), "names.leave_s", "-0.1 is out of range"),
        (web(names={"ttl": 5}), "names.ttl", "unknown field; did you mean 'ttl_s'?"),
        (web(names=5), "names", "give fields with values"),
        (web(weight=-1), "task.weight", "-1 is out of range; give a number from 0 to 65535"),
        (web(weight=65_536), "task.weight", "65536 is out of range"),
        (web(overrides={"3": {"weight": 100_000}}), "overrides.3.weight", "out of range"),
        (web(overrides={"3": {"weight": "heavy"}}), "overrides.3.weight", "give a whole number"),
        (
            {"name": "box", "kind": "AllocSet", "task": {"weight": 2}},
            "task.weight",
            "an alloc serves no clients; set weights in the jobs inside the alloc set",
        ),
        (
            {"name": "box", "kind": "AllocSet", "task": {}, "names": {"ttl_s": 2}},
            "names",
            "an alloc set has no names; set them in the jobs inside the alloc set",
        ),
    ],
)
def test_what_can_not_be_published_is_reported_by_field(file: dict[str, Any], path: str, message: str) -> None:
    fields = refused(file)
    assert list(fields) == [path]
    assert message in fields[path]
