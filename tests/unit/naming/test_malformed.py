"""Tests of the resolver with malformed messages: no exception, no long answers, and correct answers afterwards.

The bench `dns-fuzz` sends a million such messages.
"""

from __future__ import annotations

import asyncio
import struct
import time
from itertools import islice
from random import Random

import dns.edns
import dns.message
import dns.rcode
import dns.tsig
import pytest

from naming.dns.primary import Peers, Primary, read_transfer
from naming.dns.resolver import quick_rcode
from naming.dns.sockets import DnsServer
from tests.bombarded import Bombarded
from tests.malformed import KEY, KINDS, packets, questions, well_formed
from tests.unit.naming.cells import answer, ask, directory_of, running, table_of, texts

PACKETS = 5_000
BOUND_S = 20.0
# CPU for one message, with a pause of the garbage collector. Messages that made a resolver slow took more.
MOST_S = 0.3


@pytest.fixture
def bombarded() -> Bombarded:
    return Bombarded(directory_of(table_of(*running(200))))


@pytest.mark.parametrize("via", ["udp", "tcp"])
def test_nothing_raises_and_no_answer_is_much_longer_than_what_was_malformed(bombarded: Bombarded, via: str) -> None:
    kinds = set()
    for packet in islice(packets(seed=6), PACKETS):
        bombarded.take(packet, via)  # type: ignore[arg-type]
        kinds.add(packet.kind)
    assert not bombarded.findings.problems()
    assert bombarded.findings.slowest[0] < MOST_S
    assert kinds == set(KINDS)
    assert bombarded.findings.well_formed < PACKETS / 4
    assert texts(ask(bombarded.server.directory, "1.web.ubar.cc")) == ["10.0.0.2"]


def test_beyond_the_rate_a_client_without_a_cookie_gets_no_more_than_it_sent() -> None:
    bombarded = Bombarded(directory_of(table_of(*running(200))), rate=1)
    began = time.monotonic()
    longer = 0
    for packet in islice(packets(seed=7), PACKETS):
        longer += any(len(answer) > len(packet.wire) for answer in bombarded.take(packet))
    assert not bombarded.findings.problems()
    assert longer <= time.monotonic() - began + 1


def test_streams_survive_what_is_not_a_message() -> None:
    directory = directory_of(table_of(*running(20)))
    directory.keyring = {KEY.name: KEY}
    primary = Primary(directory, Peers(keys=directory.keyring))

    async def scenario() -> None:
        broken: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        server = DnsServer(directory, "127.0.0.1", 0, primary=primary)
        await server.start()
        try:
            async with asyncio.timeout(BOUND_S):
                for packet in islice(packets(seed=8), 400):
                    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                    writer.write(len(packet.wire).to_bytes(2) + packet.wire)
                    writer.write_eof()
                    told = await reader.read()
                    assert well_formed(packet.wire) or len(told) <= 2 + 2 * len(packet.wire), packet
                    writer.close()
        finally:
            await server.stop()
        assert not broken

    asyncio.run(scenario())


def test_whole_questions_are_well_formed_and_answered() -> None:
    directory = directory_of(table_of(*running(20)))
    directory.keyring = {KEY.name: KEY}
    for wire in questions():
        assert well_formed(wire)
        response = answer(wire, directory, via="udp", rng=Random(1))
        assert response is not None
        assert response[3] & 0xF in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN, dns.rcode.REFUSED)


def test_a_name_of_hundreds_of_labels_is_refused_unread_and_those_of_addresses_are_read() -> None:
    reverse = dns.message.make_query("1." * 32 + "ip6.arpa.", "PTR")
    assert quick_rcode(reverse.to_wire()) is None
    assert quick_rcode(dns.message.make_query("x." * 100, "A").to_wire()) == dns.rcode.REFUSED


def test_records_beside_a_question_are_not_a_question() -> None:
    directory = directory_of(table_of(*running(20)))
    wire = dns.message.make_query("web.ubar.cc.borg.internal.", "A").to_wire()
    record = b"\xc0\x0c" + struct.pack("!2HIH", 1, 1, 5, 4) + bytes(4)
    for counts in ((1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1)):
        spoiled = wire[:4] + struct.pack("!4H", *counts) + wire[12:] + record
        response = answer(spoiled, directory, via="udp", rng=Random(1))
        assert response is not None
        assert (len(response), response[3] & 0xF) == (12, dns.rcode.FORMERR)


def test_what_follows_a_signature_of_an_unknown_key_is_damage() -> None:
    """Send a query signed with an unknown key, with one extra octet and without. The extra octet must be noticed.

    The key is searched while the message is parsed, before its end was read.
    """
    query = dns.message.make_query("health.borg.internal", "TXT")
    query.use_tsig(dns.tsig.Key("nobody", "c2VjcmV0", "hmac-sha256"))
    directory = directory_of(table_of(*running(20)))
    for tail, rcode in ((b"", dns.rcode.NOTAUTH), (b"\0", dns.rcode.FORMERR)):
        response = answer(query.to_wire() + tail, directory, via="udp", rng=Random(1))
        assert response is not None
        assert response[3] & 0xF == rcode


def test_an_option_asked_for_many_times_is_answered_once(bombarded: Bombarded) -> None:
    nsid = dns.edns.GenericOption(dns.edns.OptionType.NSID, b"")
    cookie = dns.edns.CookieOption(b"12345678", b"")
    query = dns.message.make_query("cc.borg.internal.", "TXT", options=[nsid, cookie] * 20)
    (response,) = bombarded.take(next(packets(1))._replace(wire=query.to_wire()))
    assert len(dns.message.from_wire(response).options) == 2


@pytest.mark.parametrize("rdtype", ["AXFR", "IXFR"])
def test_an_answer_about_a_transfer_is_not_a_question_for_one(rdtype: str) -> None:
    directory = directory_of(table_of(*running(2)))
    question = dns.message.make_query("cc.borg.internal.", rdtype).to_wire()
    assert read_transfer(question, directory) is not None
    told = question[:2] + bytes([question[2] | 0x80]) + question[3:]
    assert read_transfer(told, directory) is None
