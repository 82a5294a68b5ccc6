"""The names of secrets, and the jobs that a grant names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from quota.vocabulary.errors import invalid

MAX_VALUE_BYTES = 64 * 1024
# A task has at most 32 secrets. The kernel and the supervisor accept their variables together.
MAX_VARIABLE_BYTES = 4 * 1024
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_JOBS = re.compile(r"[a-z][-a-z0-9]{0,62}\*?|\*")


class JobGrant(NamedTuple):
    """A grant of a secret to jobs of its tenant. `jobs`: the name of a job, or the beginning of names and `*`. `cell`:
    the only cell of these jobs; empty for all cells.
    """

    jobs: str
    cell: str = ""

    def covers(self, job: str, cell: str) -> bool:
        """Return whether the job with this name in this cell has the grant."""
        if self.cell not in ("", cell):
            return False
        return job.startswith(self.jobs[:-1]) if self.jobs.endswith("*") else job == self.jobs

    def __str__(self) -> str:
        return f"{self.jobs} in cell {self.cell}" if self.cell else f"{self.jobs} in all cells"


def granted(grants: Iterable[JobGrant], job: str, cell: str) -> bool:
    """Return whether one of the grants covers the job `job` in the cell `cell`."""
    return any(grant.covers(job, cell) for grant in grants)


def is_name(text: str) -> bool:
    """Return whether `text` can be the name of a secret."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> None:
    """Raise `Rejected` if `name` cannot be the name of a secret."""
    if not is_name(name):
        detail = (
            f"{name[:63]!r} is not the name of a secret; use lower-case letters, digits and hyphens, a letter first"
        )
        raise invalid("name", f"{detail}, at most 63 characters")


def check_jobs(jobs: str) -> None:
    """Raise `Rejected` if `jobs` is neither the name of a job nor the beginning of names with `*`."""
    if not _JOBS.fullmatch(jobs):
        detail = f"{jobs[:64]!r} names no jobs; give the name of a job, or the beginning of names and *, such as shop-*"
        raise invalid("jobs", detail)


def check_value(value: bytes) -> None:
    """Raise `Rejected` if `value` is empty or too long. The error does not contain it."""
    if not value:
        raise invalid("value", "the value is empty; give at least one byte")
    if len(value) > MAX_VALUE_BYTES:
        detail = (
            f"the value has {len(value)} bytes; give at most {MAX_VALUE_BYTES}, and put larger files into a package"
        )
        raise invalid("value", detail)


def is_text(value: bytes) -> bool:
    """Return whether a value can be the value of an environment variable: UTF-8 without NUL characters."""
    try:
        return "\0" not in value.decode()
    except UnicodeDecodeError:
        return False
