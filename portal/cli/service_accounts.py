"""Commands for service accounts, which programs sign in with, and for their tokens, which expire."""

from __future__ import annotations

from typing import Annotated

import typer

from portal.cli import context, output, periods
from portal.cli.client import part
from portal.cli.context import DryRun
from portal.cli.failure import bad_usage
from portal.cli.quota import TenantOption, Yes, sure, time_zone_of, whose
from portal.cli.tenants import RoleOption, dry, path_of, would
from portal.cli.tokens import shown
from quota.vocabulary.permissions import Role, Scope

account = typer.Typer(help="Service accounts for programs, and their tokens. For owners of the tenant.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the service account in its tenant.")]


@account.command("list")
def account_list(ctx: typer.Context, tenant: TenantOption = None) -> None:
    """List the service accounts of a tenant."""
    session = context.of(ctx)
    rows = list(session.client.pages(_path(whose(session, tenant))))
    return session.table(
        rows,
        {
            "NAME": "name",
            "USER": "user",
            "ROLE": "role",
            "STATE": lambda row: "enabled" if row["enabled"] else "disabled",
            "BY": "created_by",
            "SINCE": lambda row: output.when(row["created_at"]),
            "PURPOSE": "description",
        },
        empty="No service accounts.",
    )


@account.command()
def add(
    ctx: typer.Context,
    name: Name,
    role: RoleOption = Role.OPERATOR,
    description: Annotated[str, typer.Option(help="Purpose.")] = "",
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Create a service account. `service-account token NAME` issues a token for it."""
    session = context.of(ctx)
    owner = whose(session, tenant)
    body = {"name": name, "role": role.value, "description": description}
    answer = session.client.post(_path(owner), body, **dry(dry_run))
    return session.say(answer, f"Service account {answer['user']} {would(dry_run)} {answer['role']} of {owner}.")


@account.command("set")
def account_set(
    ctx: typer.Context,
    name: Name,
    role: Annotated[Role | None, typer.Option("--role", help="New role.")] = None,
    description: Annotated[str | None, typer.Option(help="Purpose.")] = None,
    enabled: Annotated[
        bool | None,
        typer.Option(
            "--enable/--disable", help="Enable or disable it. If it is disabled, all its tokens stop working at once."
        ),
    ] = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Change a service account. Options that you omit keep their values."""
    given = {"role": role.value if role else None, "description": description, "enabled": enabled}
    changed = {key: value for key, value in given.items() if value is not None}
    if not changed:
        raise bad_usage("no change is given: use --role, --description, --enable or --disable", options="not given")
    session = context.of(ctx)
    answer = session.client.put(_path(whose(session, tenant), name), changed, **dry(dry_run))
    if session.json:
        return output.as_json(answer)
    state = "enabled" if answer["enabled"] else "disabled"
    return output.say(f"Service account {answer['user']} {would(dry_run)} {state}, {answer['role']}.")


@account.command()
def remove(
    ctx: typer.Context, name: Name, yes: Yes = False, tenant: TenantOption = None, dry_run: DryRun = False
) -> None:
    """Remove a service account and its tokens permanently."""
    session = context.of(ctx)
    owner = whose(session, tenant)
    if not (yes or dry_run):
        sure(f"Remove service account {name} of {owner}? Its tokens stop working at once, permanently.")
    session.client.delete(_path(owner, name), **dry(dry_run))
    return session.say({"removed": not dry_run}, f"Service account {name} of {owner} {would(dry_run)} removed.")


@account.command()
def token(
    ctx: typer.Context,
    name: Name,
    called: Annotated[str, typer.Option("--name", help="Name for the token, so that you can recognise it.")],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="Scope of the token. Repeat for more. Default: read and write.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Last day, or a time. Default: in 90 days.")] = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Issue a token for a service account, valid only in its tenant. The secret is shown only once.

    `borgctl tokens revoke KEY` revokes it.
    """
    session = context.of(ctx)
    owner = whose(session, tenant)
    body: dict[str, object] = {"name": called}
    if scope:
        body["scopes"] = [one.value for one in scope]
    if until is not None:
        body["expires_at"] = periods.end("until", until, time_zone=time_zone_of(session, owner)).isoformat()
    answer = session.client.post(f"{_path(owner, name)}tokens/", body, **dry(dry_run))
    return session.say(answer, "Dry run: no token was issued." if dry_run else answer["secret"])


@account.command()
def tokens(ctx: typer.Context, name: Name, tenant: TenantOption = None) -> None:
    """List the tokens of a service account. Their secrets are not stored."""
    session = context.of(ctx)
    rows = list(session.client.pages(f"{_path(whose(session, tenant), name)}tokens/"))
    return output.as_json(rows) if session.json else shown(rows)


def _path(tenant: str, name: str = "") -> str:
    return f"{path_of(tenant)}service-accounts/{f'{part(name)}/' if name else ''}"
