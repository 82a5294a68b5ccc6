"""Rules for the names of jobs. They are needed because the names of jobs and tasks are part of DNS names (§2.6)."""

from __future__ import annotations

from django.conf import settings

from quota.vocabulary.errors import Rejected, invalid
from scheduling.spec import job_spec as spec
from scheduling.spec.schema import SERVICE_LABEL

MAX_DNS_NAME = 253  # characters without the final dot (RFC 1035 §2.3.4)
# Names that a DNS zone uses itself below a tenant: `<service>.service.<tenant>.<cell>.<zone>`.
RESERVED_NAMES = frozenset({"service"})


def reserved(name: str) -> Rejected | None:
    """Return an error if a new job may not have this name, otherwise None."""
    if name not in RESERVED_NAMES:
        return None
    return invalid("name", f"{name!r} is reserved for the DNS zone itself; choose another name", "reserved-name")


def check_lengths(job_spec: spec.JobSpecification) -> None:
    """Check that the DNS names of all tasks and ports are not too long.

    Raises `Rejected` if one of these names is too long. The error names the wrong field.
    """
    above = f"{job_spec.tenant}.{job_spec.cell}.{settings.BORG_ZONE.removesuffix('.')}"
    _check("name", f"{job_spec.tasks - 1}.{job_spec.name}.{above}")
    if service := job_spec.labels.get(SERVICE_LABEL):
        port = max(job_spec.base.ports, key=len, default="")
        of_port = f"_{port}._tcp." if port else ""
        _check(f"labels.{SERVICE_LABEL}", f"{of_port}{service}.service.{above}")


def _check(path: str, longest: str) -> None:
    if len(longest) <= MAX_DNS_NAME:
        return
    detail = (
        f"the DNS name {longest[:32]!r}… would have {len(longest)} characters, and at most {MAX_DNS_NAME} are possible;"
        f" shorten it by {len(longest) - MAX_DNS_NAME} characters"
    )
    raise invalid(path, detail, "invalid-spec")


def check_same(**places: tuple[str, str]) -> None:
    """Raise `Rejected` if a job file and its request name different places. `places`: by field, such as `cell`, the
    value in the file and the value in the request; a value that is empty is not compared.
    """
    for path, (found, wanted) in places.items():
        if found and wanted and found != wanted:
            detail = f"the {path} is {found!r} in the file and {wanted!r} in the request; use the same value in both"
            raise invalid(path, detail, "invalid-spec")
