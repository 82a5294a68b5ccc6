"""Tests that check a transferred zone with `named-checkzone`, `nsd-checkzone` and the tools of ldns.

The two check programs compare records with each other: targets of SRV records have addresses, names are valid, there is
one SOA record, and no name lies outside the zone. `ldns-verify-zone` checks signatures and rejects an unsigned zone
("No DNSKEY records at zone apex"). So `ldns-signzone` signs the zone first, which includes sorting all names.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from naming.dns.primary import Peers
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from tests.memory_news import MemoryNews
from tests.real.naming.secondaries import CELL, ZONE, primary, transferred
from tests.unit.naming.cells import machine, placed, reported, running, submitted

STRICT = [
    *("named-checkzone", "-i", "full", "-k", "fail", "-n", "fail", "-m", "fail", "-M", "fail", "-S", "fail"),
    *("-r", "fail", "-W", "warn", "-T", "warn", "-l", "86400"),
]
LONG_TENANT, LONG_JOB, LONG_PORT = "t" * 63, "j" * 63, "p" * 15


def job(name: str, job_id: int, machines: list[int], *, tenant: str = "ubar", **more: object) -> list[events.Event]:
    """Return events of a job that has one running task on each of the machines."""
    return [
        submitted(name, job_id=job_id, tenant=tenant, tasks=len(machines), **more),  # type: ignore[arg-type]
        *(placed(index, number, job_id=job_id) for index, number in enumerate(machines)),
        *(reported(index, job_id=job_id) for index in range(len(machines))),
    ]


def all_kinds() -> list[events.Event]:
    """Return events of jobs that lead to records of all kinds.

    Among them are IPv4 and IPv6 addresses, weights, a service, pending and unhealthy tasks, and the longest names.
    """
    published = Published(60, ((0, 0, 9), (1, 1, 0)))
    return [
        *running(4),
        machine(60, "2001:db8::60"),
        events.MachineSet(machine_id=62, hostname="h" * 63, address="10.9.0.1", capacity=()),
        *job("six", 8, [60]),
        *job("both", 9, [0, 60, 62]),
        *job(LONG_JOB, 10, [62, 62], tenant=LONG_TENANT, ports=(LONG_PORT,)),
        *job("front", 11, [1, 2, 3], labels={"service": "site"}, published=published),
        *job("back", 12, [1, 60], labels={"service": "site"}),
        *job("sick", 13, [0]),
        reported(0, health="unhealthy", job_id=13),
        submitted("pending", job_id=14, tasks=5),
        *job("portless", 15, [0, 1], ports=()),
        placed(0, 0, job_id=14, ports=()),
        reported(0, job_id=14, address="10.200.0.7"),
    ]


@pytest.fixture(scope="module")
def zone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    news = MemoryNews()
    news.add_cell(CELL, "cc")
    news.write(CELL, all_kinds())

    async def transfer() -> str:
        peers = Peers.read(networks=["127.0.0.0/8"], keys=[], secondaries=[])
        async with primary(news, peers) as server:
            return (await transferred(server)).to_text(relativize=False)

    file = tmp_path_factory.mktemp("zone") / "zone"
    file.write_text(asyncio.run(transfer()))
    return file


def output(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_the_zone_holds_all_kinds_of_records(zone: Path) -> None:
    """Check that the zone has records of all types and long names. Without them the other tests would pass too."""
    found = {line.split()[3] for line in zone.read_text().splitlines()}
    assert found == {"SOA", "NS", "TXT", "A", "AAAA", "SRV", "CAA"}
    for name in (f"1.{LONG_JOB}.{LONG_TENANT}", "site.service.ubar", f"{'h' * 63}.machine"):
        assert f"\n{name}.{ZONE}." in zone.read_text()


def complaints_of_named(zone: Path) -> list[str]:
    """Return the complaints that `named-checkzone` prints, including those with which it still loads the zone."""
    done = subprocess.run([*STRICT, ZONE, zone], capture_output=True, text=True, timeout=60, check=False)
    told = (done.stdout + done.stderr).splitlines()
    return [line for line in told if line != "OK" and "loaded serial" not in line]


def test_named_checkzone_has_nothing_to_say(zone: Path) -> None:
    assert complaints_of_named(zone) == []
    assert output(*STRICT, ZONE, zone).endswith("OK\n")


def test_nsd_checkzone_has_nothing_to_say(zone: Path) -> None:
    assert output("nsd-checkzone", ZONE, zone) == f"zone {ZONE} is ok\n"


def test_ldns_reads_every_record(zone: Path) -> None:
    again = output("ldns-read-zone", "-c", zone)
    assert len(again.splitlines()) == len(zone.read_text().splitlines())


@pytest.mark.parametrize("denial", [[], ["-n"]])
def test_a_signed_copy_verifies(zone: Path, tmp_path: Path, denial: list[str]) -> None:
    """Sign the zone, once with NSEC and once with NSEC3, and verify the signatures."""
    key = subprocess.run(
        ["ldns-keygen", "-a", "ECDSAP256SHA256", ZONE], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    signed = tmp_path / "signed"
    output("ldns-signzone", *denial, "-o", ZONE, "-f", signed, zone, tmp_path / key.stdout.strip())
    assert "Zone is verified and complete" in output("ldns-verify-zone", "-V3", signed)


@pytest.mark.parametrize(
    ("removed", "added", "told"),
    [
        (f"\n0.six.ubar.{ZONE}. 5 IN AAAA 2001:db8::60", "", "has no address records"),
        ("", f"web_1.machine.{ZONE}. 5 IN A 10.0.0.1\n", "bad owner name"),
        ("", f"a.{ZONE}. 5 IN CNAME b.{ZONE}.\na.{ZONE}. 5 IN A 10.0.0.1\n", "CNAME and other data"),
    ],
)
def test_the_checks_report_a_wrong_zone(zone: Path, tmp_path: Path, removed: str, added: str, told: str) -> None:
    text = zone.read_text()
    assert removed in text
    (tmp_path / "zone").write_text(text.replace(removed, "") + added)
    assert told in "\n".join(complaints_of_named(tmp_path / "zone"))


def test_the_programs_of_these_tests_are_there() -> None:
    names = ("named-checkzone", "nsd-checkzone", "ldns-read-zone", "ldns-signzone", "ldns-verify-zone", "ldns-keygen")
    assert [name for name in names if not shutil.which(name)] == []
