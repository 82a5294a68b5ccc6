"""Commands for sessions: the browsers in which a person is signed in to the portal."""

from __future__ import annotations

from typing import Annotated

import typer

from portal.cli import output
from portal.cli.context import Commands, Context, DryRun, Yes
from portal.cli.failure import bad_usage

sessions = Commands(help="Sessions: where you are signed in to the portal with a browser.")

_SESSIONS = "/api/v1/sessions/"
User = Annotated[str | None, typer.Option(help="Name of the person; for SREs. Default: yourself.")]


@sessions.command("list")
def sessions_list(session: Context, user: User = None) -> None:
    """List the sessions that are valid now. The session that was used last comes first."""
    return session.table(
        session.client.get(_SESSIONS, user=user)["results"],
        {
            "SESSION": "id",
            "BROWSER": "browser",
            "ADDRESS": "address",
            "SIGNED IN": lambda row: output.when(row["created_at"]),
            "LAST USED": lambda row: output.when(row["last_seen_at"]),
        },
        empty="No sessions.",
    )


@sessions.command()
def end(
    session: Context,
    number: Annotated[int | None, typer.Argument(metavar="SESSION", min=1, help="Number of the session.")] = None,
    every: Annotated[bool, typer.Option("--all", help="End all sessions.")] = False,
    user: User = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """End a session, or all sessions with `--all`. Open live pages and shells close within seconds, and tokens stay
    valid. You need a token with scope admin.
    """
    if (number is None) != every:
        raise bad_usage(
            "give either the number of a session or --all; see `borgctl sessions list`", session="not given"
        )
    if number is not None:
        return session.delete(f"{_SESSIONS}{number}/", f"Session {number}", "ended", dry_run=dry_run)
    if not (yes or dry_run):
        output.sure(f"End all sessions of {user or 'yourself'} in browsers?")
    answer = session.client.delete(_SESSIONS, user=user, dry_run=dry_run)
    said = "Sessions that would end" if dry_run else "Ended sessions"
    return session.say(answer, f"{said}: {answer['ended']}.")
