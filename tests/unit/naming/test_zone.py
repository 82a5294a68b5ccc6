"""Tests of zone transfers, whole and incremental: they equal the resolver's answers, and are signed if asked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

import dns.message
import dns.name
import dns.rdata
import dns.rdatatype
import dns.rrset
import dns.tsigkeyring
import dns.xfr
import dns.zone
from hypothesis import given, settings
from hypothesis import strategies as st

from naming.dns.transfer import messages
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.zone import Zone
from naming.dns.zones.zone_settings import read_caa
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from tests.examples import examples
from tests.unit.naming.cells import (
    WEB,
    answer,
    changed,
    directory_of,
    ended,
    in_service,
    machine,
    placed,
    publish,
    records,
    reported,
    running,
    table_of,
)
from tests.unit.naming.test_prepared_answers import NEWS, named_by

APEX = dns.name.from_text("cc.borg.internal.")
KEY = dns.tsigkeyring.from_text({"secondary.": ("hmac-sha256", "bm90IHZlcnkgc2VjcmV0IGF0IGFsbCBidXQgbG9uZw==")})


def filled(directory: ZoneDirectory, **bounds: int) -> Zone:
    made = Zone(directory, directory.cells["cc"], **bounds)
    for _ in made.fill():
        pass
    return made


class Secondary:
    """A secondary name server, which uses dnspython's code for transfers."""

    def __init__(self) -> None:
        self.zone = dns.zone.Zone(APEX, relativize=False)

    def refresh(self, primary: Zone, *, keyring: dict | None = None, whole: bool = False) -> int:
        """Transfer what is new and return the number of messages. `whole`: ask for the whole zone (AXFR)."""
        have = self.zone.get_soa().serial if self.zone.nodes else None
        rdtype = "AXFR" if whole or have is None else "IXFR"
        query, serial = (
            dns.xfr.make_query(self.zone, serial=have if rdtype == "IXFR" else None)
            if (rdtype == "IXFR")
            else (dns.message.make_query(APEX, "AXFR"), None)
        )
        if keyring is not None:
            query.use_tsig(keyring)
        asked = dns.message.from_wire(query.to_wire(), keyring=keyring)
        count, context = 0, None
        rdatatype = query.question[0].rdtype
        with dns.xfr.Inbound(self.zone, rdatatype, serial) as inbound:
            done = False
            for wire in messages(asked, primary, "192.0.2.1"):
                response = dns.message.from_wire(
                    wire,
                    keyring=keyring,
                    request_mac=query.mac,
                    xfr=True,
                    origin=None,
                    tsig_ctx=context,
                    multi=True,
                    one_rr_per_rrset=rdatatype == dns.rdatatype.IXFR,
                )
                context = response.tsig_ctx
                assert not done
                done = inbound.process_message(response)
                count += 1
            assert done
            assert keyring is None or response.had_tsig
        primary.taken_by.add("192.0.2.1")
        return count


def assert_equal_to_answers(secondary: Secondary, directory: ZoneDirectory) -> None:
    """Check that the secondary's zone and the resolver's answers contain the same records.

    If weights differ, the resolver's answer may be a part of the zone's addresses.
    """
    table, chosen = directory.cells["cc"], (dns.rdatatype.A, dns.rdatatype.AAAA)
    asked = 0
    for name, node in secondary.zone.nodes.items():
        for rdataset in node.rdatasets:
            query = dns.message.make_query(name, rdataset.rdtype)
            wire = answer(query.to_wire(), directory, via="tcp", rng=Random(1))
            assert wire is not None
            (rrset,) = dns.message.from_wire(wire).answer
            given, carried = {*map(lasting, rrset)}, {*map(lasting, rdataset)}
            named = named_by(table, name.relativize(APEX).to_text())
            if rdataset.rdtype in chosen and named is not None and not named.answering.even:
                assert given <= carried, name
            else:
                assert given == carried, name
            assert rrset.ttl == rdataset.ttl
            asked += 1
    assert asked > 0


def test_a_whole_zone_is_what_is_answered() -> None:
    directory = directory_of(table_of(*running(30), machine(77, "2001:db8::1")))
    secondary = Secondary()
    secondary.refresh(filled(directory))
    assert_equal_to_answers(secondary, directory)
    names = {name.to_text() for name in secondary.zone.nodes}
    assert {"_http._tcp.7.web.ubar.cc.borg.internal.", "m77.machine.cc.borg.internal."} <= names


@given(st.lists(st.lists(NEWS, min_size=1, max_size=5), max_size=5), st.booleans())
@settings(max_examples=examples(25), deadline=None)
def test_steps_lead_where_the_whole_zone_leads(steps: list[list[events.Event]], signed: bool) -> None:
    table = table_of(*in_service())
    directory = directory_of(table)
    primary, by_steps, keyring = filled(directory), Secondary(), KEY if signed else None
    by_steps.refresh(primary, keyring=keyring)
    revision = 100
    for step in steps:
        for event in step:
            revision += 1
            table.apply(event, revision)
        publish(primary)
        assert by_steps.refresh(primary, keyring=keyring) == 1
        whole = Secondary()
        whole.refresh(filled(directory), keyring=keyring)
        assert records_of(by_steps) == records_of(whole)
        assert_equal_to_answers(by_steps, directory)


def records_of(secondary: Secondary) -> set[tuple[str, str]]:
    return {
        (name.to_text(), f"{rdata.rdtype} {lasting(rdata)}")
        for name, node in secondary.zone.nodes.items()
        for rdataset in node.rdatasets
        for rdata in rdataset
    }


def lasting(rdata: dns.rdata.Rdata) -> str:
    """Return the record's text without the cell's revision, which changes while names and serial do not."""
    return re.sub(r'"revision=\d+" "names', '"names', rdata.to_text())


def test_a_change_of_how_long_answers_last_alone_reaches_secondaries() -> None:
    table = table_of(*in_service())
    directory = directory_of(table)
    primary, secondary = filled(directory), Secondary()
    secondary.refresh(primary)
    table.apply(changed(labels={"service": "front"}, published=Published(ttl_s=2)), 100)
    publish(primary)
    assert secondary.refresh(primary) == 1
    assert secondary.zone.get_rdataset("1.web.ubar.cc.borg.internal.", "A").ttl == 2
    assert secondary.zone.get_rdataset("front.service.ubar.cc.borg.internal.", "SRV").ttl == 2
    assert secondary.zone.get_rdataset("1.canary.ubar.cc.borg.internal.", "A").ttl == 5
    (change,) = primary.changes
    assert {record.owner for record in change.added if int.from_bytes(record.data[:2]) == dns.rdatatype.A} == {
        ("front", "service", "ubar"),
        ("web", "ubar"),
        *((str(n), "web", "ubar") for n in range(3)),
    }
    assert_equal_to_answers(secondary, directory)


def test_a_service_is_carried_and_leaves_with_its_last_job() -> None:
    table = table_of(*in_service())
    directory = directory_of(table)
    primary, secondary = filled(directory), Secondary()
    secondary.refresh(primary)
    service = [f"{above}front.service.ubar.cc.borg.internal." for above in ("", "_http._tcp.", "_debug._tcp.")]
    assert all(dns.name.from_text(name) in secondary.zone.nodes for name in service)
    table.apply(events.JobEnded(job_id=8, how="killed"), 100)
    publish(primary)
    secondary.refresh(primary)
    assert [dns.name.from_text(name) in secondary.zone.nodes for name in service] == [True, True, False]
    table.apply(changed(), 101)
    publish(primary)
    secondary.refresh(primary)
    assert not any(dns.name.from_text(name) in secondary.zone.nodes for name in service)
    assert_equal_to_answers(secondary, directory)


def test_weights_are_carried_and_who_weighs_0_is_not() -> None:
    table = table_of(*running(3), changed(published=Published(weights=((0, 0, 9), (2, 2, 0)))))
    secondary = Secondary()
    secondary.refresh(filled(directory_of(table)))
    records = secondary.zone.get_rdataset("_http._tcp.web.ubar.cc.borg.internal.", "SRV")
    assert {(record.weight, record.port) for record in records} == {(9, 20_000), (1, 20_001)}
    addresses = secondary.zone.get_rdataset("web.ubar.cc.borg.internal.", "A")
    assert {record.address for record in addresses} == {"10.0.0.1", "10.0.0.2"}


def test_what_authorities_may_issue_is_carried() -> None:
    directory = directory_of(table_of(*running(1)))
    directory.caa = read_caa('0 issue "ca.example"')
    secondary = Secondary()
    secondary.refresh(filled(directory))
    assert [*map(str, secondary.zone.get_rdataset(APEX, "CAA"))] == ['0 issue "ca.example"']
    assert_equal_to_answers(secondary, directory)


def test_a_client_that_is_too_far_behind_takes_the_whole_zone() -> None:
    table = table_of(*running(3))
    directory = directory_of(table)
    primary, secondary = filled(directory), Secondary()
    secondary.refresh(primary)
    for revision in range(100, 110):
        table.apply(reported(0, "starting" if revision % 2 else "up"), revision)
        publish(primary)
    primary.changes.popleft()
    assert primary.since(10) is None
    secondary.refresh(primary)
    assert_equal_to_answers(secondary, directory)


def test_changes_are_forgotten_beyond_a_bound() -> None:
    table = table_of(*running(3))
    primary = filled(directory_of(table), most_remembered=40)
    for revision in range(101, 150):
        table.apply(reported(0, "starting" if revision % 2 else "up"), revision)
        assert publish(primary)
    assert 0 < sum(change.size for change in primary.changes) <= 40


def test_what_changes_while_a_zone_is_filled_is_in_it() -> None:
    table = table_of(*running(50))
    directory = directory_of(table)
    primary = Zone(directory, table)
    for number, _ in enumerate(primary.fill()):
        table.apply(ended(number), 200 + number)
    secondary = Secondary()
    secondary.refresh(primary)
    assert_equal_to_answers(secondary, directory)
    whole = Secondary()
    whole.refresh(filled(directory))
    assert records_of(secondary) == records_of(whole)


def test_a_job_that_ends_leaves_nothing() -> None:
    table = table_of(*running(5))
    directory = directory_of(table)
    primary = filled(directory)
    table.apply(events.JobEnded(job_id=WEB, how="killed"), 100)
    publish(primary)
    assert {record.owner for record in records(primary)} == {(), *((f"m{n}", "machine") for n in range(5))}


def test_a_large_zone_takes_several_messages_each_signed() -> None:
    directory = directory_of(table_of(*running(600)))
    secondary = Secondary()
    assert secondary.refresh(filled(directory), keyring=KEY) > 3
    assert_equal_to_answers_of(secondary, ["599.web.ubar.cc", "web.ubar.cc"], directory)


def assert_equal_to_answers_of(secondary: Secondary, names: Iterable[str], directory: ZoneDirectory) -> None:
    for name in names:
        node = secondary.zone.nodes[dns.name.from_text(f"{name}.borg.internal.")]
        assert {rdataset.rdtype for rdataset in node.rdatasets} >= {dns.rdatatype.A, dns.rdatatype.SRV}


def test_a_serial_that_is_not_older_gets_the_soa_alone() -> None:
    primary = filled(directory_of(table_of(*running(3))))
    for serial in (primary.serial, primary.serial + 5):
        query = dns.message.make_query(APEX, "IXFR")
        query.authority.append(dns.rrset.from_text(APEX, 0, "IN", "SOA", f"ns.x. h.x. {serial} 1 1 1 1"))
        (wire,) = messages(query, primary, "192.0.2.1")
        assert [rrset.rdtype for rrset in dns.message.from_wire(wire).answer] == [dns.rdatatype.SOA]


def test_a_placement_changes_its_names_alone() -> None:
    table = table_of(*running(20))
    primary = filled(directory_of(table))
    table.apply(placed(3, 4, incarnation=2), 100)
    publish(primary)
    (change,) = primary.changes
    owners = {record.owner for record in (*change.removed, *change.added)}
    assert all(owner == () or owner[-2:] == ("web", "ubar") for owner in owners)
    assert ("4", "web", "ubar") not in owners
