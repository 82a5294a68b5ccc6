"""Tests of a zone that another process, or a new table, continues: secondaries must still get the right records."""

from __future__ import annotations

import asyncio
import weakref

import dns.message
from structlog.testing import capture_logs

from naming.dns.primary import Peers, Primary, current_soa
from naming.dns.transfer import messages
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.zone import Zone
from naming.table.table import NameTable
from scheduling.core.vocabulary import events
from tests.unit.naming.cells import directory_of, machine, placed, publish, reported, running, submitted, table_of
from tests.unit.naming.test_zone import Secondary, filled


def lease(number: int) -> events.LeaseTaken:
    return events.LeaseTaken(scheduler="all", holder="a", epoch=number)


def rows_of(table: NameTable) -> NameTable:
    """Return a table with the same names, as in a process that has read the current rows but not all events."""
    again = NameTable(table.cell)
    for event in running(3):
        again.apply(event, table.names_revision)
    again.revision, again.names_revision, again.ready = table.revision, table.names_revision, True
    return again


def test_a_client_that_has_a_serial_from_another_process_has_what_is_so_after_the_next_change() -> None:
    table = table_of(*running(3))
    secondary = Secondary()
    secondary.refresh(filled(directory_of(table)))
    heir = rows_of(table)
    heir.apply(lease(1), heir.revision + 1)
    directory = directory_of(heir)
    primary = filled(directory)
    assert primary.serial == table.serial
    heir.apply(reported(0, "starting"), heir.revision + 1)
    assert publish(primary)
    secondary.refresh(primary)
    whole = Secondary()
    whole.refresh(primary)
    assert exactly(secondary) == exactly(whole)


def test_a_table_that_is_replaced_while_its_zone_is_read_gives_it_no_serial() -> None:
    table = table_of(*running(3))
    directory = directory_of(table)
    primary, serial = Zone(directory, table), table.serial
    later = rows_of(table)
    later.apply(reported(0, "starting"), 5_000)
    for _ in primary.fill():
        directory.cells["cc"] = later
    directory.cells["cc"] = later
    assert primary.serial == serial
    del directory.cells["cc"]
    table.apply(reported(1, "starting"), 6_000)
    assert publish(primary)
    assert primary.serial == 6_000


def exactly(secondary: Secondary) -> set[tuple[str, str]]:
    return {
        (name.to_text(), rdata.to_text())
        for name, node in secondary.zone.nodes.items()
        for rdataset in node.rdatasets
        for rdata in rdataset
    }


def test_the_zone_of_a_cell_that_is_gone_is_forgotten() -> None:
    async def scenario() -> None:
        directory = directory_of(table_of(*running(3)))
        primary = Primary(directory, Peers.read(networks=["127.0.0.0/8"], keys=[], secondaries=[]))
        query = dns.message.make_query("cc.borg.internal.", "AXFR")
        assert [wire async for wire in primary.transfer(query, "127.0.0.1")]
        zone = weakref.ref(primary._zones["cc"])
        del directory.cells["cc"]
        watch = asyncio.create_task(primary.watch())
        async with asyncio.timeout(5.0):
            while zone() is not None:
                await asyncio.sleep(0.02)
        watch.cancel()

    asyncio.run(scenario())


def test_refusals_fill_no_log() -> None:
    directory = directory_of(table_of(*running(1)))
    peers = Peers.read(networks=["192.0.2.0/24"], keys=[], secondaries=[])
    query = dns.message.make_query("cc.borg.internal.", "IXFR")
    with capture_logs() as told:
        for _ in range(20):
            assert dns.message.from_wire(current_soa(query, "127.0.0.1", directory, peers)).rcode() == 5
    assert len(told) <= 1


def test_a_network_of_ipv4_is_known_on_a_socket_of_both_families() -> None:
    peers = Peers.read(networks=["192.0.2.0/24"], keys=[], secondaries=[])
    query = dns.message.make_query("cc.borg.internal.", "AXFR")
    assert peers.may_transfer(query, "::ffff:192.0.2.7")
    assert not peers.may_transfer(query, "::ffff:198.51.100.7")


def test_a_port_whose_name_is_too_long_for_dns_spoils_no_transfer() -> None:
    """Transfer a zone in which a port's name exceeds the longest DNS name. The zone must omit that name alone."""
    directory = ZoneDirectory(zone=".".join(["z" * 60] * 3))
    long = "j" * (253 - len(f"0..ubar.cc.{directory.zone}"))
    events_ = (machine(0), submitted(long, tasks=1), placed(0, 0), reported(0))
    directory.cells["cc"] = table_of(*events_)
    zone = filled(directory)
    query = dns.message.make_query(zone.apex, "AXFR")
    owners = [
        rrset.name.relativize(zone.apex).to_text()
        for wire in messages(query, zone, "192.0.2.1")
        for rrset in dns.message.from_wire(wire, xfr=True).answer
    ]
    assert f"0.{long}.ubar" in owners
    assert f"_http._tcp.{long}.ubar" not in owners
