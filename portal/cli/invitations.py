"""Commands for invitations to a tenant by e-mail."""

from __future__ import annotations

from typing import Annotated

import typer

from portal.cli import context, output, periods
from portal.cli.client import part
from portal.cli.context import DryRun
from portal.cli.failure import bad_usage
from portal.cli.quota import TenantOption, time_zone_of, whose
from portal.cli.tenants import RoleOption, dry, path_of, would
from quota.vocabulary.permissions import Role

app = typer.Typer()


@app.command()
def invite(
    ctx: typer.Context,
    email: Annotated[str, typer.Argument(metavar="EMAIL")],
    role: RoleOption = Role.VIEWER,
    until: Annotated[str | None, typer.Option("--until", help="Last day, or a time. Default: in 7 days.")] = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Invite a person by e-mail. The link is shown only once. Any person who has it can join, also without an account.

    Example: borgctl tenant invite kim@example.com --role operator
    """
    session = context.of(ctx)
    owner = whose(session, tenant)
    body = {"email": email, "role": role.value}
    if until is not None:
        body["expires_at"] = periods.end("until", until, time_zone=time_zone_of(session, owner)).isoformat()
    answer = session.client.post(f"{path_of(owner)}invitations/", body, **dry(dry_run))
    if session.json:
        return output.as_json(answer)
    if dry_run:
        return output.say("Dry run: no invitation was sent.")
    delivery = f"could not be sent ({answer['mail']}): give them the link" if answer["mail"] else "is on its way"
    output.say(f"{email} is invited to {owner} as {role}; the mail {delivery}.")
    return output.say(answer["link"])


@app.command()
def invitations(ctx: typer.Context, tenant: TenantOption = None) -> None:
    """List the invitations to a tenant and their states."""
    session = context.of(ctx)
    rows = list(session.client.pages(f"{path_of(whose(session, tenant))}invitations/"))
    return session.table(
        rows,
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


@app.command()
def withdraw(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(help="Key shown by `borgctl tenant invitations`.")],
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Withdraw an invitation: its link stops working."""
    if not key.isalnum():
        raise bad_usage(
            f"{key!r} is not a key of an invitation; `borgctl tenant invitations` lists the keys", key="not a key"
        )
    session = context.of(ctx)
    path = f"{path_of(whose(session, tenant))}invitations/{part(key)}/"
    answer = session.client.delete(path, **dry(dry_run))
    return session.say(answer, f"The invitation for {answer['email']} {would(dry_run)} withdrawn.")
