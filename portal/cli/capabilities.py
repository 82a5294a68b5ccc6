"""Capabilities: privileges of people and service accounts, asked for, granted by SREs, with an end (§2.5)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import context, output, periods
from portal.cli.client import part
from portal.cli.context import Context, DryRun
from portal.cli.failure import bad_usage
from portal.cli.quota import TenantOption, time_zone_of, whose
from portal.cli.tenants import dry, would
from quota.vocabulary.permissions import CapabilityKind

capability = typer.Typer(help="Capabilities: who has which, what was asked for, and asking. SREs grant them.")

_CAPABILITIES = "/api/v1/capabilities/"
_REQUESTS = f"{_CAPABILITIES}requests/"
Kind = Annotated[CapabilityKind, typer.Argument(metavar="KIND", help=", ".join(CapabilityKind))]
Reason = Annotated[str, typer.Option("--reason", help="What for; whoever answers reads it.")]
OfCell = Annotated[str, typer.Option("--cell", help="In this cell alone, else in every cell.")]
Until = Annotated[
    str | None, typer.Option("--until", help="The last day, or a moment; 90 days, when left out.")
]
Number = Annotated[int, typer.Argument(metavar="REQUEST", help="Its number, of `capability requests`.")]


@capability.command("list")
def capability_list(ctx: typer.Context) -> None:
    """Yours, and those of the members of tenants that you own; all for SREs."""
    ours = context.of(ctx)
    rows = list(ours.client.pages(_CAPABILITIES))
    if ours.json:
        return output.as_json(rows)
    return output.table(
        ("NUMBER", "USER", "KIND", "CELL", "BY", "ENDS", "REASON"),
        [
            (
                row["id"], row["user"], row["kind"], row["cell"] or "every cell", row["granted_by"],
                output.when(row["expires_at"]), row["reason"],
            )
            for row in rows
        ],
        empty="No capability. Ask for one with `borgctl tenant capability ask`.",
    )  # fmt: skip


@capability.command("requests")
def capability_requests(ctx: typer.Context) -> None:
    """What was asked for, and what was answered."""
    ours = context.of(ctx)
    rows = list(ours.client.pages(_REQUESTS))
    if ours.json:
        return output.as_json(rows)
    return output.table(
        ("NUMBER", "TENANT", "USER", "KIND", "CELL", "STATE", "ASKED", "REASON", "ANSWER"),
        [
            (
                row["id"], row["tenant"], row["user"], row["kind"], row["cell"] or "every cell", row["state"],
                output.when(row["asked_at"]), row["reason"], row["answer"],
            )
            for row in rows
        ],
        empty="Nothing was asked for.",
    )  # fmt: skip


@capability.command("ask")
def capability_ask(
    ctx: typer.Context,
    kind: Kind,
    reason: Reason,
    user: Annotated[
        str | None, typer.Option("--user", help="A member or service account of yours; else yourself.")
    ] = None,
    cell: OfCell = "",
    until: Until = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Ask the SREs for a capability.

    Example: borgctl tenant capability ask shell --cell cc --reason "look at what hangs"
    """
    ours = context.of(ctx)
    owner = whose(ours, tenant)
    body = {"tenant": owner, "kind": kind.value, "cell": cell, "reason": reason}
    body |= {"user": user} if user else {}
    body |= _until(ours, until, owner, "until")
    answer = ours.client.post(_REQUESTS, body, **dry(dry_run))
    if ours.json:
        return output.as_json(answer)
    if dry_run:
        return output.say("It would be asked for so; nothing was.")
    return output.say(f"Request {answer['id']} for {kind} is {answer['state']}: an SRE answers it.")


@capability.command("answer")
def capability_answer(
    ctx: typer.Context,
    number: Number,
    grant: Annotated[bool | None, typer.Option("--grant/--refuse", help="Yes or no.")] = None,
    answer: Annotated[str, typer.Option("--answer", help="What whoever asked will read.")] = "",
    until: Annotated[str | None, typer.Option("--until", help="Another end than was asked for.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Grant or refuse what was asked for; for SREs."""
    if grant is None:
        raise bad_usage("yes or no? Give --grant or --refuse", grant="give it, or --refuse")
    ours = context.of(ctx)
    body: dict[str, Any] = {"granted": grant, "answer": answer, **_until(ours, until, None, "until")}
    done = ours.client.put(f"{_REQUESTS}{part(number)}/", body, **dry(dry_run))
    if ours.json:
        return output.as_json(done)
    return output.say(f"Request {number} of {done['user']} {would(dry_run)} {done['state']}.")


@capability.command("grant")
def capability_grant(
    ctx: typer.Context,
    user: Annotated[str, typer.Argument(metavar="USER")],
    kind: Kind,
    reason: Reason,
    cell: OfCell = "",
    until: Until = None,
    dry_run: DryRun = False,
) -> None:
    """Grant one that nobody asked for, or set its end anew; for SREs."""
    ours = context.of(ctx)
    body = {"user": user, "kind": kind.value, "cell": cell, "reason": reason}
    answer = ours.client.post(
        _CAPABILITIES, {**body, **_until(ours, until, None, "expires_at")}, **dry(dry_run)
    )
    if ours.json:
        return output.as_json(answer)
    has = "would have" if dry_run else "has"
    return output.say(f"{user} {has} {kind} until {output.when(answer['expires_at'])}.")


@capability.command("revoke")
def capability_revoke(
    ctx: typer.Context,
    number: Annotated[int, typer.Argument(help="Of `capability list`.")],
    dry_run: DryRun = False,
) -> None:
    """End one, at once; for SREs."""
    ours = context.of(ctx)
    ours.client.delete(f"{_CAPABILITIES}{part(number)}/", **dry(dry_run))
    if ours.json:
        return output.as_json({"removed": not dry_run})
    return output.say(f"Capability {number} {would(dry_run)} revoked.")


def _until(ours: Context, given: str | None, tenant: str | None, field: str) -> dict[str, str]:
    """Days are the tenant's, of SREs' in UTC."""
    if given is None:
        return {}
    home = time_zone_of(ours, tenant) if tenant else "UTC"
    return {field: periods.end("until", given, time_zone=home).isoformat()}
