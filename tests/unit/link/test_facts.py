"""Tests of the facts that machines report about themselves: each field is checked."""

from __future__ import annotations

import pytest

from borglet.messages import JoinRequest
from scheduling.machines.facts import counted, read_facts

GOOD = {"token": "t", "hostname": "m1", "address": "10.0.0.1", "capacity": {"cpu": 4000, "ram": 2**33}}


def test_ports_are_those_of_the_range_unless_said() -> None:
    facts, problems = read_facts(JoinRequest(**GOOD, port_low=20000, port_high=20009))
    assert problems == {}
    assert facts is not None
    assert facts.capacity == (4000, 2**33, 0, 0, 0, 10)
    again, _ = read_facts(facts.as_request(extra=()))
    assert again == facts


@pytest.mark.parametrize(
    ("changed", "field", "told"),
    [
        ({"hostname": "M_1"}, "hostname", "not a DNS label"),
        ({"hostname": ""}, "hostname", "not a DNS label"),
        ({"address": "here"}, "address", "not an IP address"),
        ({"capacity": {"ram": 1}}, "capacity.cpu", "missing or 0"),
        ({"capacity": {"cpu": 1, "ram": 0}}, "capacity.ram", "missing or 0"),
        ({"capacity": {"cpu": -5, "ram": 1}}, "capacity.cpu", "-5 is out of range"),
        ({"capacity": {"cpu": 1, "ram": 2**60}}, "capacity.ram", "out of range"),
        ({"capacity": {"cpu": 1, "ram": 1, "gpu": 1}}, "capacity.gpu", "no resource 'gpu'; give one of cpu"),
        ({"capacity": {"cpu": 1, "ram": 1, "ports": 99_999}}, "capacity.ports", "are more than the range"),
        ({"capacity": {"cpu": 1, "ram": 1, "accelerators": 1500}}, "capacity.accelerators", "give 1000 per device"),
        ({"capacity": {"cpu": 1, "ram": 1, "accelerators": 63_000}}, "capacity.accelerators", "at most 62"),
        ({"attributes": {"": "x"}}, "attributes.", "a name of 1 to"),
        ({"attributes": {"a": "x" * 256}}, "attributes.a", "at most 255"),
        ({"attributes": {str(n): "" for n in range(257)}}, "attributes", "at most 256"),
        ({"rack": "r" * 64}, "rack", "at most 63"),
        ({"port_low": 0}, "port_low", "is not a port"),
        ({"port_low": 30_000, "port_high": 20_000}, "port_high", "give 30000 (port_low) to 65535"),
    ],
)
def test_each_wrong_fact_is_named_with_its_cure(changed: dict, field: str, told: str) -> None:
    facts, problems = read_facts(JoinRequest(**{**GOOD, **changed}))
    assert facts is None
    assert told in problems[field]


def test_a_known_machine_grows_by_its_disk_alone() -> None:
    own = {"cpu": 4000, "ram": 2**33, "disk": 2**36, "tpu": 0}
    assert counted(own, {"cpu": 2000, "ram": 2**33, "disk": 2**38}) == ({"cpu": 2000, "ram": 2**33, "disk": 2**38}, "")
    assert counted(own, {"cpu": 64_000, "ram": 2**32, "tpu": 8}) == (
        {"cpu": 4000, "ram": 2**32, "tpu": 0},
        "cpu 64000, tpu 8",
    )
    assert counted(own, {"gpu": 1}) == ({"gpu": 1}, "")  # the reader of the facts rejects it by its name
