"""Tests of reverse DNS: the names of an address, addresses that do not exist, and those outside the zone."""

from __future__ import annotations

import ipaddress
import random

import dns.flags
import dns.rcode
import dns.rdatatype
import dns.reversename
import pytest

from naming.dns.resolver import UDP_PAYLOAD
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.zone_settings import read_reverse
from naming.table.reverse import AddressIndex, path_of
from naming.table.table import NameTable
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from tests.unit.naming.cells import (
    WEB,
    ask,
    changed,
    directory_of,
    evicted,
    machine,
    reported,
    running,
    table_of,
    texts,
)

V6_APEX = "d.f.ip6.arpa."


@pytest.fixture
def directory() -> ZoneDirectory:
    table = table_of(
        *running(3),
        machine(7, "fd00::7"),
        machine(8, "127.0.0.1"),
        machine(9, "198.51.100.1"),
        reported(1, address="10.20.30.4"),
        reported(2, address="fd00::8"),
        changed(published=Published(ttl_s=60)),
    )
    made = directory_of(table)
    return ours(made)


def ours(made: ZoneDirectory) -> ZoneDirectory:
    return ZoneDirectory(
        zone=made.zone,
        nameserver=made.nameserver,
        cells=made.cells,
        loaded=made.loaded,
        status=made.status,
        reverse=read_reverse(["10.0.0.0/8", "127.0.0.0/8", "fd00::/8", "::1/128", "192.0.2.53/32"]),
    )


def of(address: str) -> str:
    return str(dns.reversename.from_address(address))


def negative(response, apex: str) -> bool:
    (soa,) = response.authority
    return (
        not response.answer
        and bool(response.flags & dns.flags.AA)
        and (soa.rdtype, soa.name.to_text(), soa.ttl) == (dns.rdatatype.SOA, apex, 5)
        and soa[0].minimum == 5
    )


@pytest.mark.parametrize(
    "address, name, ttl_s",
    [
        ("10.0.0.1", "m0.machine.cc.borg.internal.", 5),
        ("10.20.30.4", "1.web.ubar.cc.borg.internal.", 60),
        ("fd00::7", "m7.machine.cc.borg.internal.", 5),
        ("fd00::8", "2.web.ubar.cc.borg.internal.", 60),
        ("127.0.0.1", "m8.machine.cc.borg.internal.", 5),
    ],
)
def test_an_address_leads_to_its_name_and_back(directory: ZoneDirectory, address: str, name: str, ttl_s: int) -> None:
    response = ask(directory, of(address), "PTR")
    assert texts(response) == [name]
    assert response.answer[0].ttl == ttl_s
    assert response.flags & dns.flags.AA
    assert texts(ask(directory, name, "AAAA" if ":" in address else "A")) == [address]


def test_an_address_that_several_share_has_several_names(directory: ZoneDirectory) -> None:
    table = directory.cells["cc"]
    for revision, number in enumerate(range(20, 400), start=100):
        table.apply(machine(number, "127.0.0.1"), revision)
    response = ask(directory, of("127.0.0.1"), "PTR")
    assert len(response.answer[0]) == 8
    assert not response.flags & dns.flags.TC
    assert len(response.to_wire()) <= UDP_PAYLOAD
    assert len(ask(directory, of("127.0.0.1"), "PTR", via="tcp").answer[0]) == 200
    other = directory_of(table_of(machine(1, "10.0.0.1")))
    other.cells["cc"].cell = "dd"
    directory.cells["dd"] = other.cells["cc"]
    assert set(texts(ask(directory, of("10.0.0.1"), "PTR"))) == {
        "m0.machine.cc.borg.internal.",
        "m1.machine.dd.borg.internal.",
    }


@pytest.mark.parametrize(
    "name", ["10.in-addr.arpa.", V6_APEX, "53.2.0.192.in-addr.arpa.", of("::1"), "127.IN-ADDR.arpa."]
)
def test_reverse_zones_have_soa_and_ns(directory: ZoneDirectory, name: str) -> None:
    (soa,) = ask(directory, name, "SOA").answer[0]
    assert (str(soa.mname), str(soa.rname)) == ("ns.borg.internal.", "hostmaster.borg.internal.")
    response = ask(directory, name, "NS")
    assert texts(response) == ["ns.borg.internal."]
    assert texts_of_additional(response) == ["192.0.2.53"]
    assert negative(ask(directory, name, "TXT"), name)
    assert ask(directory, name, "TXT").rcode() == dns.rcode.NOERROR
    assert ask(directory, name, "AXFR", via="tcp").rcode() == dns.rcode.REFUSED


def texts_of_additional(response) -> list[str]:
    return [rdata.to_text() for rrset in response.additional for rdata in rrset]


@pytest.mark.parametrize(
    "name",
    [
        "0.0.10.in-addr.arpa.",
        "20.10.in-addr.arpa.",
        "0.10.in-addr.arpa.",
        "0.0.d.f.ip6.arpa.",
        "0.0.127.in-addr.arpa.",
        of("fd00::7")[4:],
    ],
)
def test_what_lies_above_an_address_exists_and_holds_nothing(directory: ZoneDirectory, name: str) -> None:
    response = ask(directory, name, "PTR")
    assert response.rcode() == dns.rcode.NOERROR
    assert not response.answer


@pytest.mark.parametrize(
    "name, apex",
    [
        (of("10.0.0.9"), "10.in-addr.arpa."),
        ("9.10.in-addr.arpa.", "10.in-addr.arpa."),
        ("x.10.in-addr.arpa.", "10.in-addr.arpa."),
        ("01.0.0.10.in-addr.arpa.", "10.in-addr.arpa."),
        ("256.0.0.10.in-addr.arpa.", "10.in-addr.arpa."),
        ("1.1.0.0.10.in-addr.arpa.", "10.in-addr.arpa."),
        (of("fd00::9"), V6_APEX),
        ("1.0.d.f.ip6.arpa.", V6_APEX),
        ("10.d.f.ip6.arpa.", V6_APEX),
        ("x." + of("::1"), of("::1")),
    ],
)
def test_what_is_nobodys_address_is_nxdomain(directory: ZoneDirectory, name: str, apex: str) -> None:
    response = ask(directory, name, "PTR")
    assert response.rcode() == dns.rcode.NXDOMAIN
    assert negative(response, apex)


def test_an_address_has_no_other_records(directory: ZoneDirectory) -> None:
    response = ask(directory, of("10.0.0.1"), "A")
    assert response.rcode() == dns.rcode.NOERROR
    assert negative(response, "10.in-addr.arpa.")


@pytest.mark.parametrize(
    "name", [of("198.51.100.1"), "in-addr.arpa.", "ip6.arpa.", "arpa.", of("2001:db8::1"), of("::2")]
)
def test_other_networks_are_not_ours(directory: ZoneDirectory, name: str) -> None:
    response = ask(directory, name, "PTR")
    assert response.rcode() == dns.rcode.REFUSED
    assert not response.flags & dns.flags.AA


def test_reverse_names_follow_news(directory: ZoneDirectory) -> None:
    table = directory.cells["cc"]
    table.apply(machine(0, "10.0.0.200"), 100)
    assert ask(directory, of("10.0.0.1"), "PTR").rcode() == dns.rcode.NXDOMAIN
    assert texts(ask(directory, of("10.0.0.200"), "PTR")) == ["m0.machine.cc.borg.internal."]
    table.apply(evicted(1), 101)
    assert ask(directory, of("10.20.30.4"), "PTR").rcode() == dns.rcode.NXDOMAIN
    table.apply(events.JobEnded(job_id=WEB, how="killed"), 102)
    assert ask(directory, of("fd00::8"), "PTR").rcode() == dns.rcode.NXDOMAIN


def test_reverse_names_are_unknown_before_all_cells_are_read(directory: ZoneDirectory) -> None:
    directory.cells["dd"] = NameTable("dd")
    assert ask(directory, of("10.0.0.77"), "PTR").rcode() == dns.rcode.SERVFAIL
    assert ask(directory, "9.10.in-addr.arpa.", "PTR").rcode() == dns.rcode.SERVFAIL
    assert ask(directory, of("::1"), "PTR").rcode() == dns.rcode.SERVFAIL
    assert texts(ask(directory, of("10.0.0.1"), "PTR")) == ["m0.machine.cc.borg.internal."]
    assert ask(directory, "10.in-addr.arpa.", "SOA").answer


def test_an_address_takes_little_room_in_the_index() -> None:
    """Add 3,000 random addresses and remove them. The index must stay small and end empty."""
    rng = random.Random(1)
    index = AddressIndex()
    addresses = [str(ipaddress.IPv6Address((0xFD00 << 112) + rng.getrandbits(64))) for _ in range(3_000)]
    for address in addresses:
        index.add(address, ("m", "machine"))
    assert len(index._below) < 3 * len(addresses)
    for address in addresses:
        index.discard(address, ("m", "machine"))
    assert not index._below
    assert path_of("10.0.0") is None
