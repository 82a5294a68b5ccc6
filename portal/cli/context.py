"""What every command shares: the profile, the connection, and how a job is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import typer

from portal.cli import profiles
from portal.cli.client import Client, part
from portal.cli.failure import CommandFailed, bad_usage

DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, change nothing.")]
CellOption = Annotated[str | None, typer.Option("--cell", help="Another cell than the profile's.")]
Confirm = Annotated[
    int | None, typer.Option(min=0, help="How many tasks may stop, where that is much of the cell.")
]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="cell/tenant/job, or what the profile leaves open.")
]

_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass
class Context:
    """Lazy: what needs no portal, such as `--help`, needs no profile either."""

    profile_name: str | None = None
    json: bool = False

    @cached_property
    def profile(self) -> profiles.Profile:
        return profiles.load(self.profile_name)

    @cached_property
    def client(self) -> Client:
        return Client(self.profile)

    def cell(self, given: str | None = None) -> str:
        cell = given or self.profile.cell
        if not cell:
            raise CommandFailed("no-cell", "which cell? Give it, or set `cell` in the profile.", status=2)
        return label(cell, "cell")

    def job(self, name: str) -> JobReference:
        """`cell/tenant/job`, `tenant/job` or `job`; the rest from the profile. Raises `CommandFailed`."""
        segments = name.strip("/").split("/")
        if not 1 <= len(segments) <= 3 or not all(segments):
            raise bad_usage(f"{name!r} is no job: write cell/tenant/job, or just job", job="no name of a job")
        cell = segments[-3] if len(segments) == 3 else self.cell()
        tenant = segments[-2] if len(segments) >= 2 else self.profile.tenant
        if not tenant:
            raise CommandFailed("no-tenant", f"whose job is {name!r}? Write tenant/job.", status=2)
        return JobReference(label(cell, "cell"), label(tenant, "tenant"), label(segments[-1], "job"))

    def task(self, name: str) -> tuple[JobReference, int]:
        """`JOB/N`. Raises `CommandFailed`."""
        job, index = split_index(name)
        if index is None:
            raise bad_usage(f"{name!r} is no task: write job/0, or cell/tenant/job/0", task="no number")
        return self.job(job), index


@dataclass(frozen=True)
class JobReference:
    cell: str
    tenant: str
    name: str

    @property
    def path(self) -> str:
        return f"/api/v1/cells/{part(self.cell)}/jobs/{part(self.tenant)}/{part(self.name)}/"

    def __str__(self) -> str:
        return f"{self.cell}/{self.tenant}/{self.name}"


def split_index(name: str) -> tuple[str, int | None]:
    """`job/7` is task 7 of `job`; names of jobs begin with a letter, so that a number is always an index."""
    job, slash, index = name.rpartition("/")
    return (job, int(index)) if slash and job and _INDEX.fullmatch(index) else (name, None)


def of(ctx: typer.Context) -> Context:
    context: Any = ctx.obj
    assert isinstance(context, Context)
    return context


def label(text: str, what: str) -> str:
    """`text` itself. Raises `CommandFailed`."""
    if _LABEL.fullmatch(text):
        return text
    cure = "a name has lower-case letters, digits and hyphens, a letter first, at most 63 characters"
    raise bad_usage(f"{text!r} is no name of a {what}: {cure}", **{what: "no DNS label"})
