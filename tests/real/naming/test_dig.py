"""Tests of a resolver process with dig and kdig, the usual programs for DNS queries, as clients."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.ports import free_port
from tests.real.naming.process import BOUND_S, LONG, MANY, Process

WEB = "web.ubar.cc.borg.internal"
SERVICE = f"_http._tcp.{WEB}"
OF_MANY = "_rpc._tcp.many.ubar.cc.borg.internal"
ALL = {"10.0.0.1", "10.0.0.2", "10.0.0.3"}


@pytest.fixture(scope="module")
def resolver() -> Iterator[Process]:
    process = Process("127.0.0.1", free_port())
    try:
        process.until(lambda: "status=loading" in process.status())
        yield process
    finally:
        assert "Traceback" not in process.stop()


@pytest.fixture(scope="module")
def loaded(resolver: Process) -> Process:
    resolver.load()
    resolver.until(lambda: "status=ok" in resolver.status())
    return resolver


def asked(program: str, resolver: Process, *words: str) -> str:
    """Run dig or kdig against the resolver and return its output. Warnings and complaints in it fail the test."""
    often = ["+tries=1"] if program == "dig" else ["+retry=0", "+noidn"]  # IDN would change letters of names
    done = subprocess.run(
        [program, f"@{resolver.host}", "-p", str(resolver.port), "+timeout=10", *often, *words],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
    )
    # kdig prints a warning when it repeats the query over TCP. dig does not.
    assert re.sub(r";; WARNING: truncated reply from \S+, retrying over TCP\n\n", "", done.stderr) == ""
    for complaint in ("malformed", "mismatch", "Warning:", "WARNING: Messages has", "extra bytes"):
        assert complaint not in done.stdout
    return done.stdout.lstrip("\n")


def test_before_the_names_are_known_both_are_asked_to_come_again(resolver: Process) -> None:
    """Query before the resolver has any names. Both programs must receive SERVFAIL.

    This test runs first, because later tests load the names.
    """
    for program in ("dig", "kdig"):
        assert re.search(r"status: SERVFAIL", asked(program, resolver, WEB, "A"))


@pytest.mark.parametrize("program", ["dig", "kdig"])
@pytest.mark.parametrize("way", [[], ["+tcp"], ["+noedns"], ["+bufsize=512"], ["+dnssec"]])
class TestEither:
    """Tests that run with dig and with kdig, over UDP and TCP, with EDNS and without."""

    def test_addresses(self, loaded: Process, program: str, way: list[str]) -> None:
        assert set(asked(program, loaded, *way, "+short", WEB, "A").split()) == ALL
        assert asked(program, loaded, *way, "+short", f"1.{WEB}", "A").split() == ["10.0.0.2"]
        assert asked(program, loaded, *way, "+short", "six.ubar.dd.borg.internal", "AAAA") == "2001:db8::60\n"

    def test_services_come_with_addresses(self, loaded: Process, program: str, way: list[str]) -> None:
        told = asked(program, loaded, *way, SERVICE, "SRV")
        services = re.findall(r"\sSRV\s+0 1 (\d+) (\S+)", told)
        assert sorted(services) == [(str(20_000 + index), f"{index}.{WEB}.") for index in range(3)]
        _, _, additional = told.partition("ADDITIONAL SECTION")
        found = dict(re.findall(r"^(\S+)\s+5\s+IN\s+A\s+(\S+)", additional, re.MULTILINE))
        assert found == {f"{index}.{WEB}.": f"10.0.0.{index + 1}" for index in range(3)}

    def test_no_such_data_and_no_such_name(self, loaded: Process, program: str, way: list[str]) -> None:
        for name, rdtype, status in (
            (WEB, "AAAA", "NOERROR"),
            (WEB, "MX", "NOERROR"),
            ("ubar.cc.borg.internal", "A", "NOERROR"),
            (f"9.{WEB}", "A", "NXDOMAIN"),
            (f"_nothing._tcp.{WEB}", "SRV", "NXDOMAIN"),
        ):
            told = asked(program, loaded, *way, name, rdtype)
            assert f"status: {status}" in told
            assert "ANSWER: 0; AUTHORITY: 1" in told.replace(",", ";")
            assert re.search(r"^cc\.borg\.internal\.\s+5\s+IN\s+SOA\s+ns\.borg\.internal\. ", told, re.MULTILINE)

    def test_what_is_none_of_ours_is_refused(self, loaded: Process, program: str, way: list[str]) -> None:
        for name in ("example.org", "."):
            assert "status: REFUSED" in asked(program, loaded, *way, name, "NS")

    def test_any_is_answered_with_one_record(self, loaded: Process, program: str, way: list[str]) -> None:
        told = asked(program, loaded, *way, "+short", WEB, "ANY")
        assert told == '"RFC8482" ""\n'

    def test_names_as_long_as_they_may_be(self, loaded: Process, program: str, way: list[str]) -> None:
        assert asked(program, loaded, *way, "+short", f"1.{LONG}", "A") == "10.0.0.1\n"
        told = asked(program, loaded, *way, "+short", f"_http._tcp.{LONG}", "SRV")
        assert sorted(told.splitlines()) == [f"0 1 {20_000 + index} {index}.{LONG}." for index in range(2)]

    def test_a_service_and_what_its_jobs_say(self, loaded: Process, program: str, way: list[str]) -> None:
        """Query a service of two jobs: SRV records have the jobs' weights, and answers their time to live.

        A task of weight 0 is left out while another task serves.
        """
        site, front = "site.service.ubar.cc.borg.internal", "front.ubar.cc.borg.internal"
        told = asked(program, loaded, *way, "+short", f"_http._tcp.{site}", "SRV").splitlines()
        assert sorted(told) == ["0 1 20000 0.back.ubar.cc.borg.internal.", f"0 3 20000 0.{front}."]
        addresses = set(asked(program, loaded, *way, "+short", site, "A").split())
        assert addresses
        assert addresses <= {"10.0.0.1", "10.0.0.3"}
        told = asked(program, loaded, *way, front, "A")
        assert re.findall(r"^front\.ubar\S+\s+(\d+)\s+IN\s+A\s+(\S+)", told, re.MULTILINE) == [("60", "10.0.0.1")]

    def test_caa_records_name_the_certificate_authorities(self, loaded: Process, program: str, way: list[str]) -> None:
        for apex in ("cc.borg.internal", "borg.internal"):
            told = asked(program, loaded, *way, "+short", apex, "CAA").splitlines()
            assert sorted(line.rstrip() for line in told) == ['0 issue "ca.example"', '128 issuewild ";"']
        assert asked(program, loaded, *way, "+short", WEB, "CAA") == ""

    def test_a_reverse_query_names_the_task_of_an_address(self, loaded: Process, program: str, way: list[str]) -> None:
        assert asked(program, loaded, *way, "+short", "-x", "10.0.0.3") == "m2.machine.cc.borg.internal.\n"
        assert asked(program, loaded, *way, "+short", "-x", "2001:db8::60") == "m60.machine.dd.borg.internal.\n"
        for address, status in (("10.0.0.77", "NXDOMAIN"), ("2001:db8::61", "NXDOMAIN"), ("192.0.2.1", "REFUSED")):
            assert f"status: {status}" in asked(program, loaded, *way, "-x", address)
        assert "status: NOERROR" in asked(program, loaded, *way, "0.10.in-addr.arpa", "PTR")

    def test_letters_come_back_as_they_were_asked(self, loaded: Process, program: str, way: list[str]) -> None:
        """Query in mixed case: the answer repeats the letters. Clients that hide random bits in the case (0x20) need
        this.
        """
        mixed = "WeB.uBaR.Cc.bOrG.InTeRnAl."
        told = asked(program, loaded, *way, mixed, "A")
        assert len(re.findall(rf"^{re.escape(mixed)}\s+5\s+IN\s+A", told, re.MULTILINE)) == 3

    def test_a_cut_answer_is_fetched_over_tcp(self, loaded: Process, program: str, way: list[str]) -> None:
        assert len(asked(program, loaded, *way, "+short", OF_MANY, "SRV").splitlines()) == MANY
        cut = re.search(r"[Ff]lags: ([a-z ]+);", asked(program, loaded, *way, "+ignore", OF_MANY, "SRV"))
        assert cut is not None
        assert ("tc" in cut[1].split()) == ("+tcp" not in way)


@pytest.mark.parametrize("program", ["dig", "kdig"])
def test_recursion_is_neither_done_nor_promised(loaded: Process, program: str) -> None:
    for wanted, flags in (("+rec", "qr aa rd"), ("+norec", "qr aa")):
        told = asked(program, loaded, wanted, WEB, "A")
        assert re.search(rf"[Ff]lags: {flags};", told), told


@pytest.mark.parametrize("program", ["dig", "kdig"])
def test_the_server_identity_and_a_cookie_are_sent_to_clients_that_ask(loaded: Process, program: str) -> None:
    told = asked(program, loaded, "+nsid", "+cookie=0102030405060708", WEB, "A")
    assert '"resolver-1"' in told
    (cookie,) = re.findall(r"COOKIE: (\w+)", told)
    assert cookie.startswith("0102030405060708")
    assert len(cookie) == 48
    assert "COOKIE" in asked(program, loaded, f"+cookie={cookie}", WEB, "A")
    plain = asked(program, loaded, *(["+nocookie"] if program == "dig" else []), "+edns=0", WEB, "A")
    assert "NSID" not in plain
    assert "COOKIE" not in plain


def test_dig_finds_its_cookie_good(loaded: Process) -> None:
    assert re.search(r"COOKIE: \w+ \(good\)", asked("dig", loaded, WEB, "A"))


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["+opcode=STATUS"], "NOTIMP"),
        (["+opcode=NOTIFY"], "NOTIMP"),
        (["+opcode=15"], "NOTIMP"),
        (["+edns=3"], "BADVERS"),
        (["+ednsopt=65001:00112233"], "NOERROR"),
        (["+ednsflags=0x7fff"], "NOERROR"),
        (["+subnet=198.51.100.0/24"], "NOERROR"),
        (["+zflag"], "NOERROR"),
        (["+header-only"], "FORMERR"),
        (["-c", "CH"], "REFUSED"),
        (["-t", "TYPE65280"], "NOERROR"),
        (["-t", "TYPE250"], "NOTIMP"),
    ],
)
def test_what_is_unknown_gets_the_status_for_it(loaded: Process, words: list[str], status: str) -> None:
    """Send queries with unknown opcodes, versions, options or types. Each must be answered with `status`.

    The compliance tests of DNS Flag Day send such queries.
    """
    assert f"status: {status}" in asked("dig", loaded, "+noednsnegotiation", "+nobadcookie", *words, WEB)


def test_texts_and_the_apex(loaded: Process) -> None:
    for program in ("dig", "kdig"):
        assert '"serving=3"' in asked(program, loaded, "+short", WEB, "TXT")
        assert '"machine=m2"' in asked(program, loaded, "+short", f"2.{WEB}", "TXT")
        assert asked(program, loaded, "+short", "cc.borg.internal", "NS") == "ns.borg.internal.\n"
        assert asked(program, loaded, "+short", "ns.borg.internal", "A") == "127.0.0.1\n"


def test_the_programs_of_these_tests_are_there() -> None:
    assert all(shutil.which(name) for name in ("dig", "kdig"))
