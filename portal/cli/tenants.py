"""Commands for tenants (organisations, and teams in organisations) and for their members (§2.5)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import Commands, Context, DryRun, TenantOption
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.output import would_be
from portal.cli.paths import part
from quota.vocabulary.permissions import Role

tenant = Commands(
    help="Tenants: teams, members and their roles, invitations, service accounts, capabilities.\n\n"
    "Commands use the profile's tenant, or --tenant. Changes need the role owner and a token with scope admin."
)

_TENANTS = "/api/v1/tenants/"
UserArgument = Annotated[str, typer.Argument(metavar="USER", help="User name of the member.")]
RoleArgument = Annotated[Role, typer.Argument(metavar="ROLE", help=", ".join(Role))]
RoleOption = Annotated[
    Role, typer.Option("--role", help="Role in the tenant. Each role includes the rights of a viewer.")
]


@tenant.command("list")
def tenant_list(
    session: Context,
    below: Annotated[str | None, typer.Option(metavar="TENANT", help="List only teams of this organisation.")] = None,
) -> None:
    """List the tenants that you can see."""
    return session.table(
        session.client.pages(_TENANTS, parent=below),
        {"TENANT": "name", "TITLE": "title", "BELOW": "parent", "TIME ZONE": "time_zone", "CONTACT": "contact"},
        empty="No tenants that you can see.",
    )


@tenant.command()
def show(
    session: Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[TENANT]", help="Name of the tenant. Default: the profile's tenant.")
    ] = None,
) -> None:
    """Show all details of a tenant, its teams and its members."""
    owner = session.tenant(name)
    answer = session.client.get(path_of(owner))
    teams = list(session.client.pages(_TENANTS, parent=owner))
    members = list(session.client.pages(f"{path_of(owner)}members/"))
    if session.json:
        return output.as_json({**answer, "teams": [row["name"] for row in teams], "members": members})
    output.say(" - ".join(filter(None, (answer["name"], answer["title"]))))
    rows = (
        ("below", answer["parent"]),
        ("contact", answer["contact"]),
        ("time zone", answer["time_zone"]),
        ("jobs", f"{answer['max_jobs']} at most"),
        ("teams", _teams(answer, [row["name"] for row in teams])),
        ("API of tasks", answer["task_api"]),
        ("since", output.when(answer["created_at"])),
    )
    output.details(rows, width=14)
    return _members(members)


@tenant.command()
def create(
    session: Context,
    name: Annotated[
        str,
        typer.Argument(help="Name of the tenant: lower-case letters, digits and hyphens. All job names contain it."),
    ],
    below: Annotated[
        str | None, typer.Option(metavar="TENANT", help="Organisation of the team. Default: the profile's tenant.")
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Create a tenant without an organisation. For SREs.")] = False,
    title: Annotated[str, typer.Option(help="Display name of the tenant.")] = "",
    contact: Annotated[str, typer.Option(help="E-mail address for questions about the tenant.")] = "",
    time_zone: Annotated[str | None, typer.Option(help="Time zone of the tenant, for example Europe/Zurich.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Create a team in an organisation that you own.

    Example: borgctl tenant create acme-search --below acme --title Search
    """
    if alone and below:
        raise bad_usage("--below and --alone cannot be combined: use one of them", below="use one of them")
    body: dict[str, Any] = {"name": name, "title": title, "contact": contact}
    body |= {"parent": None if alone else session.tenant(below)}
    body |= {"time_zone": time_zone} if time_zone else {}
    answer = session.client.post(_TENANTS, body, dry_run=dry_run)
    where = f" below {answer['parent']}" if answer["parent"] else ""
    return session.say(answer, f"Tenant {answer['name']} {would_be(dry_run)} created{where}.")


@tenant.command("set")
def tenant_set(
    session: Context,
    title: Annotated[str | None, typer.Option(help="Display name of the tenant.")] = None,
    contact: Annotated[str | None, typer.Option(help="E-mail address for questions about the tenant.")] = None,
    time_zone: Annotated[str | None, typer.Option(help="Time zone of the tenant, for example Europe/Zurich.")] = None,
    task_api: Annotated[
        str | None, typer.Option(help="What the tenant's tasks may do in the API: none, read or submit.")
    ] = None,
    max_jobs: Annotated[int | None, typer.Option(min=0, help="Maximum number of jobs of the tenant. For SREs.")] = None,
    max_teams: Annotated[
        int | None, typer.Option(min=0, help="Maximum number of teams in the organisation. For SREs.")
    ] = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Change a tenant's settings. Options that you omit keep their values."""
    owner = session.tenant(tenant)
    given: dict[str, Any] = {"title": title, "contact": contact, "time_zone": time_zone, "task_api": task_api}
    given |= {"max_jobs": max_jobs, "max_teams": max_teams}
    changed = {key: value for key, value in given.items() if value is not None}
    if not changed:
        raise bad_usage("no change is given: use an option such as --title or --contact", options="not given")
    before = session.client.get(path_of(owner))
    kept = {"title": before["title"], "contact": before["contact"]}
    answer = session.client.put(path_of(owner), kept | changed, dry_run=dry_run)
    settings = ", ".join(f"{key.replace('_', ' ')} {value!r}" for key, value in changed.items())
    return session.say(answer, f"Tenant {owner} {'would have' if dry_run else 'has'} {settings}.")


@tenant.command()
def move(
    session: Context,
    name: Annotated[str, typer.Argument(metavar="TENANT")],
    below: Annotated[str | None, typer.Option(metavar="TENANT", help="New organisation of the team.")] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Make the team a tenant without an organisation.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Move a tenant to another organisation, or out of its organisation. For SREs."""
    if alone == bool(below):
        raise bad_usage(
            "the destination is missing or given twice: use --below TENANT or --alone",
            below="use --below TENANT or --alone",
        )
    answer = session.client.post(f"{path_of(name)}move/", {"parent": below}, dry_run=dry_run)
    return session.say(answer, f"Tenant {name} {would_be(dry_run)} {f'below {below}' if below else 'on its own'} now.")


@tenant.command()
def members(session: Context, tenant: TenantOption = None) -> None:
    """List the members of a tenant and their roles. The list does not contain the owners of the organisation."""
    rows = list(session.client.pages(f"{path_of(session.tenant(tenant))}members/"))
    return output.as_json(rows) if session.json else _members(rows)


@tenant.command()
def add(
    session: Context,
    user: UserArgument,
    role: RoleOption = Role.VIEWER,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Add a person who already has an account as a member. For SREs. Owners use `invite` instead."""
    owner = session.tenant(tenant)
    if (known := _role_of(session, owner, user)) is not None:
        problem = f"{user} is already a member of {owner} with role {known}; use `borgctl tenant role` to change it"
        raise CommandFailed("already-member", problem)
    _set_role(session, owner, user, role, dry_run=dry_run)


@tenant.command("role")
def member_role(
    session: Context, user: UserArgument, role: RoleArgument, tenant: TenantOption = None, dry_run: DryRun = False
) -> None:
    """Change the role of a member. The change takes effect immediately, also for existing tokens of the member."""
    owner = session.tenant(tenant)
    if _role_of(session, owner, user) is None:
        raise CommandFailed("not-found", f"{user} is not a member of {owner}; invite them with `borgctl tenant invite`")
    _set_role(session, owner, user, role, dry_run=dry_run)


@tenant.command()
def remove(session: Context, user: UserArgument, tenant: TenantOption = None, dry_run: DryRun = False) -> None:
    """Remove a member from a tenant. You can also remove yourself. The last owner cannot be removed."""
    owner = session.tenant(tenant)
    session.delete(f"{path_of(owner)}members/{part(user)}/", user, f"removed from {owner}", dry_run=dry_run)


@tenant.command()
def invite(
    session: Context,
    email: Annotated[str, typer.Argument(metavar="EMAIL")],
    role: RoleOption = Role.VIEWER,
    until: Annotated[
        str | None, typer.Option(help="Last day of the invitation, or the time when it ends. Default: in 7 days.")
    ] = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Invite a person by e-mail. The command shows a link, only once. Any person who has the link can join the tenant.

    Example: borgctl tenant invite kim@example.com --role operator
    """
    owner = session.tenant(tenant)
    body = {"email": email, "role": role.value, **session.end("expires_at", until, owner)}
    answer = session.client.post(f"{path_of(owner)}invitations/", body, dry_run=dry_run)
    if session.json:
        return output.as_json(answer)
    if dry_run:
        return output.say("Dry run: no invitation was sent.")
    delivery = f"could not be sent ({answer['mail']}): give them the link" if answer["mail"] else "is on its way"
    output.say(f"{email} is invited to {owner} as {role}; the mail {delivery}.")
    return output.say(answer["link"])


@tenant.command()
def invitations(session: Context, tenant: TenantOption = None) -> None:
    """List the invitations to a tenant, and the state of each invitation."""
    return session.table(
        session.client.pages(f"{path_of(session.tenant(tenant))}invitations/"),
        {
            "KEY": "key",
            "E-MAIL": "email",
            "ROLE": "role",
            "STATE": "state",
            "BY": "invited_by",
            "SENT": lambda row: output.when(row["created_at"]),
            "ENDS": lambda row: output.when(row["expires_at"]),
        },
        empty="No invitations.",
    )


@tenant.command()
def withdraw(
    session: Context,
    key: Annotated[str, typer.Argument(help="Key of the invitation, shown by `borgctl tenant invitations`.")],
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Withdraw an invitation. Its link then stops working."""
    if not key.isalnum():
        raise bad_usage(f"{key!r} is not the key of an invitation; see `borgctl tenant invitations`", key="not a key")
    path = f"{path_of(session.tenant(tenant))}invitations/{part(key)}/"
    answer = session.client.delete(path, dry_run=dry_run)
    return session.say(answer, f"The invitation for {answer['email']} {would_be(dry_run)} withdrawn.")


def path_of(tenant: str) -> str:
    """Return the API path of a tenant."""
    return f"{_TENANTS}{part(tenant)}/"


def _role_of(session: Context, tenant: str, user: str) -> str | None:
    rows = session.client.pages(f"{path_of(tenant)}members/")
    return next((str(row["role"]) for row in rows if row["user"] == user), None)


def _set_role(session: Context, tenant: str, user: str, role: Role, *, dry_run: bool) -> None:
    answer = session.client.put(f"{path_of(tenant)}members/{part(user)}/", {"role": role.value}, dry_run=dry_run)
    return session.say(answer, f"{user} {would_be(dry_run)} {answer['role']} of {tenant}.")


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
