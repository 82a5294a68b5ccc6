"""Commands for capabilities. A capability is a privilege that SREs grant to a person or service account until a date
(§2.5).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import Commands, Context, DryRun, TenantOption
from portal.cli.failure import bad_usage
from portal.cli.output import would_be
from portal.cli.paths import part
from quota.vocabulary.permissions import CapabilityKind

capability = Commands(help="Capabilities, which SREs grant: list, requests, ask, answer, grant, revoke.")

_CAPABILITIES = "/api/v1/capabilities/"
_REQUESTS = f"{_CAPABILITIES}requests/"
Kind = Annotated[CapabilityKind, typer.Argument(metavar="KIND", help=", ".join(CapabilityKind))]
Reason = Annotated[str, typer.Option(help="Purpose of the capability, shown to the person who decides.")]
OfCell = Annotated[str, typer.Option(help="Cell in which the capability is valid. Default: every cell.")]
Until = Annotated[
    str | None, typer.Option(help="Last day of the capability, or the time when it ends. Default: in 90 days.")
]
Number = Annotated[
    int, typer.Argument(metavar="REQUEST", help="Number of the request, as listed by `capability requests`.")
]


@capability.command("list")
def capability_list(session: Context) -> None:
    """List your capabilities and the capabilities of the members of your tenants. SREs see all capabilities."""
    return session.table(
        session.client.pages(_CAPABILITIES),
        {
            "NUMBER": "id",
            "USER": "user",
            "KIND": "kind",
            "CELL": lambda row: row["cell"] or "every cell",
            "BY": "granted_by",
            "ENDS": lambda row: output.when(row["expires_at"]),
            "REASON": "reason",
        },
        empty="No capabilities. Request one with `borgctl tenant capability ask`.",
    )


@capability.command("requests")
def capability_requests(session: Context) -> None:
    """List the requests for capabilities, and the answers of the SREs."""
    return session.table(
        session.client.pages(_REQUESTS),
        {
            "NUMBER": "id",
            "TENANT": "tenant",
            "USER": "user",
            "KIND": "kind",
            "CELL": lambda row: row["cell"] or "every cell",
            "STATE": "state",
            "ASKED": lambda row: output.when(row["asked_at"]),
            "REASON": "reason",
            "ANSWER": "answer",
        },
        empty="No requests.",
    )


@capability.command("ask")
def capability_ask(
    session: Context,
    kind: Kind,
    reason: Reason,
    user: Annotated[
        str | None, typer.Option(help="Member or service account that gets the capability. Default: yourself.")
    ] = None,
    cell: OfCell = "",
    until: Until = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Request a capability from the SREs.

    Example: borgctl tenant capability ask shell --cell cc --reason "look at what hangs"
    """
    owner = session.tenant(tenant)
    body = {"tenant": owner, "kind": kind.value, "cell": cell, "reason": reason}
    body |= {"user": user} if user else {}
    body |= session.end("until", until, owner)
    answer = session.client.post(_REQUESTS, body, dry_run=dry_run)
    if dry_run:
        return session.say(answer, "Dry run: no request was sent.")
    return session.say(answer, f"Request {answer['id']} for {kind} is {answer['state']}: an SRE will answer it.")


@capability.command("answer")
def capability_answer(
    session: Context,
    number: Number,
    grant: Annotated[bool | None, typer.Option("--grant/--refuse", help="Grant or reject the request.")] = None,
    answer: Annotated[str, typer.Option(help="Answer, shown to the person who sent the request.")] = "",
    until: Annotated[
        str | None, typer.Option(help="Last day of the capability, or the time when it ends. Default: as requested.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Grant or reject a request for a capability. For SREs."""
    if grant is None:
        raise bad_usage("no decision is given: use --grant or --refuse", grant="use --grant or --refuse")
    body: dict[str, Any] = {"granted": grant, "answer": answer, **session.end("until", until, None)}
    done = session.client.put(f"{_REQUESTS}{part(number)}/", body, dry_run=dry_run)
    return session.say(done, f"Request {number} of {done['user']} {would_be(dry_run)} {done['state']}.")


@capability.command("grant")
def capability_grant(
    session: Context,
    user: Annotated[str, typer.Argument(metavar="USER")],
    kind: Kind,
    reason: Reason,
    cell: OfCell = "",
    until: Until = None,
    dry_run: DryRun = False,
) -> None:
    """Grant a capability without a request, or change the end of a capability. For SREs."""
    body = {"user": user, "kind": kind.value, "cell": cell, "reason": reason}
    body |= session.end("expires_at", until, None)
    answer = session.client.post(_CAPABILITIES, body, dry_run=dry_run)
    has = "would have" if dry_run else "has"
    return session.say(answer, f"{user} {has} {kind} until {output.when(answer['expires_at'])}.")


@capability.command("revoke")
def capability_revoke(
    session: Context,
    number: Annotated[int, typer.Argument(help="Number of the capability, as in `capability list`.")],
    dry_run: DryRun = False,
) -> None:
    """Revoke a capability immediately. For SREs."""
    session.delete(f"{_CAPABILITIES}{part(number)}/", f"Capability {number}", "revoked", dry_run=dry_run)
