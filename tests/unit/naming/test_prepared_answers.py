"""Tests of the short path, the fast way to answer simple address queries from prepared bytes.

It must give the same answer as the full resolver, or none, and never an answer from before the last event.
"""

from __future__ import annotations

import socket
from collections import Counter
from random import Random

import dns.edns
import dns.flags
import dns.message
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naming.dns.prepared_answers import USES, ShortPath
from naming.dns.resolver import UDP_LIMITS
from naming.dns.zones.directory import ZoneDirectory
from naming.table.jobs import NamedJob, NamedService
from naming.table.table import NameTable
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from tests.examples import examples
from tests.unit.naming.cells import (
    WEB,
    answer,
    changed,
    directory_of,
    ended,
    evicted,
    in_service,
    machine,
    placed,
    reported,
    running,
    submitted,
    table_of,
)

NAMES = (
    "web.ubar.cc",
    "WEB.Ubar.cc",
    "0.web.ubar.cc",
    "1.web.ubar.cc",
    "7.web.ubar.cc",
    "01.web.ubar.cc",
    "other.ubar.cc",
    "web.nobody.cc",
    "ubar.cc",
    "cc",
    "web.ubar.dd",
    "_http._tcp.web.ubar.cc",
    "m0.machine.cc",
    "x.1.web.ubar.cc",
    "_tcp.web.ubar.cc",
    "w\\200b.ubar.cc",
    "front.service.ubar.cc",
    "back.SERVICE.ubar.cc",
    "service.ubar.cc",
    "0.service.ubar.cc",
    "canary.ubar.cc",
    "_http._tcp.front.service.ubar.cc",
    "x.front.service.ubar.cc",
    "service.nobody.cc",
    "front.services.ubar.cc",
)


def query_of(name: str, rdtype: str = "A", *, edns: bool = False, flags: int = 0) -> dns.message.Message:
    message = dns.message.make_query(f"{name}.borg.internal.", rdtype, use_edns=0 if edns else -1)
    message.flags = (message.flags & ~dns.flags.RD) | flags
    return message


def short_of(directory: ZoneDirectory) -> ShortPath:
    return ShortPath(directory, Random(1))


def both(
    short: ShortPath, directory: ZoneDirectory, query: dns.message.Message
) -> tuple[dns.message.Message | None, dns.message.Message]:
    wire = query.to_wire()
    quick, slow = short.answer(wire), answer(wire, directory, via="udp", rng=Random(1))
    assert slow is not None
    return None if quick is None else dns.message.from_wire(quick), dns.message.from_wire(slow)


def assert_same(quick: dns.message.Message, slow: dns.message.Message, query: dns.message.Message) -> None:
    assert query.is_response(quick)
    assert quick.question[0].name.to_text() == query.question[0].name.to_text()  # with equal case
    assert (quick.flags, quick.rcode(), quick.edns, quick.payload, quick.options) == (
        slow.flags,
        slow.rcode(),
        slow.edns,
        slow.payload,
        slow.options,
    )
    assert quick.authority == slow.authority
    assert [rrset.ttl for rrset in quick.authority] == [rrset.ttl for rrset in slow.authority]
    assert quick.additional == slow.additional
    assert [(rrset.name, rrset.rdtype, rrset.ttl) for rrset in quick.answer] == [
        (rrset.name, rrset.rdtype, rrset.ttl) for rrset in slow.answer
    ]


def assert_legal(quick: dns.message.Message, slow: dns.message.Message, named: NamedJob | NamedService | None) -> None:
    """Check the fast answer against the full one. It has all addresses or, if weights differ, a valid random choice."""
    if not quick.answer:
        return
    got, expected = set(quick.answer[0]), set(slow.answer[0])
    if named is None or named.answering.even:
        assert got == expected or len(expected) >= UDP_LIMITS.addresses
        return
    addresses = {task.address for task in named.answering}
    assert {record.address for record in got} <= addresses
    weights = [task.weight for task in named.answering]
    assert 1 <= len(got) <= sum(weights) // max(weights)


def named_by(table: NameTable, name: str) -> NamedJob | NamedService | None:
    """Return the job or service that a name means, or None. The name may end in the cell."""
    labels = name.lower().removesuffix(".cc").split(".")
    if len(labels) == 3 and labels[1] == "service":
        return table.service(labels[2], labels[0])
    return table.job(labels[1], labels[0]) if len(labels) == 2 else None


PUBLISHED = st.builds(
    Published,
    ttl_s=st.sampled_from([0, 1, 3_600]),
    weights=st.sampled_from([(), ((0, 0, 5),), ((0, 1, 0), (2, 4, 3)), ((1, 9, 2),), ((0, 9, 0),)]),
)
LABELS = st.sampled_from([{}, {"service": "front"}, {"service": "back"}, {"service": "No name"}])
# Events of a cell, chosen by small numbers.
NEWS = st.one_of(
    st.builds(changed, labels=LABELS, published=PUBLISHED),
    st.builds(changed, job_id=st.just(8), labels=LABELS, published=PUBLISHED),
    st.builds(placed, st.integers(0, 2), st.integers(0, 3), job_id=st.just(8)),
    st.builds(reported, st.integers(0, 2), st.sampled_from(["up", "starting"]), job_id=st.just(8)),
    st.builds(submitted, tasks=st.just(4), labels=LABELS, published=PUBLISHED),
    st.just(events.JobEnded(job_id=8, how="killed")),
    st.just(submitted("canary", job_id=8, tasks=3, ports=("debug",), labels={"service": "front"})),
    st.builds(machine, st.integers(0, 3), st.sampled_from(["10.0.0.1", "10.9.9.9", "10.0.0.77"])),
    st.builds(placed, st.integers(0, 4), st.integers(0, 3), incarnation=st.integers(1, 3)),
    st.builds(
        reported,
        st.integers(0, 4),
        st.sampled_from(["up", "starting", "stopping"]),
        st.sampled_from(["healthy", "unhealthy"]),
        incarnation=st.integers(1, 3),
    ),
    st.builds(evicted, st.integers(0, 4), incarnation=st.integers(1, 3)),
    st.builds(ended, st.integers(0, 4), incarnation=st.integers(1, 3)),
    st.just(events.JobEnded(job_id=WEB, how="killed")),
    st.just(submitted(tasks=4)),
    st.just(events.TasksAdded(job_id=WEB, spec_version=1, groups=submitted(tasks=5).groups)),
)


@given(
    st.lists(NEWS, max_size=12),
    st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.sampled_from(["A", "AAAA", "SRV", "TXT", "SOA"]),
            st.booleans(),
            st.sampled_from([0, dns.flags.RD, dns.flags.CD, dns.flags.AD | dns.flags.RD]),
        ),
        min_size=1,
        max_size=6,
    ),
)
@settings(max_examples=examples(150), deadline=None)
def test_it_agrees_with_the_long_path_after_each_event(
    news: list[events.Event], asked: list[tuple[str, str, bool, int]]
) -> None:
    table = table_of(*in_service())
    directory = directory_of(table)
    short = short_of(directory)
    for revision, event in enumerate([None, *news], start=100):
        if event is not None:
            table.apply(event, revision)
        for name, rdtype, edns, flags in asked:
            query = query_of(name, rdtype, edns=edns, flags=flags)
            quick, slow = both(short, directory, query)
            if quick is not None:
                assert_same(quick, slow, query)
                assert_legal(quick, slow, named_by(table, name))


@pytest.mark.parametrize("name", ["0.web.ubar.cc", "web.ubar.cc", "front.service.ubar.cc"])
@pytest.mark.parametrize("rdtype", ["A", "AAAA"])
def test_addresses_take_it_at_the_first_question_and_after(name: str, rdtype: str) -> None:
    directory = directory_of(table_of(*in_service()))
    short = short_of(directory)
    for _ in range(3):
        query = query_of(name, rdtype, edns=True, flags=dns.flags.RD)
        quick, slow = both(short, directory, query)
        assert quick is not None
        assert_same(quick, slow, query)
        assert_legal(quick, slow, None)


def test_ipv6_takes_it_too() -> None:
    table = table_of(machine(0, "2001:db8::7"), submitted(tasks=1), placed(0, 0), reported(0))
    directory = directory_of(table)
    for name in ("0.web.ubar.cc", "web.ubar.cc"):
        for rdtype in ("AAAA", "A"):
            query = query_of(name, rdtype)
            quick, slow = both(short_of(directory), directory, query)
            assert quick is not None
            assert_same(quick, slow, query)


def test_each_task_of_a_job_is_answered_as_often_as_any_other() -> None:
    directory = directory_of(table_of(*running(40)))
    short = short_of(directory)
    wire = query_of("web.ubar.cc").to_wire()
    firsts: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for _ in range(40 * USES):
        got = short.answer(wire)
        assert got is not None
        addresses = [record.address for record in dns.message.from_wire(got).answer[0]]
        assert len(set(addresses)) == UDP_LIMITS.addresses
        firsts[addresses[0]] += 1
        total.update(addresses)
    assert len(firsts) == 40
    assert max(firsts.values()) < 2.2 * min(firsts.values())
    assert max(total.values()) < 1.2 * min(total.values())


@pytest.mark.parametrize("name", ["web.ubar.cc", "front.service.ubar.cc"])
def test_shares_are_as_weights(name: str) -> None:
    """Query tasks of weight 10 beside canaries of weight 1. Each must be drawn, and be first, by its weight."""
    canaries = Published(weights=((0, 9, 1),))
    published = Published(weights=((0, 11, 10),))
    table = table_of(
        *running(12),
        changed(labels={"service": "front"}, published=published),
        submitted("canary", job_id=8, tasks=4, labels={"service": "front"}, published=canaries),
        *(machine(number, f"10.9.9.{number - 50}") for number in range(50, 54)),
        *(placed(index, 50 + index, job_id=8) for index in range(4)),
        *(reported(index, job_id=8) for index in range(4)),
    )
    if name == "web.ubar.cc":  # the last two are the canaries
        table.apply(changed(published=Published(weights=((0, 9, 10), (10, 11, 1)))), 200)
        weights = {f"10.0.0.{n + 1}": 10 if n < 10 else 1 for n in range(12)}
    else:
        weights = {**{f"10.0.0.{n + 1}": 10 for n in range(12)}, **{f"10.9.9.{n}": 1 for n in range(4)}}
    total = sum(weights.values())
    short, wire = short_of(directory_of(table)), query_of(name).to_wire()
    firsts: Counter[str] = Counter()
    there: Counter[str] = Counter()
    rounds, run = 8_000, ()
    for _ in range(rounds):
        got = short.answer(wire)
        assert got is not None
        count = int.from_bytes(got[6:8])
        assert count == total // 10
        addresses = [
            socket.inet_ntoa(got[end - 4 : end]) for end in range(len(got) - 16 * (count - 1), len(got) + 1, 16)
        ]
        firsts[addresses[0]] += 1
        there.update(addresses)
        run = (*run, addresses[0]) if len(run) < count else (addresses[0],)
        assert len(set(run)) == len(run), "of one draw each is the first once"
    for address, weight in weights.items():
        assert abs(firsts[address] / rounds - weight / total) < 0.02
        assert abs(there[address] / rounds / (total // 10) - weight / total) < 0.005


def test_tasks_of_one_machine_make_one_record() -> None:
    directory = directory_of(table_of(*running(90, machines=3)))
    wire = short_of(directory).answer(query_of("web.ubar.cc").to_wire())
    assert wire is not None
    assert int.from_bytes(wire[6:8]) == 3, "the records of the packet itself: parsers drop those that are twice"
    assert len(dns.message.from_wire(wire).answer[0]) == 3


def test_an_address_that_tasks_share_is_in_an_answer_once() -> None:
    directory = directory_of(table_of(*running(60, machines=7)))
    short, wire = short_of(directory), query_of("web.ubar.cc", edns=True).to_wire()
    for _ in range(USES + 5):
        got = short.answer(wire)
        assert got is not None
        count = int.from_bytes(got[6:8])
        response = dns.message.from_wire(got)
        assert len(response.answer[0]) == count <= 7
        assert response.edns == 0


def test_each_name_is_remembered_as_long_as_its_job_says() -> None:
    table = table_of(*in_service(), changed(labels={"service": "front"}, published=Published(ttl_s=60)))
    short = short_of(directory_of(table))

    def ttl_of(name: str) -> int:
        got = short.answer(query_of(name).to_wire())
        assert got is not None
        return dns.message.from_wire(got).answer[0].ttl

    names = "0.web.ubar.cc", "web.ubar.cc", "canary.ubar.cc", "front.service.ubar.cc"
    assert [ttl_of(name) for name in names] == [60, 60, 5, 5]
    table.apply(changed(job_id=8, labels={"service": "front"}, published=Published(ttl_s=3_600)), 300)
    assert [ttl_of(name) for name in names] == [60, 60, 3_600, 60]


def test_a_table_replaced_drops_what_was_kept() -> None:
    directory = directory_of(table_of(*running(3)))
    short = short_of(directory)
    query = query_of("0.web.ubar.cc")
    both(short, directory, query)
    assert len(short) == 1
    directory.cells["cc"] = table_of(machine(0, "10.1.1.1"), submitted(), placed(0, 0), reported(0))
    directory.generation += 1
    quick, _ = both(short, directory, query)
    assert quick is not None
    assert [record.address for record in quick.answer[0]] == ["10.1.1.1"]


def test_a_cell_that_is_not_read_yet_is_the_long_paths() -> None:
    directory = directory_of(NameTable("cc"))
    directory.cells["cc"].ready = False
    assert short_of(directory).answer(query_of("web.ubar.cc").to_wire()) is None


def test_cookies_and_other_options_are_the_long_paths() -> None:
    directory = directory_of(table_of(*running(1)))
    query = dns.message.make_query(
        "web.ubar.cc.borg.internal.", "A", use_edns=0, options=[dns.edns.GenericOption(10, b"12345678")]
    )
    assert short_of(directory).answer(query.to_wire()) is None


@pytest.mark.parametrize("rdtype", ["A", "AAAA"])
@pytest.mark.parametrize("payload", [0, 512, 800, 1_232, 4_096])
def test_an_answer_is_at_most_as_large_as_the_client_accepts(rdtype: str, payload: int) -> None:
    long = "j" * 60
    six = [machine(number, f"2001:db8::{number + 1:x}") for number in range(30)]
    machines = six if rdtype == "AAAA" else [machine(number) for number in range(30)]
    tasks = [each for number in range(30) for each in (placed(number, number), reported(number))]
    directory = directory_of(table_of(*machines, submitted(long, tasks=30), *tasks))
    query = dns.message.make_query(
        f"{long}.ubar.cc.borg.internal.", rdtype, use_edns=0 if payload else -1, payload=payload
    )
    wire = query.to_wire()
    quick, slow = short_of(directory).answer(wire), answer(wire, directory, via="udp", rng=Random(1))
    assert quick is not None
    assert slow is not None
    room = max(512, min(payload, 1_232))
    for got in (quick, slow):
        message = dns.message.from_wire(got)
        assert len(got) <= room
        assert not message.flags & dns.flags.TC
        assert 10 < len(message.answer[0]) <= UDP_LIMITS.addresses
    if payload not in range(513, 1_232):
        assert len(quick) == len(slow)


def test_what_is_kept_is_bounded_by_octets_however_a_question_is_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("naming.dns.prepared_answers.MOST_OCTETS", 20_000)
    directory = directory_of(table_of(*running(3)))
    short = short_of(directory)
    short.answer(query_of("0.web.ubar.cc").to_wire())
    wire = query_of("web.ubar.cc", edns=True).to_wire()
    sizes = set()
    for flags in range(300):
        assert short.answer(wire[:-4] + flags.to_bytes(2) + wire[-2:]) is not None
        sizes.add(len(short))
    assert max(sizes) < 50
    short.answer(query_of("0.web.ubar.cc").to_wire())
    assert min(sizes) > 1  # the kept answers of tasks stay


@given(st.binary(max_size=80), st.integers(0, 60), st.binary(max_size=4))
@settings(max_examples=examples(500), deadline=None)
def test_no_bytes_break_it(noise: bytes, at: int, patch: bytes) -> None:
    directory = directory_of(table_of(*running(2)))
    short = short_of(directory)
    short.answer(noise)
    wire = query_of("1.web.ubar.cc", edns=True).to_wire()
    damaged = wire[:at] + patch + wire[at + len(patch) :]
    for query in (damaged, wire[:at], wire + noise):
        got = short.answer(query)
        if got is not None:
            assert got[:2] == query[:2]
            slow = answer(query, directory, via="udp", rng=Random(1))
            assert slow is not None
            assert dns.message.from_wire(got).rcode() == dns.message.from_wire(slow).rcode()


def test_the_answer_echoes_a_request_for_signatures() -> None:
    """Query with the flag DO, which asks for DNSSEC signatures. The answer must repeat it (RFC 3225 §3)."""
    short = short_of(directory_of(table_of(*running(3))))
    for name in ("web.ubar.cc", "1.web.ubar.cc", "none.ubar.cc"):
        query = dns.message.make_query(f"{name}.borg.internal.", "A", use_edns=0)
        for flags in (dns.flags.DO, 0, dns.flags.DO):
            query.ednsflags = flags
            wire = short.answer(query.to_wire())
            assert wire is not None
            assert dns.message.from_wire(wire).ednsflags == flags
