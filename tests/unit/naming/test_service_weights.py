"""Tests of the weights of tracks: which share each track gets, and that no answer is empty because of weights."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naming.dns.zones.records import in_cell
from naming.dns.zones.rendering import _WITHOUT_LIMITS, Renderer
from naming.table.service_weights import GREATEST, ServiceWeights, WeighedTasks
from naming.table.table import NAMING_KINDS, NameTable
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from tests.unit.naming.cells import (
    ask,
    changed,
    directory_of,
    in_service,
    machine,
    reported,
    submitted,
    table_of,
    texts,
)

FRONT = "front.service.ubar.cc"


def weighed(service: str = "front", **weights: int) -> events.ServiceWeighed:
    return events.ServiceWeighed(service=service, tenant="ubar", change="set", weights=weights)


def srv(table: NameTable, name: str = f"_http._tcp.{FRONT}") -> dict[str, int]:
    """Return the weights of an SRV answer, by task as `index.job`."""
    response = ask(directory_of(table), name, "SRV", via="tcp")
    found = response.answer[0] if response.answer else ()
    return {".".join(rdata.target.to_text().split(".")[:2]): rdata.weight for rdata in found}


def addresses(table: NameTable, name: str = FRONT, kind: str = "A") -> set[str]:
    return set(texts(ask(directory_of(table), name, kind, via="tcp")))


WEB, CANARY = {"10.0.0.1", "10.0.0.2", "10.0.0.3"}, {"10.0.0.4", "10.0.0.5"}


def test_a_track_gets_its_share_whatever_number_of_tasks_it_has() -> None:
    table = table_of(*in_service(), weighed(web=90, canary=10))
    found = srv(table)
    assert found == {"0.web": 180, "1.web": 180, "2.web": 180, "0.canary": 30, "1.canary": 30}
    assert found["0.web"] * 3 == 9 * found["0.canary"] * 2
    assert set(srv(table, "_http._tcp.web.ubar.cc").values()) == {1}, "the names of jobs keep the weights of tasks"
    assert "weights=canary:10,web:90" in texts(ask(directory_of(table), FRONT, "TXT"))[0]


def test_a_track_of_weight_0_is_left_out_until_no_other_task_serves() -> None:
    table = table_of(*in_service(), weighed(web=100, canary=0))
    assert srv(table) == dict.fromkeys(("0.web", "1.web", "2.web"), 100)
    assert addresses(table) == WEB
    for index in range(3):
        table.apply(reported(index, health="unhealthy"), 90 + index)
    assert addresses(table) == CANARY
    assert srv(table) == {"0.canary": 0, "1.canary": 0}, "by RFC 2782, they are chosen with equal probability"


def test_a_job_that_joins_a_service_with_weights_gets_no_clients() -> None:
    table = table_of(weighed(canary=100), *in_service())
    assert addresses(table) == CANARY
    table.apply(weighed(), 90)
    assert addresses(table) == WEB | CANARY


def test_tracks_are_labels_and_the_names_of_jobs_without_them() -> None:
    labels = {"service": "front", "track": "green"}
    table = table_of(*in_service(), weighed(green=3, web=1), changed(job_id=8, ports=("http", "debug"), labels=labels))
    assert sum(n for task, n in srv(table).items() if "canary" in task) == 3 * sum(
        n for task, n in srv(table).items() if "web" in task
    )


def test_weights_of_tasks_divide_the_share_of_their_track() -> None:
    published = Published(weights=((0, 0, 3), (1, 1, 0)))
    labels = {"service": "front"}
    table = table_of(*in_service(), weighed(web=50, canary=50), changed(labels=labels, published=published))
    assert srv(table) == {"0.web": 150, "2.web": 50, "0.canary": 100, "1.canary": 100}


def test_only_a_track_of_weight_0_has_a_port_and_still_answers() -> None:
    table = table_of(*in_service(), weighed(web=100, canary=0))
    assert set(srv(table, f"_debug._tcp.{FRONT}")) == {"0.canary", "1.canary"}
    assert Renderer(directory_of(table), table).render(("_debug", "_tcp", "front", "service", "ubar"))


def test_only_a_track_of_weight_0_has_addresses_of_a_family_and_still_answers() -> None:
    table = table_of(*in_service(), weighed(web=100, canary=0), machine(3, "2001:db8::3"))
    assert addresses(table, kind="AAAA") == {"2001:db8::3"}
    assert addresses(table) == WEB


def test_shares_of_address_answers_are_those_of_the_tracks() -> None:
    table = table_of(*in_service(), weighed(web=90, canary=10))
    service = table.service("ubar", "front")
    assert service is not None
    rng, first = Random(17), Counter[str]()
    for _ in range(4_000):
        first[service.answering.sample(24, rng)[0].job.name] += 1
    assert 0.07 < first["canary"] / 4_000 < 0.13


def test_zones_and_answers_have_the_same_records() -> None:
    table = table_of(*in_service())
    directory = directory_of(table)
    renderer = Renderer(directory, table)
    for revision, event in enumerate((weighed(web=100), weighed(web=9, canary=1), weighed()), 90):
        table.apply(event, revision)
        for owner in (("front", "service", "ubar"), ("_http", "_tcp", "front", "service", "ubar"), ("web", "ubar")):
            node = in_cell(directory, table, list(owner))
            wanted = {
                rdata.to_wire()
                for kind in (1, 33, 16)
                for rdata in node.read(kind, _WITHOUT_LIMITS, Random(1)).rdatas  # type: ignore[arg-type]
            }
            assert {record[10:] for record in renderer.render(owner)} == wanted


def test_a_change_of_weights_is_a_change_of_names() -> None:
    table = table_of(*in_service())
    table.touched = set()
    assert "service.weighed" in NAMING_KINDS
    before = table.names_revision
    assert not table.apply(weighed("other", web=1), 80), "no job has this label"
    assert table.apply(weighed(web=1), 81)
    assert not table.apply(weighed(web=1), 82)
    assert (before < 81, table.names_revision) == (True, 81)
    assert {(one.name, one.service) for one in table.touched} == {("front", True)}
    table.apply(submitted("extra", job_id=9, labels={"service": "other"}), 83)
    other = table.service("ubar", "other")
    assert other is not None
    assert other.weights == {"web": 1}


@given(
    shares=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1000), min_size=1),
    groups=st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, GREATEST), st.integers(1, 5_000)), min_size=1, max_size=8
    ),
)
def test_weights_fit_srv_records_and_only_0_becomes_0(
    shares: dict[str, int], groups: list[tuple[str, int, int]]
) -> None:
    found = ServiceWeights(shares, [WeighedTasks(*one) for one in groups])
    for track, weight, _ in groups:
        of_service = found.of(track, weight)
        assert 0 <= of_service <= GREATEST
        assert (of_service > 0) == (weight > 0 and shares.get(track, 0) > 0)


@pytest.mark.parametrize("sizes", [(3, 3), (10, 2), (7, 1_000), (1, 4_999)])
def test_shares_are_nearly_exact_for_all_sizes(sizes: tuple[int, int]) -> None:
    blue, green = sizes
    found = ServiceWeights({"blue": 90, "green": 10}, [WeighedTasks("blue", 1, blue), WeighedTasks("green", 1, green)])
    totals = blue * found.of("blue", 1), green * found.of("green", 1)
    assert totals[1] / sum(totals) == pytest.approx(0.1, abs=0.01)


def test_more_weight_never_means_fewer_clients() -> None:
    tasks = [WeighedTasks("blue", 1, 4), WeighedTasks("green", 1, 3)]
    of_green = []
    for percent in range(101):
        found = ServiceWeights({"blue": 100 - percent, "green": percent}, tasks)
        total = 4 * found.of("blue", 1) + 3 * found.of("green", 1)
        of_green.append(3 * found.of("green", 1) / total)
    assert all(a < b for a, b in pairwise(of_green))
    assert (of_green[0], of_green[50], of_green[100]) == (0, 0.5, 1)


def test_a_track_without_placed_tasks_takes_no_share() -> None:
    weights = ServiceWeights({"blue": 1, "green": 1}, [WeighedTasks("blue", 1, 0), WeighedTasks("green", 1, 2)])
    assert (weights.of("blue", 1), weights.of("green", 1)) == (0, 1)
