"""The short path says what the long path says, or nothing; and never what was true before the last event."""

from __future__ import annotations

from collections import Counter
from random import Random

import dns.edns
import dns.flags
import dns.message
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naming.directory import Directory
from naming.resolver import UDP_LIMITS, answer
from naming.shortpath import USES, ShortPath
from naming.table import NameTable
from scheduling.core import events
from tests.unit.naming.cells import (
    WEB,
    directory_of,
    ended,
    evicted,
    machine,
    placed,
    reported,
    running,
    submitted,
    table_of,
)

NAMES = (
    "web.ubar.cc", "WEB.Ubar.cc", "0.web.ubar.cc", "1.web.ubar.cc", "7.web.ubar.cc", "01.web.ubar.cc",
    "other.ubar.cc", "web.nobody.cc", "ubar.cc", "cc", "web.ubar.dd", "_http._tcp.web.ubar.cc", "m0.machine.cc",
    "x.1.web.ubar.cc", "_tcp.web.ubar.cc", "w\\200b.ubar.cc",
)  # fmt: skip


def query_of(name: str, rdtype: str = "A", *, edns: bool = False, flags: int = 0) -> dns.message.Message:
    message = dns.message.make_query(f"{name}.borg.internal.", rdtype, use_edns=0 if edns else -1)
    message.flags = (message.flags & ~dns.flags.RD) | flags
    return message


def short_of(directory: Directory) -> ShortPath:
    return ShortPath(directory, Random(1))


def both(
    short: ShortPath, directory: Directory, query: dns.message.Message
) -> tuple[dns.message.Message | None, dns.message.Message]:
    wire = query.to_wire()
    quick, slow = short.answer(wire), answer(wire, directory, via="udp", rng=Random(1))
    assert slow is not None
    return None if quick is None else dns.message.from_wire(quick), dns.message.from_wire(slow)


def assert_same(quick: dns.message.Message, slow: dns.message.Message, query: dns.message.Message) -> None:
    assert query.is_response(quick)
    assert quick.question[0].name.to_text() == query.question[0].name.to_text()  # case and all
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
    assert [(rrset.name, rrset.rdtype, rrset.ttl, len(rrset)) for rrset in quick.answer] == [
        (rrset.name, rrset.rdtype, rrset.ttl, len(rrset)) for rrset in slow.answer
    ]
    if quick.answer and len(quick.answer[0]) < UDP_LIMITS.addresses:
        assert set(quick.answer[0]) == set(slow.answer[0])


# What may happen to a cell, by small numbers.
NEWS = st.one_of(
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
            st.sampled_from(NAMES), st.sampled_from(["A", "AAAA", "SRV", "TXT", "SOA"]), st.booleans(),
            st.sampled_from([0, dns.flags.RD, dns.flags.CD, dns.flags.AD | dns.flags.RD]),
        ),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_it_agrees_with_the_long_path_after_each_event(
    news: list[events.Event], asked: list[tuple[str, str, bool, int]]
) -> None:
    table = table_of(*running(3))
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


@pytest.mark.parametrize("name", ["0.web.ubar.cc", "web.ubar.cc"])
@pytest.mark.parametrize("rdtype", ["A", "AAAA"])
def test_addresses_take_it_at_the_first_question_and_after(name: str, rdtype: str) -> None:
    directory = directory_of(table_of(*running(3)))
    short = short_of(directory)
    for _ in range(3):
        query = query_of(name, rdtype, edns=True, flags=dns.flags.RD)
        quick, slow = both(short, directory, query)
        assert quick is not None
        assert_same(quick, slow, query)


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


def test_tasks_of_one_machine_make_one_record() -> None:
    directory = directory_of(table_of(*running(90, machines=3)))
    wire = short_of(directory).answer(query_of("web.ubar.cc").to_wire())
    assert wire is not None
    assert int.from_bytes(wire[6:8]) == 3, (
        "the records of the packet itself: parsers drop those that are twice"
    )
    assert len(dns.message.from_wire(wire).answer[0]) == 3


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


@given(st.binary(max_size=80), st.integers(0, 60), st.binary(max_size=4))
@settings(max_examples=500, deadline=None)
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
