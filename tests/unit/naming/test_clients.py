"""Tests of DNS cookies and rate limits, which bound the answers that forged queries send to a victim."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

import dns.asyncquery
import dns.edns
import dns.flags
import dns.message
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naming.dns.protocol.cookies import Cookies, DnsClient, at_the_end
from naming.dns.protocol.rate_limit import RateLimit, RateVerdict
from naming.dns.resolver import truncated
from naming.server import DnsServer
from tests.unit.naming.cells import ask_wire, directory_of, running, table_of

COOKIES = Cookies(b"0123456789abcdef")
HERE, ELSEWHERE = ip_address("203.0.113.7").packed, ip_address("203.0.113.8").packed
MINE = b"my own 8"


def test_a_cookie_is_believed_of_its_client_for_an_hour() -> None:
    given = COOKIES.server(MINE, DnsClient(HERE, 1_000_000))
    for now, believed in ((1_000_000, True), (1_003_600, True), (1_003_601, False), (999_699, False)):
        assert COOKIES.believed(MINE, given, DnsClient(HERE, now)) is believed
    assert not COOKIES.believed(MINE, given, DnsClient(ELSEWHERE, 1_000_000))
    assert not COOKIES.believed(b"another8", given, DnsClient(HERE, 1_000_000))
    assert not Cookies(b"f" * 32).believed(MINE, given, DnsClient(HERE, 1_000_000))


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_nothing_made_up_is_believed(cookie: bytes, server: bytes) -> None:
    assert not COOKIES.believed(cookie, server, DnsClient(HERE, 5_000))


def test_processes_of_one_installation_believe_each_other() -> None:
    one, two = Cookies.from_secret("s" * 50), Cookies.from_secret("s" * 50)
    assert two.believed(MINE, one.server(MINE, DnsClient(HERE, 9)), DnsClient(HERE, 9))


@pytest.mark.parametrize("size", [0, 15, 65])
def test_a_key_has_a_sensible_size(size: int) -> None:
    with pytest.raises(ValueError, match="16 to 64"):
        Cookies(b"k" * size)


def query_with(*options: dns.edns.Option) -> dns.message.Message:
    return dns.message.make_query("web.ubar.cc.borg.internal.", "A", use_edns=0, options=list(options))


def test_both_cookies_are_found_at_the_end() -> None:
    server = COOKIES.server(MINE, DnsClient(HERE, 9))
    wire = query_with(dns.edns.CookieOption(MINE, server)).to_wire()
    assert at_the_end(wire) == (MINE, server)
    assert at_the_end(query_with(dns.edns.CookieOption(MINE, b"")).to_wire()) is None
    assert at_the_end(b"") is None


@given(st.binary(max_size=60))
def test_what_sends_back_to_tcp_is_no_longer_than_what_came(noise: bytes) -> None:
    wire = query_with().to_wire()
    for query in (noise, wire[: len(noise)], wire + noise):
        told = truncated(query)
        assert told is None or len(told) <= len(query)
    told = truncated(wire)
    assert told is not None
    assert query_with().question == dns.message.from_wire(told).question


def test_a_query_for_the_identity_of_the_server_is_answered() -> None:
    directory = directory_of(table_of(*running(1)))
    directory.nsid = b"resolver-1"
    response = ask_wire(directory, query_with(dns.edns.NSIDOption(b"")))
    assert [option.nsid for option in response.options] == [b"resolver-1"]
    assert ask_wire(directory, query_with()).options == ()


@pytest.mark.parametrize(
    ("address", "network"),
    [("198.51.100.9", "198.51.100.200"), ("2001:db8::1", "2001:db8:0:ff::1"), ("::ffff:198.51.100.9", "198.51.100.9")],
)
def test_a_network_counts_as_one(address: str, network: str) -> None:
    limit = RateLimit(3)
    told = [limit.verdict(who, 5.0) for who in (address, network, address, network, network)]
    assert told[:3] == [RateVerdict.ANSWER] * 3
    assert sorted(verdict.value for verdict in told[3:]) == ["drop", "truncate"]
    assert limit.verdict(address, 6.0) is RateVerdict.ANSWER
    assert limit.verdict("192.0.2.1", 5.5) is RateVerdict.ANSWER


def test_our_own_networks_are_not_limited() -> None:
    limit = RateLimit(1)
    for address in ("127.0.0.1", "10.9.8.7", "fd00::1", "::1"):
        assert {limit.verdict(address, 1.0) for _ in range(5)} == {RateVerdict.ANSWER}


def test_beyond_the_rate_a_cookie_or_tcp_gets_the_answer() -> None:
    async def scenario() -> None:
        directory = directory_of(table_of(*running(2)))
        directory.cookies = COOKIES
        server = DnsServer(directory, "127.0.0.1", 0, limit=RateLimit(2, exempt=()))
        await server.start()
        try:
            plain, first = query_with(), query_with(dns.edns.CookieOption(MINE, b""))
            answer = await dns.asyncquery.udp(first, "127.0.0.1", port=server.port, timeout=10)
            (told,) = answer.options
            assert (told.client, len(told.server)) == (MINE, 16)
            seen = set()
            for _ in range(12):
                try:
                    answer = await dns.asyncquery.udp(plain, "127.0.0.1", port=server.port, timeout=0.2)
                except dns.exception.Timeout:
                    seen.add("dropped")
                else:
                    assert bool(answer.flags & dns.flags.TC) != bool(answer.answer)
                    seen.add("truncated" if answer.flags & dns.flags.TC else "answered")
            assert {"dropped", "truncated"} <= seen
            for _ in range(12):
                known = query_with(dns.edns.CookieOption(MINE, told.server))
                answer = await dns.asyncquery.udp(known, "127.0.0.1", port=server.port, timeout=10)
                assert answer.answer
            assert (await dns.asyncquery.tcp(plain, "127.0.0.1", port=server.port, timeout=10)).answer
        finally:
            await server.stop()

    asyncio.run(scenario())
