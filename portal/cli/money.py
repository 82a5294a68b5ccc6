"""Commands about the money of tenants: balances, budgets, the ledger, invoices and costs."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import output, periods
from portal.cli.context import Commands, Context, DryRun, TenantOption
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.output import credits_of
from portal.cli.paths import part
from portal.cli.quota import credits_given

app = Commands()

_QUOTA = "/api/v1/quota/"
Month = Annotated[str | None, typer.Option("--month", help="Month, for example 2027-01. Default: the current month.")]


@app.command()
def balance(session: Context) -> None:
    """Show the credits of each of your tenants: the available credits, the credits held for orders, the credits owed,
    and the credits spent in this month.
    """
    return session.table(
        session.client.pages(f"{_QUOTA}balances/"),
        {
            "TENANT": "tenant",
            **{name.upper(): partial(_credits, name) for name in ("available", "held", "owed", "spendable")},
            "MONTH": lambda row: row["running"]["month"],
            "SPENT": lambda row: credits_of(row["running"]["spent"]),
            "OF": lambda row: credits_of(row["running"]["limit"]),
            "PERCENT": lambda row: f"{row['running']['percent']} %",
        },
        empty="You may not see the money of any tenant.",
    )


@app.command()
def budget(
    session: Context,
    tenant: TenantOption = None,
    monthly: Annotated[
        str | None, typer.Option(help="Spending limit in credits per month, or `none` for no limit.")
    ] = None,
    alert: Annotated[
        list[int] | None,
        typer.Option(min=1, max=1000, help="Send a notification at this percentage of the limit. Repeat for more."),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(help="Action at 100 % of the limit: none, stop-buying, stop-submitting or drop (demote jobs)."),
    ] = None,
    overdraft: Annotated[
        str | None, typer.Option(help="Credits by which the balance may be below zero. For SREs.")
    ] = None,
    grant: Annotated[str | None, typer.Option(help="Credits to give to the tenant. For SREs.")] = None,
    hand_down: Annotated[str | None, typer.Option(help="Credits to transfer to the tenant of --to.")] = None,
    to: Annotated[str | None, typer.Option(help="With --hand-down: the tenant that gets the credits.")] = None,
    text: Annotated[str, typer.Option(help="With --grant or --hand-down: purpose of the credits.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Show or change the budget of a tenant. Options that you omit keep their values.

    \b
    Examples:
      borgctl quota budget --monthly 5000 --alert 80 --alert 100 --action stop-buying
      borgctl quota budget --tenant org --hand-down 2000 --to team --text "first quarter"
    """
    path = f"{_QUOTA}budgets/{part(session.tenant(tenant))}/"
    watched = _watched(monthly, alert, action, overdraft)
    if sum((bool(watched), grant is not None, hand_down is not None)) > 1:
        raise bad_usage(
            "settings, --grant and --hand-down cannot be combined: use one of them", budget="use one of them"
        )
    if (hand_down is None) != (to is None):
        raise bad_usage("--hand-down and --to are needed together: give both", to="give both")
    if grant is not None:
        body = {"amount": credits_given("grant", grant), "text": text}
        answer = session.client.post(f"{path}grants/", body, dry_run=dry_run)
    elif hand_down is not None:
        body = {"to": to, "amount": credits_given("hand-down", hand_down), "text": text}
        answer = session.client.post(f"{path}hand-down/", body, dry_run=dry_run)
    elif watched:
        now = session.client.get(path)
        kept = {name: now[name] for name in ("monthly", "alerts", "action")}
        answer = session.client.put(path, {**kept, **watched}, dry_run=dry_run)
    else:
        answer = session.client.get(path)
    return output.as_json(answer) if session.json else _show_budget(answer)


@app.command()
def ledger(
    session: Context,
    tenant: TenantOption = None,
    kind: Annotated[
        str | None, typer.Option(help="List only postings of this kind, such as grant, hold, charge, refund or usage.")
    ] = None,
    order: Annotated[int | None, typer.Option(min=1, help="List only postings of this order.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of postings to list.")] = 50,
) -> None:
    """List the postings of the tenant's ledger, newest first. Each posting shows its accounts."""
    return session.table(
        session.client.pages(f"{_QUOTA}ledger/", at_most=limit, tenant=tenant, kind=kind, order=order),
        {
            "POSTING": "id",
            "TIME": lambda row: output.when(row["occurred_at"]),
            "KIND": "kind",
            "TENANT": "tenant",
            "ORDER": "order",
            "ENTRIES": lambda row: ", ".join(f"{_account(one)} {credits_of(one['amount'])}" for one in row["entries"]),
            "TEXT": "text",
        },
        empty="No postings.",
    )


@app.command()
def invoices(session: Context, tenant: TenantOption = None) -> None:
    """List the invoices of past months, newest first."""
    return session.table(
        session.client.pages(f"{_QUOTA}invoices/", tenant=tenant),
        {
            "INVOICE": "number",
            "TENANT": "tenant",
            "MONTH": "month",
            "CHARGED": lambda row: credits_of(row["charged"]),
            "REFUNDED": lambda row: credits_of(row["refunded"]),
            "TOTAL": lambda row: credits_of(row["total"]),
            "ISSUED": lambda row: output.when(row["issued_at"]),
        },
        empty="No invoices yet. `borgctl quota invoice` shows a preview for the current month.",
    )


@app.command()
def invoice(
    session: Context,
    number: Annotated[
        str | None,
        typer.Argument(metavar="[NUMBER]", help="Number of the invoice. Default: a preview for the month of --month."),
    ] = None,
    month: Month = None,
    pdf: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the invoice to a PDF file.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the lines of the invoice as CSV.")] = False,
    tenant: TenantOption = None,
) -> None:
    """Show an invoice and its lines.

    Example: borgctl quota invoice 2027-000017 --pdf january.pdf
    """
    if number is None:
        if pdf is not None or csv:
            raise bad_usage(
                "no invoice number is given: give one from the list of `borgctl quota invoices`", number="not given"
            )
        path = f"{_QUOTA}invoices/drafts/{part(session.tenant(tenant))}/"
        answer = session.client.get(path, month=_month(month))
    elif month is not None:
        raise bad_usage("an invoice number and --month cannot be combined: use one of them", month="use one of them")
    else:
        path = f"{_QUOTA}invoices/{part(number)}"
        if pdf is not None:
            return _write(pdf, session.client.download(f"{path}.pdf"))
        if csv:
            return output.write(session.client.download(f"{path}.csv").decode())
        answer = session.client.get(f"{path}/")
    if session.json:
        return output.as_json(answer)
    name = f"Invoice {answer['number']}" if answer["number"] != "draft" else "Preview of the invoice"
    output.say(f"{name} of {answer['tenant']} for {answer['month']} ({answer['time_zone']})")
    output.table(
        ("TIME", "ITEM", "CREDITS"),
        [(output.when(line["at"]), line["text"], credits_of(line["amount"])) for line in answer["lines"]],
        empty="Nothing was charged.",
    )
    return output.say(f"Total: {credits_of(answer['total'])} credits.")


@app.command()
def costs(
    session: Context,
    by: Annotated[str, typer.Option(help="Group the costs by job, team, band, cell or label.")] = "job",
    label: Annotated[str | None, typer.Option(help="With --by label: the key of the label.")] = None,
    month: Month = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the costs as CSV.")] = False,
    tenant: TenantOption = None,
) -> None:
    """Show what quota and usage cost in a month, highest costs first.

    Example: borgctl quota costs --by label --label team --month 2027-01
    """
    owner = tenant or session.profile.tenant or None
    asked = {"by": by, "tenant": owner, "label": label, "month": _month(month)}
    if csv:
        return output.write(session.client.download(f"{_QUOTA}costs.csv", **asked).decode())
    costs = {name.upper(): partial(_credits, name) for name in ("quota", "unused", "usage", "total")}
    return session.table(
        session.client.get(f"{_QUOTA}costs/", **asked),
        [(by.upper(), lambda row: row["key"] or "-"), *costs.items()],
        empty="Nothing was spent.",
    )


def _credits(name: str, row: dict[str, Any]) -> str:
    return credits_of(row[name])


def _month(given: str | None) -> str | None:
    return periods.month(given) if given is not None else None


def _watched(monthly: str | None, alert: list[int] | None, action: str | None, overdraft: str | None) -> dict[str, Any]:
    given: dict[str, Any] = {"action": action} if action is not None else {}
    if monthly is not None:
        given["monthly"] = None if monthly == "none" else credits_given("monthly", monthly)
    if alert:
        given["alerts"] = sorted(set(alert))
    if overdraft is not None:
        given["overdraft"] = credits_given("overdraft", overdraft)
    return given


def _show_budget(row: dict[str, Any]) -> None:
    running = row["running"]
    rows = (
        ("available", f"{credits_of(row['available'])} credits"),
        ("held", f"{credits_of(row['held'])} for orders that have not begun"),
        ("owed", f"{credits_of(row['owed'])} for usage" if row["owed"] else ""),
        ("monthly", "no limit" if row["monthly"] is None else f"{credits_of(row['monthly'])} credits"),
        ("spent", f"{credits_of(running['spent'])} in {running['month']}, {running['percent']} % of the budget"),
        ("alerts at", ", ".join(f"{one} %" for one in row["alerts"]) or "none"),
        ("at 100 %", row["action"] + (", in force" if running["exhausted"] else "")),
        ("overdraft", f"{credits_of(row['overdraft'])} credits" if row["overdraft"] else "none"),
    )
    output.say(f"{row['tenant']} ({row['time_zone']})")
    output.details(rows)


def _account(entry: dict[str, Any]) -> str:
    return f"{entry['account']} of {entry['tenant']}" if entry["tenant"] else str(entry["account"])


def _write(path: Path, content: bytes) -> None:
    """Write `content` to the file `path`, or to standard output if the path is `-`. Raises `CommandFailed` if the
    content cannot be written.
    """
    if str(path) == "-":
        sys.stdout.buffer.write(content)
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CommandFailed("no-file", f"cannot write {path}: {error.strerror}; choose another file") from error
    output.say(f"{path}: {output.number(len(content), 'byte')}.")
