"""Commands about the promises of cells, and the credits for broken ones."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import completions, output, periods
from portal.cli.context import CellOption, Commands, Context, DryRun, TenantOption
from portal.cli.failure import bad_usage
from portal.cli.output import credits_of, would_be
from portal.cli.paths import part
from portal.cli.quota import credits_given

app = Commands()
promise_app = Commands()

_CREDITS = "/api/v1/quota/credits"
Number = Annotated[
    int,
    typer.Argument(min=1, metavar="CREDIT", help="Number of the credit.", autocompletion=completions.credit_numbers),
]


@promise_app.command("promise")
def promise(session: Context, cell: CellOption = None) -> None:
    """Show what a cell promises to prod tasks within quota, and what is credited if it breaks the promise."""
    answer = session.client.get(session.cell_path(cell))
    if session.json:
        return output.as_json(answer["promise"])
    return output.say("\n".join(answer["promise"]["sentences"]) or f"Cell {answer['name']} promises nothing.")


@app.command("credits")
def credits_list(
    session: Context,
    tenant: TenantOption = None,
    month: Annotated[
        str | None, typer.Option("--month", help="List only credits on the invoice of this month, such as 2027-01.")
    ] = None,
    cell: Annotated[str | None, typer.Option(help="List only credits of this cell.")] = None,
    expected: Annotated[bool, typer.Option("--expected", help="List what the next invoice would credit now.")] = False,
    totals: Annotated[bool, typer.Option("--totals", help="Show the sums per cell and month. For SREs.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the credits with their evidence as CSV.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of credits to list.")] = 100,
) -> None:
    """List the credits that a tenant got because a cell broke its promise, newest first.

    \b
    Examples:
      borgctl quota credits --month 2027-01
      borgctl quota credits --expected
    """
    shown = [f"--{name}" for name, on in (("expected", expected), ("totals", totals), ("csv", csv)) if on]
    ignored = [f"--{name}" for name, value in (("month", month), ("cell", cell)) if value and (expected or totals)]
    if totals and tenant:
        ignored.append("--tenant")
    if len(shown) > 1 or ignored:
        raise bad_usage(f"{' and '.join([*shown, *ignored])} cannot be combined: use one of them", csv="use one option")
    asked = {"tenant": tenant, "month": periods.month(month) if month is not None else None, "cell": cell}
    if csv:
        return output.write(session.client.download(f"{_CREDITS}.csv", **asked).decode())
    if totals:
        return session.table(
            session.client.get(f"{_CREDITS}/totals/"),
            {
                "CELL": "cell",
                "MONTH": "month",
                "TENANTS": "tenants",
                "JOBS": "jobs",
                "GIVEN": lambda row: credits_of(row["given"]),
                "CORRECTED": lambda row: credits_of(row["corrected"]),
                "TOTAL": lambda row: credits_of(row["total"]),
            },
            empty="Nothing was credited.",
        )
    if expected:
        answer = session.client.get(f"{_CREDITS}/expected/{part(session.tenant(tenant))}/")
        return output.as_json(answer) if session.json else _show_expected(answer)
    return session.table(
        session.client.pages(f"{_CREDITS}/", at_most=limit, **asked),
        {
            "CREDIT": "id",
            "MONTH": "month",
            "TENANT": "tenant",
            "CELL": "cell",
            "JOB": "job",
            "KIND": "kind",
            "CREDITS": lambda row: credits_of(row["amount"]),
            "REASON": "reason",
        },
        empty="No credits.",
    )


@app.command("credit")
def credit(session: Context, number: Number) -> None:
    """Show a credit with its evidence: the hours, tasks, causes and events.

    Example: borgctl quota credit 17
    """
    answer = session.client.get(f"{_CREDITS}/{number}/")
    return output.as_json(answer) if session.json else _show(answer)


@app.command("correct-credit")
def credit_correct(
    session: Context,
    number: Number,
    to: Annotated[str, typer.Option(help="The new amount of the credit, in credits; not the difference.")],
    reason: Annotated[str, typer.Option(help="Reason for the correction. The tenant reads it.")],
    dry_run: DryRun = False,
) -> None:
    """Correct a credit. The correction is a line of its own, and the tenant is notified. For SREs.

    Example: borgctl quota correct-credit 17 --to 2.50 --reason "the machine belongs to the tenant"
    """
    body = {"to": credits_given("to", to), "reason": reason}
    answer = session.client.post(f"{_CREDITS}/{number}/correct/", body, dry_run=dry_run)
    amount = credits_of(answer["amount_now"])
    return session.say(answer, f"Credit {number} {would_be(dry_run)} corrected. Its amount: {amount} credits.")


def _show_expected(answer: dict[str, Any]) -> None:
    output.table(
        ("CELL", "JOB", "KIND", "HOURS", "NOT METERED", "CREDITS"),
        [
            (row["cell"], row["job"], row["kind"], row["hours"], row["unmetered"], credits_of(row["amount"]))
            for row in answer["jobs"]
        ],
        empty="No promise was broken since the last invoice.",
    )
    more = answer["number"] - len(answer["jobs"])
    if more or not answer["complete"]:
        output.say(f"{more} more jobs. " + ("" if answer["complete"] else "Later hours are not included."))
    if answer["jobs"]:
        output.say(f"Total: {credits_of(answer['amount'])} credits.")


def _show(row: dict[str, Any]) -> None:
    output.say(f"Credit {row['id']} of {row['tenant']} for job {row['job']} in cell {row['cell']}, {row['month']}")
    details = [("kind", row["kind"]), ("credited", f"{credits_of(row['amount'])} credits")]
    if row["amount_now"] != row["amount"]:
        details.append(("corrected to", f"{credits_of(row['amount_now'])} credits"))
    if row["reason"]:
        details.append(("reason", row["reason"]))
    output.details(tuple(details))
    output.table(
        ("HOUR", "CAUSE", "TASK", "FROM", "UNTIL", "EVENT", "CREDITS"),
        [line for hour in row["evidence"] for line in _lines(hour)],
        empty="",
    )


def _lines(hour: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return a line for an hour, and one for each of its tasks."""
    what = f"{hour['tasks']} of the job"
    head = (output.when(hour["hour"]), hour["cause"], what, "", "", "", credits_of(hour["amount"]))
    tasks = [
        ("", "", item["task"], item.get("from") or item.get("at"), item.get("until", ""), item.get("event", ""), "")
        for item in hour["items"]
    ]
    return [head, *tasks]
