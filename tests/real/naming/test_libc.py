"""Tests of the resolver with ordinary programs as clients, which find it through /etc/resolv.conf.

They use the C libraries glibc and musl. The tests create a network namespace, in which the resolver has port 53, and a
mount namespace with its own resolv.conf. Nothing of the host changes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.real.naming.process import BOUND_S, LONG, Process

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes networks and mounts")

ZONE = "borg.internal"
WEB = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
RESOLV_CONF = f"""
nameserver 127.0.0.1
search ubar.cc.{ZONE} cc.{ZONE} ubar.dd.{ZONE} {ZONE}
options ndots:3 timeout:1 attempts:1
"""
_INSIDE = """
ip link set lo up
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
shift
exec "$@"
"""

# Both print a line per name: the number of its error or 0, and its addresses.
GLIBC = """
import json, socket, sys
for name in sys.argv[1:]:
    try:
        found = socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)
        print(json.dumps([0, sorted({row[4][0] for row in found})]))
    except socket.gaierror as error:
        print(json.dumps([error.errno, []]))
"""
MUSL = r"""
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
int main(int argc, char **argv) {
    for (int at = 1; at < argc; at++) {
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = 0;
        char text[INET6_ADDRSTRLEN];
        int error = getaddrinfo(argv[at], "80", &hints, &found);
        printf("[%d, [", error);
        for (struct addrinfo *one = error ? 0 : found; one; one = one->ai_next) {
            getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, 0, 0, NI_NUMERICHOST);
            printf("\"%s\"%s", text, one->ai_next ? ", " : "");
        }
        printf("]]\n");
    }
}
"""
NO_NAME, AGAIN, NO_DATA = -2, -3, -5  # the values of EAI_… in both libraries


class Inside(Process):
    """A resolver on port 53 of a private network namespace, in which tests also run the programs that query it."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o711)
        (folder / "resolv.conf").write_text(RESOLV_CONF)
        (folder / "nsswitch.conf").write_text("hosts: dns\n")
        inside = ["sh", "-euc", _INSIDE, "sh", str(folder)]
        super().__init__("127.0.0.1", 53, before=["unshare", "--net", "--mount", "--", *inside])

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nsenter", f"--target={self.popen.pid}", "--net", "--mount", "--", *command],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )

    def status(self) -> str:
        return self.run("dig", "@127.0.0.1", "+tries=1", "+time=1", "+short", "health.borg.internal", "TXT").stdout


@dataclass(frozen=True)
class Libc:
    """A program that calls `getaddrinfo` of one C library for the names that a test gives."""

    inside: Inside
    command: tuple[str | Path, ...]

    def __call__(self, *names: str, **environment: str) -> list[tuple[int, list[str]]]:
        """Return for each name its error code (0 for none) and its sorted addresses."""
        done = self.inside.run(*self.command, *names, **environment)
        assert done.returncode == 0, done.stderr
        return [(error, sorted(found)) for error, found in map(json.loads, done.stdout.splitlines())]


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    made = Inside(tmp_path_factory.mktemp("etc"))
    try:
        made.until(lambda: "status=loading" in made.status())
        yield made
    finally:
        assert "Traceback" not in made.stop()


@pytest.fixture(scope="module")
def libcs(inside: Inside, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Libc]:
    source = tmp_path_factory.mktemp("musl") / "ask.c"
    source.write_text(MUSL)
    program = source.with_suffix("")
    subprocess.run(["musl-gcc", "-static", "-o", program, source], check=True, timeout=60)
    return {"glibc": Libc(inside, (sys.executable, "-c", GLIBC)), "musl": Libc(inside, (program,))}


@pytest.fixture(scope="module")
def loaded(inside: Inside) -> Inside:
    inside.load()
    inside.until(lambda: "status=ok" in inside.status())
    return inside


@pytest.fixture(params=["glibc", "musl"])
def libc(request: pytest.FixtureRequest, loaded: Inside, libcs: dict[str, Libc]) -> Libc:
    return libcs[request.param]


def test_while_names_load_a_program_is_asked_to_try_again(libcs: dict[str, Libc]) -> None:
    """Resolve a name before the resolver has loaded any. Programs must get "try again", not "no such name".

    This test runs first in its file, because later tests make the resolver load its names.
    """
    for ask in libcs.values():
        assert ask(f"web.ubar.cc.{ZONE}.") == [(AGAIN, [])]


def test_a_name_in_full_or_as_short_as_the_search_list_allows(libc: Libc) -> None:
    spellings = (f"web.ubar.cc.{ZONE}.", f"web.ubar.cc.{ZONE}", "web.ubar.cc", "web.ubar", "web", "WEB.Ubar.Cc")
    assert libc(*spellings) == [(0, WEB)] * len(spellings)
    assert libc("2.web") == [(0, ["10.0.0.3"])]
    assert libc(f"0.{LONG}.") == [(0, ["10.0.0.1"])]


def test_addresses_of_either_family_and_of_both(libc: Libc) -> None:
    """Resolve names with IPv4 addresses, IPv6 addresses, or both.

    The library queries A and AAAA together. An empty answer to one must not hide the other.
    """
    assert libc("six", "both", "many") == [(0, ["2001:db8::60"]), (0, ["10.0.0.1", "2001:db8::60"]), (0, WEB)]


def test_no_such_name_and_a_name_without_addresses(libc: Libc) -> None:
    assert libc(f"9.web.ubar.cc.{ZONE}.", f"nothing.ubar.cc.{ZONE}.") == [(NO_NAME, [])] * 2
    ((error, found),) = libc(f"_http._tcp.web.ubar.cc.{ZONE}.")
    assert (error, found) in [(NO_DATA, []), (NO_NAME, [])]  # musl before 1.2.4 has one error for both


@pytest.mark.parametrize("option", ["use-vc", "edns0", "single-request", "single-request-reopen", "trust-ad"])
def test_glibc_with_the_options_that_resolv_conf_knows(loaded: Inside, libcs: dict[str, Libc], option: str) -> None:
    """Resolve names with each resolver option of glibc. musl supports none of these options."""
    told = libcs["glibc"](f"web.ubar.cc.{ZONE}.", f"six.ubar.dd.{ZONE}.", f"9.web.ubar.cc.{ZONE}.", RES_OPTIONS=option)
    assert told == [(0, WEB), (0, ["2001:db8::60"]), (NO_NAME, [])]


def test_getent_as_people_use_it(loaded: Inside) -> None:
    lines = loaded.run("getent", "ahosts", "web.ubar").stdout.splitlines()
    assert sorted({line.split()[0] for line in lines}) == WEB
    assert loaded.run("getent", "ahosts", "9.web.ubar.cc.borg.internal.").returncode == 2


def test_an_address_has_the_name_of_its_machine(loaded: Inside) -> None:
    for address, name in (("10.0.0.3", "m2.machine.cc"), ("2001:db8::60", "m60.machine.dd")):
        assert loaded.run("getent", "hosts", address).stdout.split() == [address, f"{name}.{ZONE}"]
    assert loaded.run("getent", "hosts", "10.0.0.77").returncode == 2


def test_the_programs_of_these_tests_are_there() -> None:
    missing = [name for name in ("unshare", "nsenter", "ip", "mount", "dig", "musl-gcc") if not shutil.which(name)]
    assert not missing
