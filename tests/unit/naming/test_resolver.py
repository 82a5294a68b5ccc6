"""Tests of the resolver with queries as real clients send them. dnspython parses every answer."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import dns.rdtypes.ANY.TSIG
import dns.tsig
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from naming.dns.protocol.cookies import DnsClient
from naming.dns.resolver import UDP_PAYLOAD
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.zone_settings import read_reverse
from naming.table.names import JobName
from naming.table.reverse import apexes
from naming.table.table import NameTable
from scheduling.core.vocabulary import events
from tests.examples import examples
from tests.unit.naming.cells import (
    WEB,
    answer,
    ask,
    ask_wire,
    directory_of,
    evicted,
    machine,
    placed,
    reported,
    running,
    submitted,
    table_of,
    texts,
)

JOB, TASK = "web.ubar.cc", "1.web.ubar.cc"


@pytest.fixture
def directory() -> ZoneDirectory:
    return directory_of(table_of(*running(3)))


def negative(response: dns.message.Message, apex: str = "cc.borg.internal.") -> bool:
    """Return whether a response is empty, authoritative, and has the SOA that limits its caching (RFC 2308)."""
    (soa,) = response.authority
    return (
        not response.answer
        and bool(response.flags & dns.flags.AA)
        and soa.rdtype == dns.rdatatype.SOA
        and soa.name.to_text() == apex
        and soa.ttl == soa[0].minimum == 5
    )


def test_a_task_with_an_address_of_its_own_answers_with_that() -> None:
    directory = directory_of(table_of(*running(2), reported(1, address="10.20.30.4")))
    assert texts(ask(directory, TASK)) == ["10.20.30.4"]
    assert sorted(texts(ask(directory, JOB))) == ["10.0.0.1", "10.20.30.4"]
    response = ask(directory, f"_http._tcp.{TASK}", "SRV")
    assert "10.20.30.4" in response.to_text()


def test_a_task_may_be_of_another_family_than_its_machine() -> None:
    directory = directory_of(table_of(*running(2), reported(1, address="fd00::4")))
    assert texts(ask(directory, TASK, "AAAA")) == ["fd00::4"]
    assert texts(ask(directory, TASK)) == []
    assert texts(ask(directory, JOB, "AAAA")) == ["fd00::4"]
    assert texts(ask(directory, JOB)) == ["10.0.0.1"]


def test_a_task_answers_with_its_machine(directory: ZoneDirectory) -> None:
    response = ask(directory, TASK)
    assert texts(response) == ["10.0.0.2"]
    assert response.answer[0].ttl == 5
    assert response.flags & dns.flags.AA
    assert response.rcode() == dns.rcode.NOERROR


def test_a_job_answers_with_all_healthy_tasks_shuffled(directory: ZoneDirectory) -> None:
    answers = [tuple(texts(ask(directory, JOB, seed=seed))) for seed in range(30)]
    assert {tuple(sorted(addresses)) for addresses in answers} == {("10.0.0.1", "10.0.0.2", "10.0.0.3")}
    assert len(set(answers)) == 6


def test_an_unhealthy_task_leaves_the_jobs_name_and_keeps_its_own(directory: ZoneDirectory) -> None:
    directory.cells["cc"].apply(reported(1, health="unhealthy"), 99)
    assert sorted(texts(ask(directory, JOB))) == ["10.0.0.1", "10.0.0.3"]
    assert texts(ask(directory, TASK)) == ["10.0.0.2"]


def test_a_job_that_fails_open_says_so(directory: ZoneDirectory) -> None:
    assert '"fail-open=no"' in texts(ask(directory, JOB, "TXT"))[0]
    for index in range(3):
        directory.cells["cc"].apply(reported(index, health="unhealthy"), 99)
    assert len(texts(ask(directory, JOB))) == 3
    assert '"serving=0" "fail-open=yes"' in texts(ask(directory, JOB, "TXT"))[0]


def test_the_case_of_the_question_is_kept(directory: ZoneDirectory) -> None:
    response = ask(directory, "1.WeB.uBAr.CC.bOrG.inTERnal.")
    assert response.question[0].name.to_text() == "1.WeB.uBAr.CC.bOrG.inTERnal."
    assert response.answer[0].name.to_text() == "1.WeB.uBAr.CC.bOrG.inTERnal."


@pytest.mark.parametrize(
    "question, ports",
    [
        ("_http._tcp.web.ubar.cc", {20_000, 20_001, 20_002}),
        ("_rpc._tcp.web.ubar.cc", {21_000, 21_001, 21_002}),
        ("web.ubar.cc", {20_000, 20_001, 20_002, 21_000, 21_001, 21_002}),
        ("_http._tcp.1.web.ubar.cc", {20_001}),
        ("1.web.ubar.cc", {20_001, 21_001}),
    ],
)
def test_srv_gives_ports_with_the_targets_addresses_beside(
    directory: ZoneDirectory, question: str, ports: set[int]
) -> None:
    response = ask(directory, question, "SRV")
    assert {rdata.port for rdata in response.answer[0]} == ports
    addresses = {rrset.name: rrset[0].address for rrset in response.additional}
    for rdata in response.answer[0]:
        assert addresses[rdata.target] == f"10.0.0.{rdata.port % 1000 + 1}"
        assert texts(ask(directory, rdata.target.to_text())) == [addresses[rdata.target]]


def test_a_machine_has_a_name(directory: ZoneDirectory) -> None:
    assert texts(ask(directory, "m2.machine.cc")) == ["10.0.0.3"]


def test_ipv6_machines_answer_aaaa_beside_ipv4_ones(directory: ZoneDirectory) -> None:
    directory.cells["cc"].apply(machine(1, "2001:db8::1"), 99)
    assert texts(ask(directory, TASK, "AAAA")) == ["2001:db8::1"]
    assert negative(ask(directory, TASK, "A"))
    assert texts(ask(directory, JOB, "AAAA")) == ["2001:db8::1"]
    assert sorted(texts(ask(directory, JOB, "A"))) == ["10.0.0.1", "10.0.0.3"]
    targets = {rrset.rdtype for rrset in ask(directory, JOB, "SRV").additional}
    assert targets == {dns.rdatatype.A, dns.rdatatype.AAAA}


@pytest.mark.parametrize(
    "name",
    [
        "3.web.ubar.cc",
        "01.web.ubar.cc",
        "x.web.ubar.cc",
        "nope.ubar.cc",
        "0.nope.ubar.cc",
        "web.nobody.cc",
        "x.m1.machine.cc",
        "_nope._tcp.web.ubar.cc",
        "_http._udp.web.ubar.cc",
        "_http.web.ubar.cc",
        "1.1.web.ubar.cc",
        "a._http._tcp.web.ubar.cc",
        "http._tcp.web.ubar.cc",
        "1._tcp.web.ubar.cc",
        "m9.machine.cc",
    ],
)
@pytest.mark.parametrize("rdtype", ["A", "SRV", "TXT", "ANY"])
def test_what_has_no_name_is_nxdomain(directory: ZoneDirectory, name: str, rdtype: str) -> None:
    response = ask(directory, name, rdtype)
    assert response.rcode() == dns.rcode.NXDOMAIN
    assert negative(response)


@pytest.mark.parametrize(
    "name, rdtype",
    [
        ("1.web.ubar.cc", "AAAA"),
        ("web.ubar.cc", "MX"),
        ("ubar.cc", "A"),
        ("machine.cc", "A"),
        ("_tcp.web.ubar.cc", "SRV"),
        ("_tcp.1.web.ubar.cc", "SRV"),
        ("_http._tcp.web.ubar.cc", "A"),
        ("cc", "A"),
        ("m1.machine.cc", "TXT"),
    ],
)
def test_a_name_without_such_records_is_nodata(directory: ZoneDirectory, name: str, rdtype: str) -> None:
    response = ask(directory, name, rdtype)
    assert response.rcode() == dns.rcode.NOERROR
    assert negative(response)


def test_a_pending_task_has_a_name_and_no_address(directory: ZoneDirectory) -> None:
    directory.cells["cc"].apply(evicted(1), 99)
    assert negative(ask(directory, TASK))
    assert negative(ask(directory, TASK, "SRV"))
    assert texts(ask(directory, TASK, "TXT")) == ['"placed=no"']


def test_an_unknown_cell_is_nxdomain_of_the_parent(directory: ZoneDirectory) -> None:
    response = ask(directory, "web.ubar.zz")
    assert response.rcode() == dns.rcode.NXDOMAIN
    assert negative(response, "borg.internal.")


def test_what_is_not_loaded_yet_is_servfail_not_nxdomain() -> None:
    empty = ZoneDirectory(zone="borg.internal")
    assert ask(empty, JOB).rcode() == dns.rcode.SERVFAIL
    empty.loaded = True
    empty.cells["cc"] = NameTable("cc")
    assert ask(empty, JOB).rcode() == dns.rcode.SERVFAIL
    assert ask(empty, "web.ubar.zz").rcode() == dns.rcode.NXDOMAIN
    assert '"status=loading"' in texts(ask(empty, "health", "TXT"))[0]


def test_the_apex_of_a_cell_has_soa_ns_and_its_revision(directory: ZoneDirectory) -> None:
    table = directory.cells["cc"]
    table.apply(events.LeaseTaken(scheduler="default", holder="w", epoch=1), 40)
    (soa,) = ask(directory, "cc", "SOA").answer[0]
    assert soa.serial == table.serial == table.names_revision < 40
    (server,) = ask(directory, "cc", "NS").answer[0]
    assert texts(ask(directory, server.target.to_text())) == ["192.0.2.53"]
    assert f'"serial={soa.serial}" "revision=40"' in texts(ask(directory, "cc", "TXT"))[0]


@pytest.mark.parametrize("name", ["example.org.", "internal.", ".", "xborg.internal.", "1.0.0.127.in-addr.arpa."])
def test_other_peoples_names_are_refused(directory: ZoneDirectory, name: str) -> None:
    response = ask(directory, name)
    assert response.rcode() == dns.rcode.REFUSED
    assert not response.flags & dns.flags.AA
    assert not response.answer + response.authority + response.additional


def test_any_gets_one_small_record(directory: ZoneDirectory) -> None:
    assert texts(ask(directory, JOB, "ANY")) == ['"RFC8482" ""']


@pytest.mark.parametrize(
    "rdtype, rcode",
    [("AXFR", dns.rcode.REFUSED), ("IXFR", dns.rcode.REFUSED), ("TKEY", dns.rcode.NOTIMP), ("OPT", dns.rcode.FORMERR)],
)
def test_types_that_are_not_records_are_not_answered(directory: ZoneDirectory, rdtype: str, rcode: int) -> None:
    query = dns.message.make_query("cc.borg.internal.", "A")
    query.question[0].rdtype = dns.rdatatype.from_text(rdtype)
    wire = answer(query.to_wire(), directory, via="tcp", rng=Random(1))
    assert wire is not None
    assert wire[3] & 15 == rcode


def test_other_classes_are_refused(directory: ZoneDirectory) -> None:
    assert ask_wire(directory, dns.message.make_query("cc.borg.internal.", "TXT", "CH")).rcode() == dns.rcode.REFUSED


@pytest.mark.parametrize("opcode", [1, 2, 3, 4, 5, 6, 15])
def test_opcodes_other_than_query_are_not_implemented(directory: ZoneDirectory, opcode: int) -> None:
    query = struct.pack("!HHHHHH", 77, opcode << 11 | dns.flags.RD, 1, 0, 0, 0) + b"\x02cc\x00\x00\x01\x00\x01"
    wire = answer(query, directory, via="udp", rng=Random(1))
    assert wire == struct.pack("!HHHHHH", 77, dns.flags.QR | opcode << 11 | dns.flags.RD | dns.rcode.NOTIMP, 0, 0, 0, 0)


def test_responses_and_fragments_are_dropped(directory: ZoneDirectory) -> None:
    query = dns.message.make_query("cc.borg.internal.", "SOA")
    query.flags |= dns.flags.QR
    assert answer(query.to_wire(), directory, via="udp", rng=Random(1)) is None
    assert answer(b"\x00" * 11, directory, via="udp", rng=Random(1)) is None
    assert answer(b"", directory, via="udp", rng=Random(1)) is None


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((0, b""), id="no question"),
        pytest.param((2, b"\x02cc\x00\x00\x01\x00\x01" * 2), id="two questions"),
        pytest.param((1, b"\xc0\x0c\x00\x01\x00\x01"), id="a loop of compression"),
        pytest.param((1, b"\x02c"), id="cut short"),
        pytest.param((1, b"\x02cc\x00\x00\x01\x00\x01junk"), id="trailing bytes"),
        pytest.param((1, b"\x3fa" * 40), id="labels that overrun"),
        pytest.param((1, (b"\x01a" * 200) + b"\x00\x00\x01\x00\x01"), id="a name too long"),
        pytest.param((1, b"\x02cc\x00\x00\x01\x00\x01" + b"\x00" * 60_000), id="64 KiB"),
    ],
)
def test_malformed_questions_get_a_bare_formerr(directory: ZoneDirectory, body: tuple[int, bytes]) -> None:
    wire = answer(struct.pack("!HHHHHH", 5, 0, body[0], 0, 0, 0) + body[1], directory, via="udp", rng=Random(1))
    assert wire == struct.pack("!HHHHHH", 5, dns.flags.QR | dns.rcode.FORMERR, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "algorithm", "secret", "told"),
    [
        ("other.", "hmac-sha256", b"secret", dns.tsig.PeerBadKey),
        ("key.", "hmac-sha512", b"secret", dns.tsig.PeerBadKey),
        ("key.", "hmac-sha256", b"guessed", dns.tsig.PeerBadSignature),
    ],
)
def test_a_client_with_a_wrong_signature_gets_the_reason(
    directory: ZoneDirectory, name: str, algorithm: str, secret: bytes, told: type[Exception]
) -> None:
    ours, theirs = dns.tsig.Key("key.", b"secret", "hmac-sha256"), dns.tsig.Key(name, secret, algorithm)
    directory.keyring = {ours.name: ours}
    query = dns.message.make_query("cc.borg.internal.", "SOA")
    query.use_tsig(theirs)
    asked = query.to_wire()
    wire = answer(asked, directory, via="tcp", rng=Random(1))
    assert wire is not None
    assert len(wire) <= len(asked)
    with pytest.raises(told):
        dns.message.from_wire(wire, keyring=theirs, request_mac=query.mac)
    plain = dns.message.from_wire(wire, keyring=False)  # type: ignore[arg-type]
    assert (plain.rcode(), query.is_response(plain), plain.tsig[0].mac) == (dns.rcode.NOTAUTH, True, b"")


def test_a_client_with_a_wrong_clock_gets_the_time_signed(directory: ZoneDirectory) -> None:
    key, now = dns.tsig.Key("key.", b"secret", "hmac-sha256"), 1_800_000_000
    directory.keyring = {key.name: key}
    query = dns.message.make_query("cc.borg.internal.", "SOA")
    plain = query.to_wire()
    signed: Any = dns.rdtypes.ANY.TSIG.TSIG(255, 250, key.algorithm, 1_000, 300, b"", query.id, 0, b"")  # type: ignore
    signed, _ = dns.tsig.sign(plain, key, signed, 1_000)  # type: ignore[no-untyped-call]
    data = signed.to_wire()
    asked = plain[:11] + b"\1" + plain[12:] + key.name.to_wire() + struct.pack("!HHIH", 250, 255, 0, len(data)) + data
    wire = answer(asked, directory, via="udp", rng=Random(1), client=DnsClient(b"\x7f\0\0\1", now))
    assert wire is not None
    told = dns.message.from_wire(wire, keyring=False).tsig[0]  # type: ignore[arg-type,index]
    assert (told.error, int.from_bytes(told.other), told.time_signed) == (dns.rcode.BADTIME, now, 1_000)
    unsigned = wire[:11] + b"\0" + wire[12 : len(plain)]
    again, _ = dns.tsig.sign(unsigned, key, told, 1_000, signed.mac)  # type: ignore[no-untyped-call]
    assert again.mac == told.mac


def test_edns_is_answered_in_kind_and_later_versions_refused(directory: ZoneDirectory) -> None:
    plain = ask(directory, TASK, use_edns=False)
    assert plain.edns == -1
    response = ask(directory, TASK, use_edns=0, payload=4096)
    assert (response.edns, response.payload) == (0, UDP_PAYLOAD)
    assert ask(directory, TASK, use_edns=1).rcode() == dns.rcode.BADVERS
    for rdtype in ("A", "SRV", "MX"):
        wanting = ask(directory, TASK, rdtype, want_dnssec=True)
        assert (wanting.ednsflags, ask(directory, TASK, rdtype, use_edns=0).ednsflags) == (dns.flags.DO, 0)


def test_a_large_job_answers_a_bounded_sample_over_udp() -> None:
    directory = directory_of(table_of(*running(2_000)))
    response = ask(directory, JOB, use_edns=False)
    assert len(response.answer[0]) == 24
    assert not response.flags & dns.flags.TC
    seen = {text for seed in range(50) for text in texts(ask(directory, JOB, seed=seed))}
    assert len(seen) > 500
    assert len(ask(directory, JOB, via="tcp").answer[0]) == 1_000


@pytest.mark.parametrize(
    "query, room", [({"use_edns": False}, 512), ({"payload": 4096}, 1232), ({"payload": 100}, 512)]
)
@pytest.mark.parametrize("rdtype", ["A", "SRV", "TXT"])
@pytest.mark.parametrize("tasks", [1, 8, 12, 20, 30, 2_000])
def test_datagrams_keep_their_size_and_say_when_they_are_cut(query: dict, room: int, rdtype: str, tasks: int) -> None:
    directory = directory_of(table_of(*running(tasks)))
    question = dns.message.make_query("web.ubar.cc.borg.internal.", rdtype, **query)
    wire = answer(question.to_wire(), directory, via="udp", rng=Random(1))
    assert wire is not None
    assert len(wire) <= room
    response = dns.message.from_wire(wire)
    whole = ask_wire(directory, question, via="tcp")
    if rdtype == "SRV":
        cut = bool(response.flags & dns.flags.TC)
        assert cut == (not response.answer)
        assert cut or set(response.answer[0]) == set(whole.answer[0])
    else:
        assert response.answer
        assert not response.flags & dns.flags.TC
    assert not whole.flags & dns.flags.TC


def test_the_widest_names_still_fit_a_stream() -> None:
    name = JobName("c" * 63, "t" * 63, "j" * 63)
    table = NameTable(name.cell)
    many = [machine(0), submitted(name.job, tenant=name.tenant, tasks=3_000), *(placed(i, 0) for i in range(3_000))]
    for event in many:
        table.apply(event, 1)
    table.ready = True
    directory = directory_of(table)
    directory.zone, directory.labels = "z" * 50, (b"z" * 50,)
    response = ask(directory, name.dns(directory.zone) + ".", "SRV", via="tcp")
    assert not response.flags & dns.flags.TC
    assert len(response.answer[0]) > 180
    assert ask(directory, name.dns(directory.zone) + ".", "SRV").flags & dns.flags.TC


FUZZED = directory_of(table_of(*running(3)))
FUZZED.reverse_apexes = apexes(read_reverse(["10.0.0.0/8"]))
HEADER = struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0)


@given(st.binary(max_size=600), st.sampled_from(["udp", "tcp"]))
@example(HEADER + b"\xff" * 40, "udp")
@settings(max_examples=examples(1_500), deadline=None)
def test_no_bytes_raise(query: bytes, via) -> None:
    wire = answer(query, FUZZED, via=via, rng=Random(0))
    assert wire is None or dns.message.from_wire(wire, ignore_trailing=False).flags & dns.flags.QR


@given(st.data())
@settings(max_examples=examples(1_500), deadline=None)
def test_no_damage_to_a_real_question_raises(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["web.ubar.cc", "1.web.ubar.cc", "_http._tcp.web.ubar.cc", "cc", "health", ""]))
    rdtype = data.draw(st.sampled_from(["A", "SRV", "TXT", "SOA", "PTR", "ANY", "IXFR"]))
    full = f"{name}.borg.internal." if name else "1.0.0.10.in-addr.arpa."
    query = bytearray(dns.message.make_query(full, rdtype, use_edns=0, payload=4096).to_wire())
    for _ in range(data.draw(st.integers(1, 6))):
        query[data.draw(st.integers(0, len(query) - 1))] = data.draw(st.integers(0, 255))
    wire = answer(bytes(query[: data.draw(st.integers(0, len(query)))]), FUZZED, via="udp", rng=Random(0))
    assert wire is None or len(wire) <= UDP_PAYLOAD


def test_every_label_of_a_stranger_is_just_a_name_we_do_not_have() -> None:
    for label in (b"\x00", b"\xff" * 63, b"a.b", b"*", b"\\", b"1\n"):
        name = dns.name.Name((label, b"web", b"ubar", b"cc", b"borg", b"internal", b""))
        assert ask_wire(FUZZED, dns.message.make_query(name, "A")).rcode() == dns.rcode.NXDOMAIN


def test_the_job_a_name_was_used_for_before_is_not_answered() -> None:
    table = table_of(*running(2), events.JobEnded(job_id=WEB, how="killed"), submitted(job_id=8, tasks=2))
    assert negative(ask(directory_of(table), JOB))
