"""Tests of answers for services, which join several jobs, of times to live, and of records at a zone's apex."""

from __future__ import annotations

from collections import Counter
from random import Random

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.tsig
import pytest

from naming.dns.resolver import Transport, answering
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.srv_answers import STEP
from naming.dns.zones.zone_settings import read_caa
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from tests.unit.naming.cells import (
    answer,
    ask,
    ask_wire,
    changed,
    directory_of,
    evicted,
    in_service,
    machine,
    placed,
    reported,
    running,
    submitted,
    table_of,
    texts,
)
from tests.unit.naming.test_resolver import negative

FRONT = "front.service.ubar.cc"


@pytest.fixture
def directory() -> ZoneDirectory:
    return directory_of(table_of(*in_service()))


def weights_of(response: dns.message.Message) -> dict[str, int]:
    return {str(rdata.target).removesuffix(".ubar.cc.borg.internal."): rdata.weight for rdata in response.answer[0]}


def test_a_service_answers_with_the_tasks_of_all_its_jobs(directory: ZoneDirectory) -> None:
    assert sorted(texts(ask(directory, FRONT))) == [f"10.0.0.{n}" for n in range(1, 6)]
    assert negative(ask(directory, FRONT, "AAAA"))
    assert '"jobs=2" "tasks=5" "placed=5" "serving=5" "fail-open=no"' in texts(ask(directory, FRONT, "TXT"))[0]


def test_srv_of_a_service_is_by_port_over_all_its_jobs(directory: ZoneDirectory) -> None:
    http = ask(directory, f"_http._tcp.{FRONT}", "SRV")
    assert set(weights_of(http)) == {"0.web", "1.web", "2.web", "0.canary", "1.canary"}
    addresses = {str(rrset.name): rrset[0].address for rrset in http.additional}
    assert addresses["1.canary.ubar.cc.borg.internal."] == "10.0.0.5"
    assert set(weights_of(ask(directory, f"_debug._tcp.{FRONT}", "SRV"))) == {"0.canary", "1.canary"}
    assert set(weights_of(ask(directory, f"_rpc._tcp.{FRONT}", "SRV"))) == {"0.web", "1.web", "2.web"}
    assert len(ask(directory, FRONT, "SRV", via="tcp").answer[0]) == 10


@pytest.mark.parametrize("name", ["service.ubar.cc", f"_tcp.{FRONT}", f"_http._tcp.{FRONT}"])
def test_what_lies_between_exists_and_holds_nothing(directory: ZoneDirectory, name: str) -> None:
    response = ask(directory, name)
    assert response.rcode() == dns.rcode.NOERROR
    assert negative(response)


@pytest.mark.parametrize(
    "name",
    [
        "back.service.ubar.cc",
        f"0.{FRONT}",
        f"x.{FRONT}",
        f"_nope._tcp.{FRONT}",
        f"_http._udp.{FRONT}",
        "0.service.ubar.cc",
        "_http._tcp.service.ubar.cc",
        "front.service.nobody.cc",
        "service.nobody.cc",
        "front.service.machine.cc",
    ],
)
def test_input_that_is_not_a_service_is_nxdomain(directory: ZoneDirectory, name: str) -> None:
    response = ask(directory, name)
    assert response.rcode() == dns.rcode.NXDOMAIN
    assert negative(response)


def test_without_services_nothing_is_called_service() -> None:
    directory = directory_of(table_of(*running(1)))
    assert ask(directory, "service.ubar.cc").rcode() == dns.rcode.NXDOMAIN


def test_a_job_called_service_from_before_keeps_its_names() -> None:
    old = [submitted("service", job_id=9, tasks=1), placed(0, 0, job_id=9), reported(0, job_id=9)]
    directory = directory_of(table_of(*in_service(), *old))
    assert texts(ask(directory, "service.ubar.cc")) == texts(ask(directory, "0.service.ubar.cc")) == ["10.0.0.1"]
    assert len(texts(ask(directory, FRONT))) == 5


def test_a_service_fails_open_as_a_whole_and_says_so(directory: ZoneDirectory) -> None:
    table = directory.cells["cc"]
    for index in range(3):
        table.apply(reported(index, health="unhealthy"), 100 + index)
    assert sorted(texts(ask(directory, FRONT))) == ["10.0.0.4", "10.0.0.5"]
    assert len(texts(ask(directory, "web.ubar.cc"))) == 3  # the job has no other tasks, so its name fails open
    for index in range(2):
        table.apply(reported(index, "starting", job_id=8), 110 + index)
    assert len(texts(ask(directory, FRONT))) == 5
    assert '"serving=0" "fail-open=yes"' in texts(ask(directory, FRONT, "TXT"))[0]
    for index in range(3):
        table.apply(evicted(index), 120 + index)
    assert sorted(texts(ask(directory, FRONT))) == ["10.0.0.4", "10.0.0.5"]


def test_srv_tells_weights_and_addresses_are_chosen_by_them(directory: ZoneDirectory) -> None:
    table = directory.cells["cc"]
    table.apply(changed(labels={"service": "front"}, published=Published(weights=((0, 1, 40), (2, 2, 0)))), 100)
    told = weights_of(ask(directory, f"_http._tcp.{FRONT}", "SRV"))
    assert told == {"0.web": 40, "1.web": 40, "0.canary": 1, "1.canary": 1}
    seen = Counter(texts(ask(directory, FRONT, seed=seed))[0] for seed in range(400))
    assert seen["10.0.0.3"] == 0
    assert seen["10.0.0.4"] + seen["10.0.0.5"] < 40
    assert min(seen["10.0.0.1"], seen["10.0.0.2"]) > 120
    assert '"weight=40" "ttl=5"' in texts(ask(directory, "0.web.ubar.cc", "TXT"))[0]
    assert texts(ask(directory, "2.web.ubar.cc")) == ["10.0.0.3"]  # the task's own name is not affected


def test_families_are_distinguished_before_weights_choose(directory: ZoneDirectory) -> None:
    table = directory.cells["cc"]
    table.apply(changed(labels={"service": "front"}, published=Published(weights=((0, 0, 90),))), 100)
    table.apply(reported(0, address="fd00::1"), 101)
    assert texts(ask(directory, FRONT, "AAAA")) == ["fd00::1"]
    assert sorted(texts(ask(directory, FRONT))) == [f"10.0.0.{n}" for n in range(2, 6)]


def test_a_name_lasts_as_long_as_its_job_says(directory: ZoneDirectory) -> None:
    table = directory.cells["cc"]
    table.apply(changed(labels={"service": "front"}, published=Published(ttl_s=60)), 100)

    def ttls(name: str, rdtype: str) -> set[int]:
        response = ask(directory, name, rdtype)
        return {rrset.ttl for rrset in (*response.answer, *response.additional)}

    for name in ("web.ubar.cc", "1.web.ubar.cc", "_http._tcp.web.ubar.cc", "_http._tcp.1.web.ubar.cc"):
        for rdtype in ("A", "SRV", "TXT"):
            assert ttls(name, rdtype) <= {60}
    assert ttls(FRONT, "A") == {5}  # the shorter of the two
    assert ttls(f"_rpc._tcp.{FRONT}", "SRV") == {5, 60}
    table.apply(changed(job_id=8, labels={"service": "front"}, published=Published(ttl_s=30)), 101)
    assert ttls(FRONT, "A") == {30}
    assert ttls("m0.machine.cc", "A") == {5}
    assert negative(ask(directory, "web.ubar.cc", "AAAA"))


@pytest.mark.parametrize("name, rdtype", [("cc", "SOA"), ("nope.cc", "A"), ("borg.internal.", "SOA"), ("zz", "A")])
def test_no_is_remembered_as_long_as_the_soa_says_itself(name: str, rdtype: str) -> None:
    """Query SOA records and missing names. The SOA's TTL must equal its minimum.

    A resolver caches a negative answer for the smaller of the two (RFC 2308 §3).
    """
    directory = directory_of(table_of(*running(1)))
    directory.ttl_s, directory.negative_ttl_s = 3, 7
    response = ask(directory, name, rdtype)
    (soa,) = response.answer or response.authority
    assert (soa.ttl, soa[0].minimum) == (7, 7)


@pytest.mark.parametrize("name", ["borg.internal.", "cc"])
def test_apexes_say_who_may_issue_certificates(directory: ZoneDirectory, name: str) -> None:
    assert negative(ask(directory, name, "CAA"), "borg.internal." if name != "cc" else "cc.borg.internal.")
    directory.caa = read_caa('0 issue "ca.example"; 0 iodef "mailto:sre@example.org"')
    assert set(texts(ask(directory, name, "CAA"))) == {'0 issue "ca.example"', '0 iodef "mailto:sre@example.org"'}
    assert negative(ask(directory, "web.ubar.cc", "CAA"))  # authorities search up to the apex (RFC 8659 §3)


def test_the_apex_of_the_parent_zone(directory: ZoneDirectory) -> None:
    directory.serial = 12
    (soa,) = ask(directory, "borg.internal.", "SOA").answer[0]
    assert (str(soa.mname), str(soa.rname), soa.serial) == ("ns.borg.internal.", "hostmaster.borg.internal.", 12)
    assert texts(ask(directory, "borg.internal.", "NS")) == ["ns.borg.internal."]
    assert texts(ask(directory, "borg.internal.", "TXT")) == ['"cells=1"']
    assert negative(ask(directory, "borg.internal.", "A"), "borg.internal.")
    assert texts(ask(directory, "ns")) == ["192.0.2.53"]


@pytest.mark.parametrize("via", ["udp", "tcp"])
def test_a_service_of_jobs_with_the_widest_names_is_whole_or_cut(via) -> None:
    """Query a service of 1,200 tasks whose jobs have short and long names. The answer is complete or truncated."""
    wide = [
        submitted(name, job_id=number, tasks=600, labels={"service": "front"}, ports=("http",))
        for number, name in ((20, "j"), (21, "w" * 63))
    ]
    tasks = [placed(index, 0, job_id=number, ports=(index + 1,)) for number in (20, 21) for index in range(600)]
    directory = directory_of(table_of(*in_service("other"), *wide, *tasks))
    response = ask(directory, f"_http._tcp.{FRONT}", "SRV", via=via)
    cut = bool(response.flags & dns.flags.TC)
    assert cut == (via == "udp")
    assert bool(response.answer) == (not cut)
    if not cut:
        assert len(response.answer[0]) > 300


def test_jobs_that_end_take_their_service_along(directory: ZoneDirectory) -> None:
    table = directory.cells["cc"]
    table.apply(events.JobEnded(job_id=8, how="killed"), 100)
    assert len(texts(ask(directory, FRONT))) == 3
    table.apply(changed(labels={"service": "back"}), 101)
    assert ask(directory, FRONT).rcode() == dns.rcode.NXDOMAIN
    assert len(texts(ask(directory, "back.service.ubar.cc"))) == 3


def reports(response: dns.message.Message) -> list[set[str]]:
    """Return the records of the answer section, and those of the additional section, as sets of texts."""
    return [
        {f"{rrset.name} {rrset.ttl} {rdata}" for rrset in section for rdata in rrset}
        for section in (response.answer, response.additional)
    ]


@pytest.mark.parametrize("via", ["udp", "tcp"])
def test_answers_by_hand_are_as_those_that_are_signed_which_dnspython_makes(via: Transport) -> None:
    """Compare unsigned answers, which the resolver encodes itself, with signed ones, which dnspython encodes.

    The jobs differ in time to live and weight. One machine has IPv6, one has no address, and two ports are equal.
    """
    published, label = Published(60, ((0, 0, 7),)), {"service": "front"}
    directory = directory_of(
        table_of(
            *in_service(),
            machine(9, "2001:db8::9"),
            machine(10, "none"),
            submitted("third", job_id=11, tasks=3, labels=label, published=published),
            placed(0, 9, job_id=11),
            placed(1, 10, job_id=11),
            placed(2, 1, job_id=11, ports=(80, 80)),
            *(reported(index, job_id=11) for index in range(3)),
        )
    )
    key = dns.tsig.Key("shared", b"0123456789abcdef")
    directory.keyring = {key.name: key}
    for name in (FRONT, f"_http._tcp.{FRONT}", f"_rpc._tcp.{FRONT}", "third.ubar.cc", "_http._tcp.Third.ubar.cc"):
        query = dns.message.make_query(f"{name}.borg.internal.", "SRV", use_edns=0, payload=1232)
        plain = ask_wire(directory, query, via=via)
        query.use_tsig(key)
        wire = answer(query.to_wire(), directory, via=via, rng=Random(1))
        assert wire is not None
        signed = dns.message.from_wire(wire, keyring=directory.keyring, request_mac=query.mac)
        assert signed.had_tsig
        assert plain.answer
        assert (plain.flags, plain.payload, reports(plain)) == (signed.flags, signed.payload, reports(signed))


def test_an_answer_of_a_thousand_tasks_is_made_in_steps() -> None:
    directory = directory_of(table_of(*running(1_000, machines=200)))
    query = dns.message.make_query("_http._tcp.web.ubar.cc.borg.internal.", "SRV").to_wire()
    steps = answering(query, directory, via="tcp", rng=Random(1))
    assert sum(1 for _ in steps) == 1_000 // STEP - 1
