"""The two forms of a name: the path `/bns/<cell>/<tenant>/<job>[/<index>]` and the DNS name
`[<index>.]<job>.<tenant>.<cell>.<zone>`.

§2.6: "the fiftieth task in job jfoo owned by user ubar in cell cc would be reachable via
50.jfoo.ubar.cc.borg.google.com". Each part of a name is a DNS label in lower case, so neither form needs escapes.
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
    """The error for an invalid name. `field`: which part of the name is wrong. The message says what to write
    instead.
    """

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class _Name:
    """The base class of all names. `segments`: the parts of the path after `/bns/`, beginning with the cell."""

    __slots__ = ()

    @property
    def segments(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def path(self) -> str:
        return PREFIX + "/".join(self.segments)

    def dns(self, zone: str) -> str:
        """Return the complete DNS name, which ends with `zone`. It has no final dot."""
        return ".".join((*reversed(self.segments), zone))


@dataclass(frozen=True, slots=True, order=True)
class JobName(_Name):
    """The name of a job."""

    cell: str
    tenant: str
    job: str

    @property
    def segments(self) -> tuple[str, ...]:
        return self.cell, self.tenant, self.job

    def task(self, index: int) -> TaskName:
        return TaskName(self.cell, self.tenant, self.job, index)


@dataclass(frozen=True, slots=True, order=True)
class TaskName(_Name):
    """The name of a task."""

    cell: str
    tenant: str
    job: str
    index: int

    @property
    def segments(self) -> tuple[str, ...]:
        return self.cell, self.tenant, self.job, str(self.index)

    @property
    def of_job(self) -> JobName:
        return JobName(self.cell, self.tenant, self.job)


@dataclass(frozen=True, slots=True, order=True)
class ServiceName(_Name):
    """The name of a service. A service consists of all jobs of a tenant in a cell whose label `service` is the
    service's name.
    """

    cell: str
    tenant: str
    service: str

    @property
    def segments(self) -> tuple[str, ...]:
        return self.cell, self.tenant, SERVICE, self.service


@dataclass(frozen=True, slots=True, order=True)
class MachineName(_Name):
    """The name of a machine."""

    cell: str
    host: str

    @property
    def segments(self) -> tuple[str, ...]:
        return self.cell, MACHINE, self.host


def check_label(label: str, field: str) -> str:
    """Return `label` if it is a DNS label in lower case. Raises `InvalidName` otherwise. `field`: which part of a name
    `label` is, for the error message.
    """
    if not label:
        raise InvalidName(field, "the name is empty; give 1 to 63 letters, digits or hyphens")
    if len(label) > MAX_LABEL:
        raise InvalidName(
            field, f"{label[:16]!r}… has {len(label)} characters; give at most {MAX_LABEL}, as in a DNS label"
        )
    if _LABEL.fullmatch(label):
        return label
    if _LABEL.fullmatch(label.lower()):
        raise InvalidName(field, f"{label!r} has capital letters; write {label.lower()!r}")
    if "_" in label:
        raise InvalidName(field, f"{label!r} has an underscore; use hyphens, as in {label.replace('_', '-')!r}")
    if label.startswith("-") or label.endswith("-"):
        raise InvalidName(field, f"{label!r} begins or ends with a hyphen; use a letter or digit there")
    raise InvalidName(field, f"{label!r} is not a DNS label; use lower-case letters, digits and, between them, hyphens")


def is_service(text: str) -> bool:
    """Return whether `text` can be the name of a service: a DNS label in lower case that begins with a letter."""
    return _SERVICE.fullmatch(text) is not None


def check_service(text: str) -> str:
    """Return `text` if it can be the name of a service: a DNS label in lower case that begins with a letter. Raises
    `InvalidName` otherwise.
    """
    check_label(text, "service")
    if not is_service(text):
        raise InvalidName(
            "service", f"{text!r} begins with a digit, so it could be a task index; begin the name with a letter"
        )
    return text


def check_zone(zone: str) -> str:
    """Return `zone` in lower case, without the final dot. Raises `InvalidName` if `zone` is not a valid DNS zone."""
    name = zone.removesuffix(".").lower()
    for label in name.split("."):
        check_label(label, "zone")
    if len(name) > MAX_NAME:
        raise InvalidName(
            "zone", f"{name[:16]!r}… has {len(name)} characters; give at most {MAX_NAME}, as in a DNS name"
        )
    return name


def parse_index(text: str) -> int:
    """Return the task index in `text` as a number. Raises `InvalidName` if `text` is not a number, has a sign or a
    leading zero, or is too large.
    """
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
    """Return the name that a path stands for. The possible forms are `/bns/<cell>/<tenant>/<job>[/<index>]`,
    `/bns/<cell>/<tenant>/service/<name>` and `/bns/<cell>/machine/<host>`.

    A final slash is allowed. Raises `InvalidName` for a path of another form.
    """
    if not path.startswith(PREFIX):
        raise InvalidName("name", f"{path[:32]!r} does not begin with {PREFIX}; write /bns/<cell>/<tenant>/<job>")
    parts = path.removeprefix(PREFIX).removesuffix("/").split("/")
    if len(parts) not in (3, 4):
        raise InvalidName("name", f"{path[:64]!r} has {len(parts)} parts; write /bns/<cell>/<tenant>/<job>[/<index>]")
    return _from_parts(parts[0], parts[1], parts[2], parts[3] if len(parts) == 4 else None)


def parse_dns(name: str, zone: str) -> Name:
    """Return the name that a DNS name stands for. The possible forms are `[<index>.]<job>.<tenant>.<cell>.<zone>`,
    `<name>.service.<tenant>.<cell>.<zone>` and `<host>.machine.<cell>.<zone>`.

    A final dot and capital letters are allowed. Raises `InvalidName` for a DNS name of another form.
    """
    lowered = name.removesuffix(".").lower()
    if not lowered.endswith("." + zone):
        raise InvalidName("name", f"{name[:64]!r} is not below the zone {zone!r}; write <job>.<tenant>.<cell>.{zone}")
    labels = lowered.removesuffix("." + zone).split(".")
    if len(labels) not in (3, 4):
        raise InvalidName(
            "name", f"{name[:64]!r} has {len(labels)} labels before {zone!r}; write 3 labels for a job, or 4 for a task"
        )
    return _from_parts(labels[-1], labels[-2], labels[-3], labels[0] if len(labels) == 4 else None)
