"""The facts that a machine reports about itself when it joins or returns, such as its capacity and its rack. They are
parsed and checked. Pure.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from borglet.messages import JoinRequest
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import ACCELERATORS, CPU, DEVICE, DISK, MAX_QUANTITY, NAMES, PORTS, RAM, as_mapping
from scheduling.policy.cpu_factors import ONE, normalised

MAX_ATTRIBUTES = 256
# The scheduler stores the devices of a task as the bits of one number.
MAX_DEVICES = 62
MAX_TEXT = 255
# The attribute for capacity that a machine reports and that no SRE has accepted. A machine cannot set it itself.
CLAIMED = "capacity.claimed"
_HOSTNAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Facts:
    """The checked facts of a machine. `capacity`: amounts of the built-in resources, then of the cell's own ones. Its
    CPU is in milli-cores of the machine.
    """

    hostname: str
    address: str
    capacity: tuple[int, ...]
    attributes: dict[str, str]
    platform: str
    rack: str
    power_domain: str
    port_low: int
    port_high: int

    @classmethod
    def of(cls, row: Any) -> Facts:
        """Return the facts in the database row of a machine: hostname, address, capacity, attributes and others. The
        CPU of the capacity is in milli-cores of the machine.
        """
        facts = msgspec.convert(row, cls, from_attributes=True)
        return dataclasses.replace(facts, capacity=tuple(row.machine_capacity))

    def columns(self, cpu_factor: int) -> dict[str, Any]:
        """Return the facts as columns of the machine's row. The hostname is left out, because it never changes.
        `cpu_factor`: the factor of the machine's platform in thousandths, with which the capacity is normalised (§5.4).
        """
        cpu = {"cpu_factor": cpu_factor, "machine_cpu": None if cpu_factor == ONE else self.capacity[CPU]}
        capacity = [max(1, normalised(self.capacity[CPU], cpu_factor)), *self.capacity[1:]]
        return {name: getattr(self, name) for name in _FACTS} | {"capacity": capacity} | cpu

    def as_request(self, *, extra: Sequence[str], **changed: Any) -> JoinRequest:
        """Return a request to join with these facts. `changed`: fields of the request that get other values."""
        facts = dataclasses.asdict(self) | {"capacity": as_mapping(self.capacity, extra=extra)} | changed
        return JoinRequest(token="", **facts)


_FACTS = tuple(field.name for field in dataclasses.fields(Facts) if field.name != "hostname")
COLUMNS = (*_FACTS, "cpu_factor", "machine_cpu")


def read_facts(
    request: JoinRequest, *, extra: Sequence[str] = (), most: int = MAX_ATTRIBUTES
) -> tuple[Facts | None, dict[str, str]]:
    """Return (facts, problems). `facts` is None if a field of `request` is wrong. `problems`: the name of each wrong
    field -> what is wrong.

    If the capacity in the request has no `ports`, the machine has all ports of its range. `most`: how many attributes
    are allowed.
    """
    problems: dict[str, str] = {}
    if not _HOSTNAME.fullmatch(request.hostname):
        problems["hostname"] = (
            f"{request.hostname[:80]!r} is not a DNS label; use lower-case letters, digits and hyphens, a letter"
            " first, at most 63 characters"
        )
    address = _address(request.address, problems)
    if not 1 <= request.port_low <= 65535:
        problems["port_low"] = f"{request.port_low} is not a port; give 1 to 65535"
    elif not request.port_low <= request.port_high <= 65535:
        problems["port_high"] = f"{request.port_high} is out of range; give {request.port_low} (port_low) to 65535"
    ports = max(0, request.port_high - request.port_low + 1)
    capacity = _capacity(request.capacity, ports, extra, problems)
    _attributes(request.attributes, problems, most)
    for name in ("platform", "rack", "power_domain"):
        value = getattr(request, name)
        if len(value) > 63 or "\x00" in value:
            problems[name] = "it is too long or contains a NUL character; give at most 63 characters without NUL"
    if problems:
        return None, problems
    facts = msgspec.structs.asdict(request) | {"address": address, "capacity": capacity}
    del facts["token"]
    return Facts(**facts), problems


def counted(own: Mapping[str, int], reported: Mapping[str, int]) -> tuple[dict[str, int], str]:
    """Return the part of the `reported` capacity that is accepted, and a text that lists the rejected amounts, or "".

    `own`: the capacity that the cell has accepted for the machine. A report may lower an amount, but it may not raise
    an amount above `own`. Only an SRE may do this. The disk is an exception, because a machine reports its free space,
    which may grow.
    """
    more = {name: n for name, n in reported.items() if name != NAMES[DISK] and name in own and n > own[name]}
    accepted = {**reported, **{name: own[name] for name in more}}
    return accepted, ", ".join(f"{name} {amount}" for name, amount in more.items())


def wrong_facts(problems: Mapping[str, str]) -> Rejected:
    """Return the rejection of a request with wrong fields. `problems`: field -> what is wrong with it. The message
    names at most three fields.
    """
    shown = "; ".join(f"{path}: {what}" for path, what in list(problems.items())[:3])
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return Rejected("invalid", shown + more, fields=problems)


def _address(given: str, problems: dict[str, str]) -> str:
    try:
        return str(ipaddress.ip_address(given))
    except ValueError:
        problems["address"] = (
            f"{given[:80]!r} is not an IP address; give the one at which clients reach the machine's tasks"
        )
        return ""


def _capacity(given: Mapping[str, int], ports: int, extra: Sequence[str], problems: dict[str, str]) -> tuple[int, ...]:
    names = (*NAMES, *extra)
    vector = [0] * len(names)
    vector[PORTS] = ports
    for name, quantity in given.items():
        path = f"capacity.{name[:63]}"
        if name not in names:
            problems[path] = f"this cell has no resource {name[:63]!r}; give one of {', '.join(names)}"
        elif not 0 <= quantity <= MAX_QUANTITY:
            problems[path] = f"{quantity} is out of range; give 0 to {MAX_QUANTITY}"
        elif name == NAMES[PORTS] and quantity > ports:
            problems[path] = f"{quantity} ports are more than the range port_low to port_high has; give at most {ports}"
        else:
            vector[names.index(name)] = quantity
    if vector[ACCELERATORS] % DEVICE:
        problems[f"capacity.{NAMES[ACCELERATORS]}"] = (
            f"{vector[ACCELERATORS]} thousandths are not a whole number of devices; give {DEVICE} per device"
        )
    elif vector[ACCELERATORS] > MAX_DEVICES * DEVICE:
        problems[f"capacity.{NAMES[ACCELERATORS]}"] = (
            f"{vector[ACCELERATORS] // DEVICE} devices are too many; give at most {MAX_DEVICES} per machine"
        )
    for position in (CPU, RAM):
        path = f"capacity.{names[position]}"
        if vector[position] == 0 and path not in problems:
            problems[path] = "it is missing or 0; give at least 1, because the machine cannot run tasks without it"
    return tuple(vector)


def _attributes(given: Mapping[str, str], problems: dict[str, str], most: int) -> None:
    if len(given) > most:
        problems["attributes"] = f"{len(given)} attributes are too many; give at most {most}"
        return
    for name, value in given.items():
        if not 1 <= len(name) <= MAX_TEXT or len(value) > MAX_TEXT or "\x00" in name + value:
            problems[f"attributes.{name[:63]}"] = (
                f"it is empty, too long or contains NUL; give a name of 1 to {MAX_TEXT} characters, and a value of"
                f" at most {MAX_TEXT}"
            )
