"""Read descriptions of machines and the address of their link, from the command line or from a CSV file of machines."""

from __future__ import annotations

import csv
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

# DNS labels, joined by dots, because other names contain a machine's name.
_HOSTNAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)")
_BYTES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
_MILLI = {"": 1000, "m": 1}
_SUFFIXES = {"cpu": _MILLI, "accelerators": _MILLI, "ram": _BYTES, "disk": _BYTES, "disk_bandwidth": _BYTES}
MAX_QUANTITY = 2**53
CSV_COLUMNS = (
    "hostname",
    "platform",
    "cpu_milli",
    "ram_bytes",
    "disk_bytes",
    "rack",
    "power_domain",
    "attributes",
    "capacity",
)
# RFC 2544 reserves these addresses for load tests; no host answers there.
_FLEET_NETWORK = (198, 18)
_MACHINES_A_RACK = 40
_RACKS_A_POWER_DOMAIN = 10


class BadMachine(ValueError):
    """The error for a wrong description of a machine, or a wrong address of its link. The message names the wrong field
    and shows the right form.
    """


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """The description with which one machine joins its cell. `capacity`: CPU in milli-cores, RAM and disk in bytes,
    others as counts.
    """

    hostname: str
    address: str
    capacity: dict[str, int]
    platform: str = ""
    rack: str = ""
    power_domain: str = ""
    attributes: tuple[tuple[str, str], ...] = ()


def link_address(url: str) -> tuple[str, int]:
    """Return host and port of the address of a cell's link server, `https://host:port`. Raises `BadMachine` if `url`
    has another form.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port or 443
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme not in ("https", "wss"):
        raise BadMachine(f"link: {url!r} is not the address of a cell's link server; give https://host:port")
    return host, port


def check_hostname(name: str) -> str:
    """Return a valid host name unchanged. Raises `BadMachine` if the name is not a host name."""
    if not _HOSTNAME.fullmatch(name):
        raise BadMachine(
            f"hostname: {name!r} is not a host name; use lower-case letters, digits and hyphens, and at most"
            " 63 characters between two dots"
        )
    return name


def parse_capacity(text: str, separator: str = ",") -> dict[str, int]:
    """Parse a capacity such as `cpu=4,ram=16Gi,disk=100G`. CPU is in cores, RAM and disk are in bytes as in job files,
    and all other resources are counts. Raises `BadMachine` if a part cannot be read.
    """
    return {
        name: _quantity(f"capacity.{name}", value, _SUFFIXES.get(name, {"": 1}))
        for name, value in parse_pairs("capacity", text, separator)
    }


def parse_bytes(field: str, text: str) -> int:
    """Return the number of bytes in a text such as `20Gi` or `500M`. The units are those of job files. Raises
    `BadMachine` if the text cannot be read.
    """
    return _quantity(field, text.strip(), _SUFFIXES["disk"])


def _quantity(field: str, value: str, suffixes: Mapping[str, int]) -> int:
    match = _QUANTITY.fullmatch(value)
    if match is None or match.group(2) not in suffixes:
        accepted = ", ".join(repr(suffix) for suffix in suffixes if suffix) or "none"
        raise BadMachine(
            f"{field}: {value!r} is not a quantity; give a number such as 4 (allowed suffixes: {accepted})"
        )
    quantity = int(Decimal(match.group(1)) * suffixes[match.group(2)])
    if quantity > MAX_QUANTITY:
        raise BadMachine(f"{field}: {value!r} is too large; give at most {MAX_QUANTITY}")
    return quantity


def parse_pairs(field: str, text: str, separator: str) -> list[tuple[str, str]]:
    """Parse a text such as `a=1,b=2` to pairs of name and value. Raises `BadMachine` if a part is not `name=value`."""
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(separator))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise BadMachine(f"{field}: {part!r} is not a pair; give name=value")
        pairs.append((name.strip(), value.strip()))
    return pairs


def uniform_fleet(count: int, capacity: dict[str, int]) -> list[MachineSpec]:
    """Return `count` equal machines, 40 per rack and 10 racks per power domain."""
    return [
        MachineSpec(
            hostname=f"sim-{number:05d}",
            address=fleet_address(number),
            capacity=capacity,
            platform="simulated",
            rack=f"rack-{number // _MACHINES_A_RACK:04d}",
            power_domain=f"power-{number // _MACHINES_A_RACK // _RACKS_A_POWER_DOMAIN:03d}",
        )
        for number in range(count)
    ]


def fleet_address(number: int) -> str:
    """Return the IP address of the simulated machine with this number. Raises `BadMachine` if a fleet has no address
    for this number.
    """
    if number >= 2**17:
        raise BadMachine(f"machines: a fleet has addresses for at most {2**17} simulated machines; give fewer")
    return f"{_FLEET_NETWORK[0]}.{_FLEET_NETWORK[1] + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def read_fleet(path: Path) -> list[MachineSpec]:
    """Return the machines of a CSV file with the columns `CSV_COLUMNS`. The column `capacity` lists the resources that
    do not have their own column, for example `tpu=4;fpga=1`.

    Raises `BadMachine`, with the number of the wrong line, and OSError if the file cannot be read.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or ()
        missing = [column for column in CSV_COLUMNS[:4] if column not in columns]
        unknown = [column for column in columns if column not in CSV_COLUMNS]
        if missing:
            raise BadMachine(
                f"{path}: the first line lacks the columns {', '.join(missing)}; give all of"
                f" {', '.join(CSV_COLUMNS[:4])}"
            )
        if unknown:
            raise BadMachine(f"{path}: the columns {', '.join(unknown)} are unknown; use only {', '.join(CSV_COLUMNS)}")
        machines = list(_fleet_rows(path, reader))
    hostnames = set()
    for machine in machines:
        if machine.hostname in hostnames:
            raise BadMachine(f"{path}: hostname {machine.hostname!r} occurs twice; remove one")
        hostnames.add(machine.hostname)
    if not machines:
        raise BadMachine(f"{path}: the file has no machines; add one line per machine")
    return machines


def _fleet_rows(path: Path, reader: csv.DictReader[str]) -> Iterator[MachineSpec]:
    for number, row in enumerate(reader):
        try:
            capacity = {"cpu": _count(row, "cpu_milli"), "ram": _count(row, "ram_bytes")}
            if row.get("disk_bytes"):
                capacity["disk"] = _count(row, "disk_bytes")
            capacity |= parse_capacity(row.get("capacity") or "", ";")
            yield MachineSpec(
                hostname=check_hostname(row["hostname"]),
                address=fleet_address(number),
                capacity=capacity,
                platform=row.get("platform") or "",
                rack=row.get("rack") or "",
                power_domain=row.get("power_domain") or "",
                attributes=tuple(parse_pairs("attributes", row.get("attributes") or "", ";")),
            )
        except BadMachine as error:
            raise BadMachine(f"{path}, line {reader.line_num}: {error}") from error


def _count(row: dict[str, str], column: str) -> int:
    text = row[column] or ""
    if not text.isascii() or not text.isdigit() or int(text) > MAX_QUANTITY:
        raise BadMachine(f"{column}: {text!r} is not a whole number from 0 to {MAX_QUANTITY}")
    return int(text)
