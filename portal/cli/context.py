"""Context of all commands: the profile, the connection, and the parsing of job names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import typer

from portal.cli import output, profiles
from portal.cli.client import Client, part
from portal.cli.failure import CommandFailed, bad_usage

DryRun = Annotated[bool, typer.Option("--dry-run", help="Check the request without changing anything.")]
CellOption = Annotated[str | None, typer.Option("--cell", help="Cell to use instead of the profile's.")]
Confirm = Annotated[
    int | None, typer.Option(min=0, help="Confirm the number of tasks that stop, if they are a large part of the cell.")
]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="cell/tenant/job, tenant/job or job; the profile supplies the rest.")
]

_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass
class Context:
    """Profile and client, loaded on first use, so that `--help` works without a profile."""

    profile_name: str | None = None
    json: bool = False

    @cached_property
    def profile(self) -> profiles.Profile:
        return profiles.load(self.profile_name)

    @cached_property
    def client(self) -> Client:
        return Client(self.profile)

    def say(self, answer: Any, text: str) -> None:
        """Write the API's answer with `--json`, else a sentence."""
        if self.json:
            output.as_json(answer)
        else:
            output.say(text)

    def table(self, rows: Sequence[Any], columns: Mapping[str, str | Callable[[Any], Any]], *, empty: str) -> None:
        """Write the API's rows with `--json`, else a table. `columns`: head -> field, or function, of a row."""
        if self.json:
            output.as_json(rows)
            return
        cells = [[row[of] if isinstance(of, str) else of(row) for of in columns.values()] for row in rows]
        output.table(tuple(columns), cells, empty=empty)

    def cell(self, given: str | None = None) -> str:
        cell = given or self.profile.cell
        if not cell:
            raise CommandFailed("no-cell", "no cell is given: use --cell, or set `cell` in the profile.", status=2)
        return label(cell, "cell")

    def job(self, name: str) -> JobReference:
        """Parse `cell/tenant/job`, `tenant/job` or `job`; the profile supplies the rest. Raises `CommandFailed`."""
        segments = name.strip("/").split("/")
        if not 1 <= len(segments) <= 3 or not all(segments):
            raise bad_usage(f"{name!r} is not a job name: write cell/tenant/job, or just job", job="not a job name")
        cell = segments[-3] if len(segments) == 3 else self.cell()
        tenant = segments[-2] if len(segments) >= 2 else self.profile.tenant
        if not tenant:
            raise CommandFailed("no-tenant", f"no tenant is given for job {name!r}: write tenant/job.", status=2)
        return JobReference(label(cell, "cell"), label(tenant, "tenant"), label(segments[-1], "job"))

    def task(self, name: str) -> tuple[JobReference, int]:
        """Parse `JOB/N`. Raises `CommandFailed`."""
        job, index = split_index(name)
        if index is None:
            raise bad_usage(f"{name!r} is not a task: write job/0, or cell/tenant/job/0", task="has no number")
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
    """Split `job/7` into `job` and 7. Job names begin with a letter, so a number is always a task index."""
    job, slash, index = name.rpartition("/")
    return (job, int(index)) if slash and job and _INDEX.fullmatch(index) else (name, None)


def of(ctx: typer.Context) -> Context:
    context: Any = ctx.obj
    assert isinstance(context, Context)
    return context


def label(text: str, what: str) -> str:
    """Return `text` if it is a DNS label. Raises `CommandFailed`."""
    if _LABEL.fullmatch(text):
        return text
    rule = "use lower-case letters, digits and hyphens, starting with a letter, at most 63 characters"
    raise bad_usage(f"{text!r} is not a valid {what} name: {rule}", **{what: "not a DNS label"})
