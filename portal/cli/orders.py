"""Commands for orders of quota: list, show, approve, reject, cancel, change, transfer and renew."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import typer

from portal.cli import output, periods
from portal.cli.context import Commands, Context, DryRun, TenantOption, Yes
from portal.cli.output import credits_of, would_be
from portal.cli.paths import part
from portal.cli.quota import Sizes, Until, amounts_shown, exact, parts_table

app = Commands()

Number = Annotated[int, typer.Argument(metavar="ORDER", min=1, help="Number of the order.")]
Reason = Annotated[str, typer.Option(help="Reason for the change of the order, shown to its tenant and to SREs.")]
_ORDERS = "/api/v1/quota/orders/"


@app.command()
def orders(
    session: Context,
    state: Annotated[
        str | None,
        typer.Option(help="List only orders in this state: pending, approved, active, expired, rejected or cancelled."),
    ] = None,
    tenant: TenantOption = None,
    cell: Annotated[str | None, typer.Option(help="List only orders for this cell.")] = None,
) -> None:
    """List the orders of your tenants. With --state pending, the list contains the orders that wait for a decision."""
    return session.table(
        session.client.pages(_ORDERS, state=state, tenant=tenant, cell=cell),
        {
            "ORDER": "id",
            "TENANT": "tenant",
            "CELL": "cell",
            "BAND": "band",
            "STATE": "state",
            "FROM": lambda row: output.when(row["starts_at"]),
            "UNTIL": lambda row: output.when(row["ends_at"]),
            "CREDITS": lambda row: credits_of(row["price"]),
            "AMOUNTS": lambda row: amounts_shown(row["amounts"]),
        },
        empty="No orders. Place one with `borgctl quota buy`.",
    )


@app.command()
def order(session: Context, number: Number) -> None:
    """Show all details of one order, including the parts of its price."""
    answer = session.client.get(_path(number))
    if session.json:
        return output.as_json(answer)
    output.say(
        f"Order {answer['id']} of {answer['tenant']}: {amounts_shown(answer['amounts'])} at {answer['band']} "
        f"in {answer['cell']}"
    )
    waits = answer["state"] == "pending" and answer.get("approver")
    rows = (
        ("state", answer["state"] + (f", to be decided by {answer['approver']}" if waits else "")),
        ("from", output.when(answer["starts_at"])),
        ("until", output.when(answer["ends_at"])),
        ("counts until", output.when(answer.get("grace_until"))),
        ("renewed", "yes" if answer["renew"] else "no"),
        ("why not renewed", answer.get("renew_error")),
        ("price", f"{credits_of(answer['price'])} credits"),
        ("refunded", f"{credits_of(answer['refunded'])} credits" if answer["refunded"] else ""),
        ("replaces", answer.get("replaces")),
        ("placed", f"{output.when(answer['created_at'])} by {answer['placed_by']}"),
        ("decided", f"{output.when(answer['decided_at'])} by {answer['decided_by']}" if answer["decided_at"] else ""),
        ("reason", answer.get("reason")),
        ("note", answer.get("note")),
        ("ended", output.when(answer.get("ended_at"))),
    )
    output.details(rows)
    return parts_table(answer["parts"])


@app.command()
def approve(session: Context, number: Number, reason: Reason = "", dry_run: DryRun = False) -> None:
    """Approve a pending order that another person placed."""
    _do(session, number, "approve", {"reason": reason}, dry_run=dry_run)


@app.command()
def reject(
    session: Context,
    number: Number,
    reason: Annotated[str, typer.Option(help="Reason for the rejection, shown to the person who placed the order.")],
    dry_run: DryRun = False,
) -> None:
    """Reject a pending order. The credits that were held for the order become available again."""
    _do(session, number, "reject", {"reason": reason}, dry_run=dry_run)


@app.command()
def cancel(session: Context, number: Number, reason: Reason = "", yes: Yes = False, dry_run: DryRun = False) -> None:
    """Cancel an order. The quota of an active order ends now, and you get a refund for the remaining whole days."""
    before = session.client.get(_path(number))
    if not (yes or dry_run):
        would = session.client.post(_path(number) + "cancel/", {"reason": reason}, dry_run=True)
        ends = "Its quota ends now, and " if before["state"] == "active" else ""
        output.sure(f"Cancel order {number}? {ends}{_refund(before, would)}.")
    answer = session.client.post(_path(number) + "cancel/", {"reason": reason}, dry_run=dry_run)
    return session.say(answer, f"Order {number} {would_be(dry_run)} cancelled: {_refund(before, answer)}.")


@app.command()
def change(
    session: Context,
    number: Number,
    sizes: Sizes,
    until: Until = None,
    note: Annotated[str, typer.Option(help="Purpose of the quota, shown to the person who approves the order.")] = "",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Change the quantities or the end of an order, at current prices. Options that you omit keep their values.

    Example: borgctl quota change 17 --cpu 400 --until 2027-06-30
    """
    before = session.client.get(_path(number))
    body: dict[str, Any] = {"note": note}
    if given := sizes.given():
        body["amounts"] = {name: exact(name, value) for name, value in before["amounts"].items() if value} | given
    if until is not None:
        now = dt.datetime.now(dt.UTC).replace(microsecond=0)
        home = session.time_zone(before["tenant"])
        body["ends_at"] = periods.period(None, until, None, time_zone=home, now=now).ends.isoformat()
    if not (yes or dry_run):
        would = session.client.post(_path(number) + "change/", body, dry_run=True)
        output.sure(
            f"Instead of order {number}: {amounts_shown(would['amounts'])} until {output.when(would['ends_at'])} for "
            f"{credits_of(would['price'])} credits, minus the unused part of order {number}?"
        )
    _do(session, number, "change", body, dry_run=dry_run)


@app.command()
def transfer(
    session: Context,
    number: Number,
    to: Annotated[str, typer.Option(help="Tenant that receives the order and pays for its remaining time.")],
    note: Annotated[str, typer.Option(help="Purpose of the transfer.")] = "",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Transfer the remaining time of an order to another tenant, which pays for it. You get a refund."""
    if not (yes or dry_run):
        output.sure(f"Transfer order {number} to {to}? You can no longer submit jobs that need its quota.")
    _do(session, number, "transfer", {"tenant": to, "note": note}, dry_run=dry_run)


@app.command()
def renew(
    session: Context,
    number: Number,
    off: Annotated[bool, typer.Option("--off", help="Stop renewing the order.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Renew an order each time its period ends. The new period has the same quota, at the prices of that time."""
    _do(session, number, "renew", {"renew": not off}, dry_run=dry_run)


def _path(number: int) -> str:
    return f"{_ORDERS}{part(number)}/"


def _refund(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return a text that says which credits the tenant gets back for a cancelled order. `before`, `after`: the order
    before and after the cancellation.
    """
    if before["state"] != "active":
        return f"{credits_of(before['price'])} held credits are available again"
    back = after["refunded"] - before["refunded"]
    return f"{credits_of(back)} credits are refunded" if back else "no credits are refunded"


def _do(session: Context, number: int, verb: str, body: dict[str, Any], *, dry_run: bool) -> None:
    answer = session.client.post(f"{_path(number)}{verb}/", body, dry_run=dry_run)
    would = would_be(dry_run)
    instead = f" instead of order {number}" if answer["id"] != number and not dry_run else ""
    name = f"Order {answer['id']}" if answer["id"] == number or not dry_run else f"The order instead of {number}"
    if verb == "renew":
        return session.say(answer, f"{name} {would} {'renewed' if answer['renew'] else 'not renewed'} at its end.")
    price = credits_of(answer["price"])
    return session.say(answer, f"{name} {would} {answer['state']}{instead}: {price} credits.")
