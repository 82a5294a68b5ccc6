"""Names that a shell offers after the tab key: jobs, tasks, services, cron jobs, workflows, templates, config files,
secrets, machines, machine pools, cells, tenants and credits, as the portal knows them at that moment.

The shell runs borgctl each time the key is pressed. If the portal does not answer soon, no names are offered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import typer

from portal.cli import profiles
from portal.cli.failure import CommandFailed
from portal.cli.paths import part
from portal.cli.profiles import Profile

_ANSWER_S = 2.0
_MOST = 100

_Get = Callable[..., Any]
_Names = Callable[[typer.Context, str], list[str]]


def _asked(names: Callable[[_Get, Profile, str], Iterable[str]]) -> _Names:
    """Return a function that typer calls for the names that begin with a text. `names`: asks the portal for them.

    The function returns no names if the portal rejects the request or does not answer soon, because an error message
    would appear in the middle of the line that the user is writing.
    """

    def offered(ctx: typer.Context, incomplete: str) -> list[str]:
        from portal.cli.client import Client

        try:
            client = Client(profiles.load(ctx.find_root().params.get("profile")))
            client.until = time.monotonic() + _ANSWER_S
            return list(names(client.get, client.profile, incomplete))
        except CommandFailed:
            return []

    return offered


def _jobs(get: _Get, profile: Profile, incomplete: str) -> Iterable[str]:
    """Return names of live jobs that begin with `incomplete`, in its form: `job`, `tenant/job` or `cell/tenant/job`."""
    front, slash, prefix = incomplete.rpartition("/")
    cell, tenant = _home(profile, front.split("/") if slash else [])
    found = get(f"/api/v1/cells/{part(cell)}/jobs/", tenant=tenant, prefix=prefix, state="live", limit=_MOST)
    return (f"{front}{slash}{row['name']}" for row in found["results"])


def _tasks(get: _Get, profile: Profile, incomplete: str) -> Iterable[str]:
    """Return the tasks of a job as `job/0`. If `incomplete` names no job yet, return names of jobs, each with a slash.
    A tenant before the job is possible as in `jobs`.
    """
    job, slash, index = incomplete.rpartition("/")
    if slash and (not index or index.isdigit()):
        *front, name = job.split("/")
        cell, tenant = _home(profile, front)
        try:
            found = get(f"/api/v1/cells/{part(cell)}/jobs/{part(tenant)}/{part(name)}/tasks/", limit=_MOST)
            numbers = [str(row["index"]) for row in found["results"]]
            return [f"{job}/{number}" for number in numbers if number.startswith(index)]
        except CommandFailed as failed:
            if failed.code != "not-found":  # else the text before the slash may be a tenant
                raise
    return (f"{name}/" for name in _jobs(get, profile, incomplete))


def _of_kind(kind: str) -> Callable[[_Get, Profile, str], Iterable[str]]:
    """Return a function that asks for the things of a cell which begin with a text, in the form of `_jobs`. `kind`: the
    last part of their path. Only the first `_MOST` of them are offered, because these lists have no prefix.
    """

    def found(get: _Get, profile: Profile, incomplete: str) -> Iterable[str]:
        front, slash, prefix = incomplete.rpartition("/")
        cell, tenant = _home(profile, front.split("/") if slash else [])
        rows = get(f"/api/v1/cells/{part(cell)}/{kind}/", tenant=tenant, limit=_MOST)["results"]
        names = dict.fromkeys(row["name"] for row in rows)  # an ended workflow may have the name of a live one
        return (f"{front}{slash}{name}" for name in names if name.startswith(prefix))

    return found


def _of_tenant(kind: str) -> Callable[[_Get, Profile, str], Iterable[str]]:
    """Return a function that asks for the things of the profile's tenant whose names begin with a text. `kind`: the
    last part of their path.
    """
    return lambda get, profile, incomplete: _beginning(
        get(f"/api/v1/tenants/{part(profile.tenant)}/{kind}/", limit=_MOST), incomplete
    )


def _pools(get: _Get, profile: Profile, incomplete: str) -> Iterable[str]:
    """Return the names of the machine pools of the profile's cell that begin with `incomplete`."""
    return _beginning(get(f"/api/v1/cells/{part(profile.cell)}/pools/", limit=_MOST), incomplete)


def _credits(get: _Get, profile: Profile, incomplete: str) -> Iterable[str]:
    """Return the numbers of the newest credits for broken promises that begin with `incomplete`."""
    rows = get("/api/v1/quota/credits/", limit=_MOST)["results"]
    return (number for row in rows if (number := str(row["id"])).startswith(incomplete))


def _machines(get: _Get, profile: Profile, incomplete: str) -> Iterable[str]:
    """Return the names of the machines of the profile's cell that begin with `incomplete`."""
    path = f"/api/v1/cells/{part(profile.cell)}/machines/"
    return (row["hostname"] for row in get(path, prefix=incomplete, limit=_MOST)["results"])


def _cells(get: _Get, profile: Profile, incomplete: str) -> Iterable[str]:
    """Return the names of the cells that begin with `incomplete`."""
    return _beginning(get("/api/v1/cells/", limit=_MOST), incomplete)


def _tenants(get: _Get, profile: Profile, incomplete: str) -> Iterable[str]:
    """Return the names of the tenants that begin with `incomplete`."""
    return _beginning(get("/api/v1/tenants/", limit=_MOST), incomplete)


def _beginning(answer: dict[str, Any], prefix: str) -> Iterable[str]:
    return (row["name"] for row in answer["results"] if row["name"].startswith(prefix))


def _home(profile: Profile, given: list[str]) -> tuple[str, str]:
    """Return the cell and the tenant of a name. `given`: the parts before the job, at most a cell and a tenant. Missing
    parts come from the profile. Raises `CommandFailed` if there are too many parts.
    """
    if len(given) > 2:
        raise CommandFailed("bad-usage", "the name has more parts than cell/tenant/job; leave out the others")
    cell, tenant = [profile.cell, profile.tenant][: 2 - len(given)] + given
    return cell, tenant


jobs, tasks, machines, cells, tenants = map(_asked, (_jobs, _tasks, _machines, _cells, _tenants))
pools, credit_numbers = map(_asked, (_pools, _credits))
cron_jobs, workflows, templates, services = map(
    _asked, map(_of_kind, ("cron-jobs", "workflows", "templates", "services"))
)
configs, secrets = map(_asked, map(_of_tenant, ("configs", "secrets")))
