"""Service accounts of a tenant: what programs sign in as, with tokens that end."""

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

account = typer.Typer(help="Service accounts, for programs, and their tokens. For owners of the tenant.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="What it is called inside its tenant.")]


@account.command("list")
def account_list(ctx: typer.Context, tenant: TenantOption = None) -> None:
    """The service accounts of a tenant."""
    ours = context.of(ctx)
    rows = list(ours.client.pages(_path(whose(ours, tenant))))
    if ours.json:
        return output.as_json(rows)
    return output.table(
        ("NAME", "USER", "ROLE", "STATE", "BY", "SINCE", "WHAT FOR"),
        [
            (
                row["name"], row["user"], row["role"], "enabled" if row["enabled"] else "disabled", row["created_by"],
                output.when(row["created_at"]), row["description"],
            )
            for row in rows
        ],
        empty="No service account.",
    )  # fmt: skip


@account.command()
def add(
    ctx: typer.Context,
    name: Name,
    role: RoleOption = Role.OPERATOR,
    description: Annotated[str, typer.Option(help="What for.")] = "",
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """A new one. `service-account token NAME` makes a token for it."""
    ours = context.of(ctx)
    owner = whose(ours, tenant)
    body = {"name": name, "role": role.value, "description": description}
    answer = ours.client.post(_path(owner), body, **dry(dry_run))
    if ours.json:
        return output.as_json(answer)
    return output.say(f"Service account {answer['user']} {would(dry_run)} {answer['role']} of {owner}.")


@account.command("set")
def account_set(
    ctx: typer.Context,
    name: Name,
    role: Annotated[Role | None, typer.Option("--role", help="Another role.")] = None,
    description: Annotated[str | None, typer.Option(help="What for.")] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Disabled, its tokens prove nothing, at once.")
    ] = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Change one. What is not given stays."""
    given = {"role": role.value if role else None, "description": description, "enabled": enabled}
    changed = {key: value for key, value in given.items() if value is not None}
    if not changed:
        raise bad_usage(
            "nothing to change: give --role, --description, --enable or --disable", options="none given"
        )
    ours = context.of(ctx)
    answer = ours.client.put(_path(whose(ours, tenant), name), changed, **dry(dry_run))
    if ours.json:
        return output.as_json(answer)
    state = "enabled" if answer["enabled"] else "disabled"
    return output.say(f"Service account {answer['user']} {would(dry_run)} {state}, {answer['role']}.")


@account.command()
def remove(
    ctx: typer.Context, name: Name, yes: Yes = False, tenant: TenantOption = None, dry_run: DryRun = False
) -> None:
    """End one and its tokens, for good."""
    ours = context.of(ctx)
    owner = whose(ours, tenant)
    if not (yes or dry_run):
        sure(f"Remove service account {name} of {owner}? Its tokens end at once, for good.")
    ours.client.delete(_path(owner, name), **dry(dry_run))
    if ours.json:
        return output.as_json({"removed": not dry_run})
    return output.say(f"Service account {name} of {owner} {would(dry_run)} gone.")


@account.command()
def token(
    ctx: typer.Context,
    name: Name,
    called: Annotated[str, typer.Option("--name", help="What the token is for, so that you know it again.")],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="Repeat for more; read and write, if not given.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="The last day, or a moment; 90 days, when left out.")
    ] = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """A token for one, bound to the tenant. Its secret is shown this once; `borgctl tokens revoke KEY` ends it."""
    ours = context.of(ctx)
    owner = whose(ours, tenant)
    body: dict[str, object] = {"name": called}
    if scope:
        body["scopes"] = [one.value for one in scope]
    if until is not None:
        body["expires_at"] = periods.end("until", until, time_zone=time_zone_of(ours, owner)).isoformat()
    answer = ours.client.post(f"{_path(owner, name)}tokens/", body, **dry(dry_run))
    if ours.json:
        return output.as_json(answer)
    return output.say("It would be made so; nothing was." if dry_run else answer["secret"])


@account.command()
def tokens(ctx: typer.Context, name: Name, tenant: TenantOption = None) -> None:
    """The tokens of one. Their secrets are not kept."""
    ours = context.of(ctx)
    rows = list(ours.client.pages(f"{_path(whose(ours, tenant), name)}tokens/"))
    return output.as_json(rows) if ours.json else shown(rows)


def _path(tenant: str, name: str = "") -> str:
    return f"{path_of(tenant)}service-accounts/{f'{part(name)}/' if name else ''}"
