"""Commands for service accounts and their tokens. A service account is an account for programs."""

from __future__ import annotations

from typing import Annotated

import typer

from portal.cli import output
from portal.cli.context import Commands, Context, DryRun, TenantOption, Yes
from portal.cli.failure import bad_usage
from portal.cli.output import would_be
from portal.cli.paths import part
from portal.cli.tenants import RoleOption, path_of
from portal.cli.tokens import shown
from quota.vocabulary.permissions import Role, Scope

account = Commands(help="Service accounts for programs, and their tokens. For owners of the tenant.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the service account in its tenant.")]


@account.command("list")
def account_list(session: Context, tenant: TenantOption = None) -> None:
    """List the service accounts of a tenant."""
    return session.table(
        session.client.pages(_path(session.tenant(tenant))),
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
    session: Context,
    name: Name,
    role: RoleOption = Role.OPERATOR,
    description: Annotated[str, typer.Option(help="Purpose of the account.")] = "",
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Create a service account. `service-account token NAME` issues a token for the account."""
    owner = session.tenant(tenant)
    body = {"name": name, "role": role.value, "description": description}
    answer = session.client.post(_path(owner), body, dry_run=dry_run)
    return session.say(answer, f"Service account {answer['user']} {would_be(dry_run)} {answer['role']} of {owner}.")


@account.command("set")
def account_set(
    session: Context,
    name: Name,
    role: Annotated[Role | None, typer.Option(help="New role of the account.")] = None,
    description: Annotated[str | None, typer.Option(help="Purpose of the account.")] = None,
    enabled: Annotated[
        bool | None,
        typer.Option(
            "--enable/--disable", help="Enable or disable the account. All tokens of a disabled account are invalid."
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
    answer = session.client.put(_path(session.tenant(tenant), name), changed, dry_run=dry_run)
    state = "enabled" if answer["enabled"] else "disabled"
    would = would_be(dry_run)
    return session.say(answer, f"Service account {answer['user']} {would} {state}, {answer['role']}.")


@account.command()
def remove(
    session: Context, name: Name, yes: Yes = False, tenant: TenantOption = None, dry_run: DryRun = False
) -> None:
    """Remove a service account and its tokens permanently."""
    owner = session.tenant(tenant)
    if not (yes or dry_run):
        output.sure(f"Remove service account {name} of {owner}? Its tokens stop working at once, permanently.")
    session.delete(_path(owner, name), f"Service account {name} of {owner}", dry_run=dry_run)


@account.command()
def token(
    session: Context,
    name: Name,
    called: Annotated[str, typer.Option("--name", help="Name for the token, so that you can recognise it.")],
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="Scope of the token. Repeat the option for more scopes. Default: read and write."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Last day of the token, or the time when it expires. Default: in 90 days.")
    ] = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Issue a token for a service account. The token is valid only in the account's tenant. Its secret is shown only
    once.

    `borgctl tokens revoke KEY` revokes the token.
    """
    owner = session.tenant(tenant)
    body: dict[str, object] = {"name": called, **session.end("expires_at", until, owner)}
    if scope:
        body["scopes"] = [one.value for one in scope]
    answer = session.client.post(f"{_path(owner, name)}tokens/", body, dry_run=dry_run)
    return session.say(answer, "Dry run: no token was issued." if dry_run else answer["secret"])


@account.command()
def tokens(session: Context, name: Name, tenant: TenantOption = None) -> None:
    """List the tokens of a service account. The list cannot show their secrets, because the portal does not store
    them.
    """
    rows = list(session.client.pages(f"{_path(session.tenant(tenant), name)}tokens/"))
    return output.as_json(rows) if session.json else shown(rows)


def _path(tenant: str, name: str = "") -> str:
    return f"{path_of(tenant)}service-accounts/{f'{part(name)}/' if name else ''}"
