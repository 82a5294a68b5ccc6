"""What every command shares: the profile, the connection, and how a job is named."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import typer

from portal.cli import profiles
from portal.cli.client import Client, part
from portal.cli.failure import Failed


@dataclass
class Context:
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
            raise Failed(
                "no-cell", "which cell? Write cell/tenant/job, or set `cell` in the profile.", status=2
            )
        return cell

    def job(self, name: str) -> Job:
        """`cell/tenant/job`, `tenant/job` or `job`; the rest from the profile. Raises `Failed`."""
        segments = name.strip("/").split("/")
        if not 1 <= len(segments) <= 3 or not all(segments):
            raise Failed("bad-name", f"{name!r} is no job: write cell/tenant/job, or just job", status=2)
        cell = segments[-3] if len(segments) == 3 else self.cell()
        tenant = segments[-2] if len(segments) >= 2 else self.profile.tenant
        if not tenant:
            raise Failed("no-tenant", f"whose job is {name!r}? Write tenant/job.", status=2)
        return Job(cell, tenant, segments[-1])

    def task(self, name: str) -> tuple[Job, int]:
        """`JOB/N`. Raises `Failed`."""
        job, _, index = name.rpartition("/")
        if not job or not index.isdigit():
            raise Failed("bad-name", f"{name!r} is no task: write job/0, or cell/tenant/job/0", status=2)
        return self.job(job), int(index)


@dataclass(frozen=True)
class Job:
    cell: str
    tenant: str
    name: str

    @property
    def path(self) -> str:
        return f"/api/v1/cells/{part(self.cell)}/jobs/{part(self.tenant)}/{part(self.name)}/"

    def __str__(self) -> str:
        return f"{self.cell}/{self.tenant}/{self.name}"


def of(ctx: typer.Context) -> Context:
    context: Any = ctx.obj
    assert isinstance(context, Context)
    return context
