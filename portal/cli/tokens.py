"""Commands that sign in, and that issue, list and revoke tokens."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portal.cli import output, profiles
from portal.cli.context import Commands, Context, DryRun, client_of
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.paths import part
from quota.vocabulary.token_order import in_families

if TYPE_CHECKING:
    from portal.cli.client import Client

app = Commands()
tokens = Commands(help="Tokens: issue, list, rotate, revoke.")


@app.command()
def login(
    session: Context,
    url: Annotated[str | None, typer.Option(help="Address of the portal. Default: the address in the profile.")] = None,
    user: Annotated[str | None, typer.Option(help="User name. Default: the command asks for it.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Make the token valid only in this tenant.")] = None,
    cell: Annotated[str | None, typer.Option(help="Default cell, stored in the profile.")] = None,
    password_stdin: Annotated[bool, typer.Option(help="Read the password from standard input.")] = False,
    admin: Annotated[bool, typer.Option(help="Also request the scope admin for the token.")] = False,
    code: Annotated[
        str | None,
        typer.Option(help="Code of your second factor, or a recovery code. Default: the command asks for it."),
    ] = None,
) -> None:
    """Sign in with a password, and with a code if the account has a second factor. The token is stored in a profile,
    and this profile becomes the default.

    The name of the profile is --profile, or else the name of the user. If you can see only one cell or tenant, the
    profile uses this cell or tenant.
    """
    where = (url or session.profile.url).rstrip("/")
    if not where:
        raise CommandFailed("no-url", "no portal is given: use --url.", status=2)
    name = user or typer.prompt("User name", err=True)
    body: dict[str, Any] = {
        "username": name,
        "password": _password(password_stdin),
        "name": f"borgctl on {socket.gethostname()}"[:100],
        "scopes": ["read", "write", *(["admin"] if admin else [])],
        **({"tenant": tenant} if tenant else {}),
        **({"code": code} if code else {}),
    }
    answer = _signed_in(client_of(profiles.Profile("", where)), body, may_ask=not (code or password_stdin))
    signed_in = client_of(profiles.Profile("", where, answer["secret"]))
    profile = profiles.Profile(
        name=session.profile_name or name,
        url=where,
        token=answer["secret"],
        cell=cell or _only(signed_in, "/api/v1/cells/"),
        tenant=tenant or _only(signed_in, "/api/v1/tenants/"),
    )
    file = profiles.save(profile)
    done = {"profile": profile.name, "file": str(file), "cell": profile.cell, "tenant": profile.tenant}
    sentence = f"You are signed in as {name}. Profile {profile.name} is in {file}."
    return session.say({**done, "token": answer["token"]}, sentence)


@tokens.command("issue")
def tokens_issue(
    session: Context,
    name: Annotated[str, typer.Argument(help="Name for the token, so that you can recognise it.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="Scope: read, write or admin. Repeat the option for more scopes. Default: read and write."),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Make the token valid only in this tenant.")] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            help=(
                "Time when the token expires, such as 2030-01-31T00:00:00Z. Default: in 90 days, or with the parent "
                "token."
            )
        ),
    ] = None,
    dispatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEMPLATE",
            help="The token may only dispatch this template. Repeat the option for more templates of the tenant.",
        ),
    ] = None,
    account: Annotated[
        str | None, typer.Option(help="Only with --dispatch: the service account that gets the token.")
    ] = None,
) -> None:
    """Issue a token for yourself. Its secret is shown only once.

    With --dispatch, the token may only dispatch the given templates, and read the state of the jobs that it has
    dispatched. Give such a token to a CI system or to a webhook.

    The profile's token must have scope admin (`borgctl login --admin`). The profile's token becomes the parent of the
    new token. A token cannot expire later than its parent.
    """
    given: dict[str, Any] = {"name": name, "scopes": scope, "tenant": tenant, "expires_at": expires}
    path = "/api/v1/tokens/"
    if dispatch:
        if scope or tenant:
            detail = "--dispatch decides what the token may do; leave --scope and --tenant out"
            raise bad_usage(detail, dispatch="not with --scope or --tenant")
        templates = [str(session.job(template)) for template in dispatch]
        given = {"name": name, "templates": templates, "account": account, "expires_at": expires}
        path = "/api/v1/dispatch-tokens/"
    elif account:
        detail = "--account belongs to --dispatch; use `borgctl service-account token` for other tokens of the account"
        raise bad_usage(detail, account="not without --dispatch")
    answer = session.client.post(path, {key: value for key, value in given.items() if value is not None})
    return session.say(answer, answer["secret"])


@tokens.command("list")
def tokens_list(session: Context) -> None:
    """List your tokens. Each token comes after its parent token. The list cannot show secrets, because the portal does
    not store them.
    """
    rows = list(session.client.pages("/api/v1/tokens/"))
    return output.as_json(rows) if session.json else shown(rows)


def shown(rows: list[dict[str, Any]]) -> None:
    """Print a table of tokens, each after its parent token."""
    output.table(
        ("KEY", "NAME", "PARENT", "REPLACED BY", "TENANT", "SCOPES", "LAST USED", "EXPIRES", "REVOKED"),
        [
            (
                row["key"],
                row["name"],
                row["parent"] or "",
                row["successor"] or "",
                row["tenant"] or "",
                " ".join(row["scopes"]),
                output.when(row["last_used_at"]),
                output.when(row["expires_at"]),
                output.when(row["revoked_at"]),
            )
            for row in in_families(rows, key=lambda row: row["key"], parent=lambda row: row["parent"])
        ],
        empty="No tokens.",
    )


@tokens.command("rotate")
def tokens_rotate(
    session: Context,
    key: Annotated[str | None, typer.Argument(help="Key of the token. Default: the token of the profile.")] = None,
    overlap: Annotated[
        int, typer.Option(min=0, max=168, metavar="HOURS", help="Hours for which the old token stays valid.")
    ] = 24,
    dry_run: DryRun = False,
) -> None:
    """Issue a new token in place of a token. For some hours, both are valid. The new token has the same name, scopes,
    tenant and duration.

    If the profile uses the old token, the new token replaces it in the profile. Otherwise, the command prints the
    secret, which is shown only once. You need a token with scope admin, unless you rotate the token that you use.
    """
    own = session.profile.token
    own_key = own.split("_")[1] if own.count("_") >= 2 else ""
    wanted = key or own_key
    if not wanted.isalnum():
        raise bad_usage(f"{wanted!r} is not the key of a token; see `borgctl tokens list`", key="not a key")
    path = f"/api/v1/tokens/{part(wanted)}/rotate/"
    answer = session.client.post(path, {"overlap_hours": overlap}, dry_run=dry_run)
    if dry_run:
        return session.say(answer, "Dry run: no token was issued.")
    fresh = answer["token"]
    saved = profiles.replace_token(session.profile.name, old=own, new=answer["secret"]) if wanted == own_key else None
    if saved is None:
        return session.say(answer, answer["secret"])
    until = output.when(fresh["expires_at"]) or "it is revoked"
    done = f"Profile {session.profile.name} in {saved} now has token {fresh['key']}, which is valid until {until}."
    return session.say({"token": fresh, "file": str(saved)}, f"{done} Token {wanted} ends in {overlap} h.")


@tokens.command("revoke")
def tokens_revoke(session: Context, key: str) -> None:
    """Revoke a token immediately, with the tokens that were issued with it, the tokens issued with those, and so on.
    You need a token with scope admin, unless KEY is the token that you use.
    """
    if not key.isalnum():
        raise bad_usage(f"{key!r} is not the key of a token; see `borgctl tokens list`", key="not a key")
    answer = session.client.delete(f"/api/v1/tokens/{part(key)}/")
    done = f"Token {key} is revoked."
    if after := answer["successor"]:
        done += f" Token {after}, which replaced it, is not revoked by this."
        done += f" If the old secret was stolen, revoke {after} too."
    return session.say(answer, done)


def _signed_in(client: Client, body: dict[str, Any], *, may_ask: bool) -> Any:
    """Return the answer to a sign-in. If the account has a second factor and `may_ask` is true, ask for a code."""
    try:
        return client.post("/api/v1/login/", body)
    except CommandFailed as failed:
        if not may_ask or (failed.document.get("figures") or {}).get("step") != "confirm":
            raise
    code = typer.prompt("Code of your second factor", err=True).strip()
    return client.post("/api/v1/login/", {**body, "code": code})


def _password(from_stdin: bool) -> str:
    if not from_stdin:
        return str(typer.prompt("Password", hide_input=True, err=True))
    try:
        return sys.stdin.readline().rstrip("\r\n") if sys.stdin else ""
    except UnicodeDecodeError as error:
        raise bad_usage("the password on standard input is not UTF-8; send it as UTF-8") from error


def _only(client: Client, path: str) -> str:
    """Return the name in the only row of a list of the API. Return an empty text if the list has no row or several
    rows.
    """
    rows = list(client.pages(path, at_most=2))
    return str(rows[0]["name"]) if len(rows) == 1 else ""
