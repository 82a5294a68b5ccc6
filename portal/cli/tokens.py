"""Who one is: sign in, list and revoke tokens, profiles."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from portal.cli import context, output, profiles
from portal.cli.client import Client, part
from portal.cli.failure import Failed

app = typer.Typer(no_args_is_help=True)
tokens = typer.Typer(no_args_is_help=True, help="Tokens: list, revoke.")


@app.command()
def login(
    ctx: typer.Context,
    url: Annotated[str | None, typer.Option(help="The portal; else the one of the profile.")] = None,
    user: Annotated[str | None, typer.Option(help="User name; asked for when missing.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Bind the token to this tenant.")] = None,
    cell: Annotated[str | None, typer.Option(help="The cell that names without one mean.")] = None,
    password_stdin: Annotated[bool, typer.Option(help="Read the password from standard input.")] = False,
    admin: Annotated[bool, typer.Option(help="Also ask for the scope admin.")] = False,
) -> None:
    """Sign in with a password; the token goes into the profile."""
    ours = context.of(ctx)
    where = url or ours.profile.url
    if not where:
        raise Failed("no-url", "which portal? Give --url.", status=2)
    name = user or typer.prompt("User name")
    password = (
        typer.get_text_stream("stdin").readline().rstrip("\n")
        if password_stdin
        else typer.prompt("Password", hide_input=True)
    )
    anonymous = Client(profiles.Profile(name="", url=where.rstrip("/")))
    scopes = ["read", "write", *(["admin"] if admin else [])]
    body = {
        "username": name,
        "password": password,
        "name": f"borgctl on {socket.gethostname()}",
        "scopes": scopes,
    }
    answer = anonymous.post("/api/v1/login/", {**body, **({"tenant": tenant} if tenant else {})})
    profile = profiles.Profile(
        name=ours.profile_name or name, url=where.rstrip("/"), token=answer["secret"], cell=cell or "",
        tenant=tenant or "",
    )  # fmt: skip
    file = profiles.save(profile)
    if ours.json:
        return output.as_json({"profile": profile.name, "file": str(file), "token": answer["token"]})
    output.say(f"Signed in as {name}; profile {profile.name} is in {file}.")
    return None


@tokens.command("list")
def tokens_list(ctx: typer.Context) -> None:
    """Your tokens. Their secrets are not kept."""
    ours = context.of(ctx)
    rows = list(ours.client.pages("/api/v1/tokens/"))
    if ours.json:
        return output.as_json(rows)
    output.table(
        ("KEY", "NAME", "TENANT", "SCOPES", "LAST USED", "EXPIRES", "REVOKED"),
        [
            (
                row["key"], row["name"], row["tenant"] or "", " ".join(row["scopes"]),
                output.when(row["last_used_at"]), output.when(row["expires_at"]), output.when(row["revoked_at"]),
            )
            for row in rows
        ],
        empty="No tokens.",
    )  # fmt: skip
    return None


@tokens.command("revoke")
def tokens_revoke(ctx: typer.Context, key: str) -> None:
    """End a token at once and for good."""
    ours = context.of(ctx)
    answer = ours.client.delete(f"/api/v1/tokens/{part(key)}/")
    return output.as_json(answer) if ours.json else output.say(f"Token {key} is revoked.")
