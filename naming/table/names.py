"""The two spellings of a name: `/bns/<cell>/<tenant>/<job>[/<index>]` and `[<index>.]<job>.<tenant>.<cell>.<zone>`.

§2.6: "the fiftieth task in job jfoo owned by user ubar in cell cc would be reachable via
50.jfoo.ubar.cc.borg.google.com". Every part is a DNS label in lower case, so that both spellings have the
same letters and neither needs escaping.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from scheduling.core.vocabulary.requirement import MAX_TASKS

MAX_LABEL = 63  # octets (RFC 1035 §2.3.4)
MAX_NAME = 253  # characters without the final dot
PREFIX = "/bns/"

# Labels that zones reserve: `ns.<zone>`, `health.<zone>`, `<host>.machine.<cell>.<zone>`,
# `<name>.service.<tenant>.<cell>.<zone>`.
RESERVED_CELLS = frozenset({"ns", "health"})
MACHINE, SERVICE = "machine", "service"

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_INDEX = re.compile(r"0|[1-9][0-9]{0,6}")


class InvalidName(ValueError):
    """A name that breaks a rule. `field` is the part that is wrong; the text says what to write instead."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


@dataclass(frozen=True, slots=True, order=True)
class JobName:
    cell: str
    tenant: str
    job: str

    @property
    def path(self) -> str:
        return f"{PREFIX}{self.cell}/{self.tenant}/{self.job}"

    def dns(self, zone: str) -> str:
        """Return the absolute DNS name, without the final dot."""
        return f"{self.job}.{self.tenant}.{self.cell}.{zone}"

    def task(self, index: int) -> TaskName:
        return TaskName(self.cell, self.tenant, self.job, index)


@dataclass(frozen=True, slots=True, order=True)
class TaskName:
    cell: str
    tenant: str
    job: str
    index: int

    @property
    def path(self) -> str:
        return f"{PREFIX}{self.cell}/{self.tenant}/{self.job}/{self.index}"

    def dns(self, zone: str) -> str:
        """Return the absolute DNS name, without the final dot."""
        return f"{self.index}.{self.job}.{self.tenant}.{self.cell}.{zone}"

    @property
    def of_job(self) -> JobName:
        return JobName(self.cell, self.tenant, self.job)


@dataclass(frozen=True, slots=True, order=True)
class ServiceName:
    """The name of a service: all jobs of a tenant in a cell whose label `service` has this value."""

    cell: str
    tenant: str
    service: str

    @property
    def path(self) -> str:
        return f"{PREFIX}{self.cell}/{self.tenant}/{SERVICE}/{self.service}"

    def dns(self, zone: str) -> str:
        """Return the absolute DNS name, without the final dot."""
        return f"{self.service}.{SERVICE}.{self.tenant}.{self.cell}.{zone}"


@dataclass(frozen=True, slots=True, order=True)
class MachineName:
    cell: str
    host: str

    @property
    def path(self) -> str:
        return f"{PREFIX}{self.cell}/{MACHINE}/{self.host}"

    def dns(self, zone: str) -> str:
        """Return the absolute DNS name, without the final dot."""
        return f"{self.host}.{MACHINE}.{self.cell}.{zone}"


def check_label(label: str, field: str) -> str:
    """Return `label`. Raises `InvalidName` unless it is a DNS label in lower case of at most 63 characters."""
    if not label:
        raise InvalidName(field, "is empty; give 1 to 63 letters, digits and hyphens")
    if len(label) > MAX_LABEL:
        raise InvalidName(field, f"{label[:16]!r}… has {len(label)} characters; a DNS label has at most {MAX_LABEL}")
    if _LABEL.fullmatch(label):
        return label
    if _LABEL.fullmatch(label.lower()):
        raise InvalidName(field, f"{label!r} has capital letters; write {label.lower()!r}")
    if "_" in label:
        raise InvalidName(field, f"{label!r} has an underscore; use hyphens: {label.replace('_', '-')!r}")
    if label.startswith("-") or label.endswith("-"):
        raise InvalidName(field, f"{label!r} begins or ends with a hyphen; begin and end it with a letter or digit")
    raise InvalidName(field, f"{label!r} is not a DNS label; use lower-case letters, digits and inner hyphens")


def is_service(text: str) -> bool:
    """Return whether `text` can be a service's name: a DNS label in lower case that begins with a letter."""
    return _SERVICE.fullmatch(text) is not None


def check_service(text: str) -> str:
    """Return `text`. Raises `InvalidName` unless it can be a service's name."""
    check_label(text, "service")
    if not is_service(text):
        raise InvalidName("service", f"{text!r} begins with a digit, as task indexes do; begin it with a letter")
    return text


def check_zone(zone: str) -> str:
    """Return `zone` in lower case without the final dot, e.g. `borg.internal`. Raises `InvalidName`."""
    name = zone.removesuffix(".").lower()
    for label in name.split("."):
        check_label(label, "zone")
    if len(name) > MAX_NAME:
        raise InvalidName("zone", f"has {len(name)} characters; a DNS name has at most {MAX_NAME}")
    return name


def parse_index(text: str) -> int:
    """Return a task's index as written in names: no sign, no leading zero. Raises `InvalidName`."""
    if not _INDEX.fullmatch(text) or int(text) >= MAX_TASKS:
        raise InvalidName("index", f"{text[:16]!r} is not a task index; give a number from 0 to {MAX_TASKS - 1}")
    return int(text)


Name = JobName | TaskName | ServiceName | MachineName


def _from_parts(cell: str, tenant: str, job: str, index: str | None) -> Name:
    if tenant == MACHINE and index is None:
        return MachineName(check_label(cell, "cell"), check_label(job, "machine"))
    if job == SERVICE and index is not None:
        return ServiceName(check_label(cell, "cell"), check_label(tenant, "tenant"), check_service(index))
    name = JobName(check_label(cell, "cell"), check_label(tenant, "tenant"), check_label(job, "job"))
    return name if index is None else name.task(parse_index(index))


def parse_path(path: str) -> Name:
    """Parse a path of BNS. A final slash is allowed. Raises `InvalidName`.

    `/bns/<cell>/<tenant>/<job>[/<index>]`, `/bns/<cell>/<tenant>/service/<name>` or `/bns/<cell>/machine/<host>`.
    """
    if not path.startswith(PREFIX):
        raise InvalidName(
            "name", f"{path[:32]!r} does not begin with {PREFIX}; write /bns/<cell>/<tenant>/<job>[/<index>]"
        )
    parts = path.removeprefix(PREFIX).removesuffix("/").split("/")
    if len(parts) not in (3, 4):
        raise InvalidName("name", f"{path[:64]!r} has {len(parts)} parts; write /bns/<cell>/<tenant>/<job>[/<index>]")
    return _from_parts(parts[0], parts[1], parts[2], parts[3] if len(parts) == 4 else None)


def parse_dns(name: str, zone: str) -> Name:
    """Parse a DNS name in any letter case. A final dot is allowed. Raises `InvalidName`.

    `[<index>.]<job>.<tenant>.<cell>.<zone>`, `<name>.service.<tenant>.<cell>.<zone>` or `<host>.machine.<cell>.<zone>`.
    """
    lowered = name.removesuffix(".").lower()
    if not lowered.endswith("." + zone):
        raise InvalidName("name", f"{name[:64]!r} is not below the zone {zone!r}; write <job>.<tenant>.<cell>.{zone}")
    labels = lowered.removesuffix("." + zone).split(".")
    if len(labels) not in (3, 4):
        raise InvalidName("name", f"{name[:64]!r} has {len(labels)} labels before {zone!r}; a job has 3, a task 4")
    return _from_parts(labels[-1], labels[-2], labels[-3], labels[0] if len(labels) == 4 else None)
