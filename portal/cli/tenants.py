"""Tenants: organisations, the teams below them, and their members (§2.5)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import context, output
from portal.cli.client import part
from portal.cli.context import Context, DryRun
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.quota import TenantOption, whose
from quota.vocabulary.permissions import Role

tenant = typer.Typer(
    help="Tenants: teams, members and their roles, invitations, service accounts, capabilities.\n\n"
    "Commands use the profile's tenant, or --tenant. Only owners change a tenant, with a token of scope admin."
)

_TENANTS = "/api/v1/tenants/"
UserArgument = Annotated[str, typer.Argument(metavar="USER", help="User name of the member.")]
RoleArgument = Annotated[Role, typer.Argument(metavar="ROLE", help=", ".join(Role))]
RoleOption = Annotated[Role, typer.Option("--role", help="Role. Each role includes viewer.")]


@tenant.command("list")
def tenant_list(
    ctx: typer.Context,
    below: Annotated[
        str | None, typer.Option("--below", metavar="TENANT", help="List only the teams of this organisation.")
    ] = None,
) -> None:
    """List the tenants that you can see."""
    session = context.of(ctx)
    rows = list(session.client.pages(_TENANTS, parent=below))
    return session.table(
        rows,
        {"TENANT": "name", "TITLE": "title", "BELOW": "parent", "TIME ZONE": "time_zone", "CONTACT": "contact"},
        empty="No tenants that you can see.",
    )


@tenant.command()
def show(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[TENANT]", help="Default: the profile's tenant.")] = None,
) -> None:
    """Show all details of a tenant, with its teams and members."""
    session = context.of(ctx)
    owner = whose(session, name)
    answer = session.client.get(path_of(owner))
    teams = list(session.client.pages(_TENANTS, parent=owner))
    members = list(session.client.pages(f"{path_of(owner)}members/"))
    if session.json:
        return output.as_json({**answer, "teams": [row["name"] for row in teams], "members": members})
    output.say(" - ".join(filter(None, (answer["name"], answer["title"]))))
    for word, value in (
        ("below", answer["parent"]),
        ("contact", answer["contact"]),
        ("time zone", answer["time_zone"]),
        ("jobs", f"{answer['max_jobs']} at most"),
        ("teams", _teams(answer, [row["name"] for row in teams])),
        ("API of tasks", answer["task_api"]),
        ("since", output.when(answer["created_at"])),
    ):
        if value:
            output.say(f"  {word:<14}{value}")
    return _members(members)


@tenant.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and hyphens. It is part of all job names.")],
    below: Annotated[
        str | None,
        typer.Option("--below", metavar="TENANT", help="Organisation of the team. Default: the profile's tenant."),
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Create a tenant without an organisation. For SREs.")] = False,
    title: Annotated[str, typer.Option(help="Display name.")] = "",
    contact: Annotated[str, typer.Option(help="E-mail address of the contact.")] = "",
    time_zone: Annotated[str | None, typer.Option("--time-zone", help="Time zone, for example Europe/Zurich.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Create a team in an organisation that you own.

    Example: borgctl tenant create acme-search --below acme --title Search
    """
    session = context.of(ctx)
    if alone and below:
        raise bad_usage("--below and --alone cannot be combined: give one of them", below="given together with --alone")
    body: dict[str, Any] = {"name": name, "title": title, "contact": contact}
    body |= {"parent": None if alone else whose(session, below)}
    body |= {"time_zone": time_zone} if time_zone else {}
    answer = session.client.post(_TENANTS, body, **dry(dry_run))
    if session.json:
        return output.as_json(answer)
    where = f" below {answer['parent']}" if answer["parent"] else ""
    return output.say(f"Tenant {answer['name']} {would(dry_run)} created{where}.")


@tenant.command("set")
def tenant_set(
    ctx: typer.Context,
    title: Annotated[str | None, typer.Option(help="Display name.")] = None,
    contact: Annotated[str | None, typer.Option(help="E-mail address of the contact.")] = None,
    time_zone: Annotated[str | None, typer.Option("--time-zone", help="Time zone, for example Europe/Zurich.")] = None,
    task_api: Annotated[
        str | None, typer.Option("--task-api", help="Highest API permission of its tasks: none, read or submit.")
    ] = None,
    max_jobs: Annotated[int | None, typer.Option("--max-jobs", min=0, help="Maximum number of jobs. For SREs.")] = None,
    max_teams: Annotated[
        int | None, typer.Option("--max-teams", min=0, help="Maximum number of teams. For SREs.")
    ] = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Change a tenant's settings. Options that you omit keep their values."""
    session = context.of(ctx)
    owner = whose(session, tenant)
    given = {
        "title": title,
        "contact": contact,
        "time_zone": time_zone,
        "task_api": task_api,
        "max_jobs": max_jobs,
        "max_teams": max_teams,
    }
    changed = {key: value for key, value in given.items() if value is not None}
    if not changed:
        raise bad_usage("no change is given: use --title, --contact, --time-zone …", options="not given")
    before = session.client.get(path_of(owner))
    answer = session.client.put(
        path_of(owner), {"title": before["title"], "contact": before["contact"], **changed}, **dry(dry_run)
    )
    if session.json:
        return output.as_json(answer)
    settings = ", ".join(f"{key.replace('_', ' ')} {value!r}" for key, value in changed.items())
    return output.say(f"Tenant {owner} {'would have' if dry_run else 'has'} {settings}.")


@tenant.command()
def move(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TENANT")],
    below: Annotated[
        str | None, typer.Option("--below", metavar="TENANT", help="New organisation of the tenant.")
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Make it a tenant without an organisation.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Move a tenant to another organisation, or out of its organisation. For SREs."""
    if alone == bool(below):
        raise bad_usage("no destination is given: use --below TENANT or --alone", below="give it, or --alone")
    session = context.of(ctx)
    answer = session.client.post(f"{path_of(name)}move/", {"parent": below}, **dry(dry_run))
    return session.say(answer, f"Tenant {name} {would(dry_run)} {f'below {below}' if below else 'on its own'} now.")


@tenant.command()
def members(ctx: typer.Context, tenant: TenantOption = None) -> None:
    """List the members of a tenant and their roles, without the owners of its organisation, who own it too."""
    session = context.of(ctx)
    rows = list(session.client.pages(f"{path_of(whose(session, tenant))}members/"))
    return output.as_json(rows) if session.json else _members(rows)


@tenant.command()
def add(
    ctx: typer.Context,
    user: UserArgument,
    role: RoleOption = Role.VIEWER,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Add a person who has an account as a member. For SREs. Owners use `invite`, which the person accepts."""
    session = context.of(ctx)
    owner = whose(session, tenant)
    if (known := _role_of(session, owner, user)) is not None:
        raise CommandFailed(
            "already-member",
            f"{user} is already a member of {owner} with role {known}: change the role with `borgctl tenant role`",
        )
    _set_role(session, owner, user, role, dry_run=dry_run)


@tenant.command("role")
def member_role(
    ctx: typer.Context, user: UserArgument, role: RoleArgument, tenant: TenantOption = None, dry_run: DryRun = False
) -> None:
    """Change the role of a member. It takes effect at once, also for the member's tokens."""
    session = context.of(ctx)
    owner = whose(session, tenant)
    if _role_of(session, owner, user) is None:
        raise CommandFailed("not-found", f"{user} is not a member of {owner}; invite them with `borgctl tenant invite`")
    _set_role(session, owner, user, role, dry_run=dry_run)


@tenant.command()
def remove(ctx: typer.Context, user: UserArgument, tenant: TenantOption = None, dry_run: DryRun = False) -> None:
    """Remove a member from a tenant. With your own name you leave it. The last owner cannot be removed."""
    session = context.of(ctx)
    owner = whose(session, tenant)
    session.client.delete(f"{path_of(owner)}members/{part(user)}/", **dry(dry_run))
    return session.say({"removed": not dry_run}, f"{user} {would(dry_run)} removed from {owner}.")


def path_of(tenant: str) -> str:
    return f"{_TENANTS}{part(tenant)}/"


def dry(wanted: bool) -> dict[str, str]:
    return {"dry_run": "1"} if wanted else {}


def would(dry_run: bool) -> str:
    return "would be" if dry_run else "is"


def _role_of(session: Context, tenant: str, user: str) -> str | None:
    rows = session.client.pages(f"{path_of(tenant)}members/")
    return next((str(row["role"]) for row in rows if row["user"] == user), None)


def _set_role(session: Context, tenant: str, user: str, role: Role, *, dry_run: bool) -> None:
    answer = session.client.put(f"{path_of(tenant)}members/{part(user)}/", {"role": role.value}, **dry(dry_run))
    return session.say(answer, f"{user} {would(dry_run)} {answer['role']} of {tenant}.")


def _members(rows: list[dict[str, Any]]) -> None:
    output.table(
        ("MEMBER", "ROLE", "KIND"),
        [(row["user"], row["role"], "service account" if row["service_account"] else "person") for row in rows],
        empty="No members.",
    )


def _teams(answer: dict[str, Any], names: list[str]) -> str:
    if answer["parent"] is not None:
        return ""
    return f"{', '.join(names) or 'none'}; {answer['max_teams']} at most"
