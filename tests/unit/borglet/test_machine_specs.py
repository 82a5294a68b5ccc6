"""Tests of descriptions of machines in settings and files, and of the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from borglet.machine_specs import BadMachine, check_hostname, fleet_address, parse_capacity, read_fleet, uniform_fleet

HEADER = "hostname,platform,cpu_milli,ram_bytes,disk_bytes,rack,power_domain,attributes\n"


def fleet(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fleet.csv"
    path.write_text(text)
    return path


def test_quantities_are_read_as_in_job_files() -> None:
    assert parse_capacity("cpu=4, ram=1.5Gi,disk=100G,licences=3") == {
        "cpu": 4000,
        "ram": 3 * 2**29,
        "disk": 10**11,
        "licences": 3,
    }
    assert parse_capacity("cpu=250m") == {"cpu": 250}
    assert parse_capacity("") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu", "capacity: 'cpu' is not a pair; give name=value"),
        ("cpu=-1", "capacity.cpu: '-1' is not a quantity"),
        ("cpu=1Gi", r"capacity.cpu: '1Gi' is not a quantity; give a number such as 4 \(allowed suffixes: 'm'\)"),
        ("ram=99999999Pi", "capacity.ram: '99999999Pi' is too large"),
    ],
)
def test_a_bad_quantity_is_named(text: str, message: str) -> None:
    with pytest.raises(BadMachine, match=message):
        parse_capacity(text)


def test_a_file_of_machines_is_read(tmp_path: Path) -> None:
    path = fleet(tmp_path, HEADER + "m-1,HofL,500,1024,2048,r1,p1,arch=x86;flash=yes\nm-2,,1,2,,,,\n")
    first, second = read_fleet(path)
    assert (first.hostname, first.platform, first.rack, first.power_domain) == ("m-1", "HofL", "r1", "p1")
    assert first.capacity == {"cpu": 500, "ram": 1024, "disk": 2048}
    assert first.attributes == (("arch", "x86"), ("flash", "yes"))
    assert second.capacity == {"cpu": 1, "ram": 2}
    assert first.address != second.address


def test_a_file_may_say_what_else_machines_have(tmp_path: Path) -> None:
    header = HEADER.replace("attributes\n", "attributes,capacity\n")
    (only,) = read_fleet(fleet(tmp_path, header + "m-1,,500,1024,,,,,accelerators=2;tpu=4\n"))
    assert only.capacity == {"cpu": 500, "ram": 1024, "accelerators": 2000, "tpu": 4}
    with pytest.raises(BadMachine, match=r"line 2: capacity\.tpu: 'x' is not a quantity"):
        read_fleet(fleet(tmp_path, header + "m-1,,500,1024,,,,,tpu=x\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hostname,platform,cpu_milli\nm,x,1\n", "the first line lacks the columns ram_bytes"),
        (HEADER.replace("rack", "shelf"), "the columns shelf are unknown"),
        (HEADER, "the file has no machines"),
        (HEADER + "m,x,-1,1,1,,,\n", "line 2: cpu_milli: '-1' is not a whole number"),
        (HEADER + "m,x,1,1,1,,,\nM_2,x,1,1,1,,,\n", "line 3: hostname: 'M_2' is not a host name"),
        (HEADER + "m,x,1,1,1,,,\nm,x,1,1,1,,,\n", "hostname 'm' occurs twice"),
        (HEADER + "m,x,1,1,1,,,arch\n", "line 2: attributes: 'arch' is not a pair"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadMachine, match=message):
        read_fleet(fleet(tmp_path, text))


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a..b", "a" * 64, "a\n"])
def test_a_host_name_is_made_of_dns_labels(name: str) -> None:
    with pytest.raises(BadMachine, match="hostname"):
        check_hostname(name)


def test_a_uniform_fleet_fills_racks_and_has_addresses_of_its_own() -> None:
    machines = uniform_fleet(401, {"cpu": 1})
    assert len({machine.address for machine in machines}) == 401
    assert (machines[400].rack, machines[400].power_domain) == ("rack-0010", "power-001")
    assert fleet_address(65536) == "198.19.0.0"
