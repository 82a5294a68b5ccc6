"""Commands for quota: list, prices, calendar, usage and buy (§2.5)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from portal.cli import output, periods
from portal.cli.context import CellOption, Commands, Context, DryRun, OptionGroup, TenantOption, Yes
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.output import credits_of, quantity
from quota.vocabulary import money
from quota.vocabulary.resources import format_number

quota = Commands(
    help="Buy quota, and show your quota, its costs and the quota that is for sale.\n\n"
    "Write quantities as in job files: --cpu 200 or 500m, --ram 64Gi, --disk 2Ti."
)

BandOption = Annotated[str | None, typer.Option(help="Priority band. `quota bands` lists all bands.")]
From = Annotated[
    str | None, typer.Option("--from", help="First day of the period, or the time when it begins. Default: now.")
]
Until = Annotated[str | None, typer.Option(help="Last day of the period, or the time when it ends.")]


@dataclass(kw_only=True)
class Sizes(OptionGroup):
    """The options for amounts of resources, such as `--cpu`, in the order in which the shop shows them."""

    cpu: Annotated[str | None, typer.Option(help="Number of CPU cores, such as 200, or 500m for half a core.")] = None
    ram: Annotated[str | None, typer.Option(help="Memory in bytes, such as 64Gi.")] = None
    disk: Annotated[str | None, typer.Option(help="Disk space in bytes, such as 2Ti.")] = None
    disk_bandwidth: Annotated[str | None, typer.Option(help="Disk bandwidth in bytes per second, such as 200M.")] = None
    accelerators: Annotated[
        str | None, typer.Option(help="Number of accelerators, such as 2, or 500m for half of one.")
    ] = None

    def given(self) -> dict[str, str]:
        return {name: text for name, text in asdict(self).items() if text is not None}


@dataclass(kw_only=True)
class WantedQuota(OptionGroup):
    """The options for the quota that a person wants to order."""

    band: BandOption = None
    sizes: Sizes
    like: Annotated[
        str | None, typer.Option(metavar="JOB", help="Job from which quantities, cell and band are copied.")
    ] = None
    begin: From = None
    until: Until = None
    days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Length of the period in days, instead of --until.")
    ] = None

    def body(self, session: Context, tenant: str | None, cell: str | None) -> dict[str, Any]:
        """Return the body of a request for a quote (a price offer). Values from the job of `--like` are used only if
        the options for them are missing. Raises `CommandFailed` if an option is missing or not valid.
        """
        amounts: dict[str, Any] = {}
        band = self.band
        if self.like is not None:
            job = session.client.get(session.job(self.like).path)
            amounts = {name: exact(name, value) for name, value in job["requested"].items() if name in _SOLD and value}
            cell, band, tenant = cell or job["cell"], band or job["band"], tenant or job["tenant"]
        amounts |= self.sizes.given()
        if not amounts:
            raise bad_usage(
                "no quantity is given: use an option such as --cpu or --ram, or --like JOB", amounts="not given"
            )
        owner = session.tenant(tenant)
        where, at = session.cell(cell), _band(band)
        now = dt.datetime.now(dt.UTC).replace(microsecond=0)
        chosen = periods.period(self.begin, self.until, self.days, time_zone=session.time_zone(owner), now=now)
        return {"tenant": owner, "cell": where, "band": at, "amounts": amounts, **chosen.body()}


@quota.command("list")
def quota_list(session: Context) -> None:
    """List your granted quota for each cell and band, and how much of it your jobs use."""
    rows = session.client.get("/api/v1/quota/")
    if session.json:
        return output.as_json(rows)
    return output.table(
        ("TENANT", "CELL", "BAND", "RESOURCE", "IN USE", "GRANTED"),
        [
            (row["tenant"], row["cell"], row["band"], name, quantity(name, row["used"][name]), quantity(name, most))
            for row in rows
            for name, most in row["granted"].items()
            if most or row["used"][name]
        ],
        empty="No quota. Jobs of priority 0 need no quota. For other jobs, see `borgctl quota buy --help`.",
    )


@quota.command()
def bands(session: Context) -> None:
    """List the priority bands and their price factors."""
    return session.table(
        session.client.pages("/api/v1/quota/bands/"),
        {
            "BAND": "name",
            "PRIORITIES": lambda row: f"{row['low']}-{row['high']}",
            "PROD": lambda row: "yes" if row["prod"] else "no",
            "PRICE": lambda row: f"x {format_number(row['price_milli'] / 1000)}",
            "SOLD UP TO": _oversold,
        },
        empty="No bands.",
    )


@quota.command()
def prices(session: Context, cell: CellOption = None) -> None:
    """List the current prices of a cell, in credits per unit and hour. The factors for band and scarcity are not
    included.
    """
    rows = list(session.client.pages("/api/v1/quota/prices/", cell=session.cell(cell), in_force="1"))
    if session.json:
        return output.as_json(rows)
    return output.table(
        ("CELL", "VERSION", "RESOURCE", "UNIT", "BOUGHT", "USED", "SINCE"),
        [
            (
                row["cell"],
                row["version"],
                name,
                _UNITS.get(name, "1"),
                credits_of(row["base"].get(name, 0)),
                credits_of(row["usage"].get(name, 0)),
                output.when(row["valid_from"]),
            )
            for row in rows
            for name in dict.fromkeys([*row["base"], *row["usage"]])
        ],
        empty="Everything is free in this cell.",
    )


@quota.command()
def price(session: Context, wanted: WantedQuota, tenant: TenantOption = None, cell: CellOption = None) -> None:
    """Show the price of some quota and the parts of the price. Nothing is ordered.

    Example: borgctl quota price --band production --cpu 200 --ram 1Ti --days 30
    """
    answer = session.client.post("/api/v1/quota/quotes/", wanted.body(session, tenant, cell), dry_run=True)
    return output.as_json(answer) if session.json else _show_price(answer)


@quota.command()
def buy(
    session: Context,
    wanted: WantedQuota,
    renew: Annotated[bool, typer.Option("--renew", help="Order the same quota again after each period.")] = False,
    note: Annotated[str, typer.Option(help="Purpose of the quota, shown to the person who approves the order.")] = "",
    at_most: Annotated[
        str | None, typer.Option(metavar="CREDITS", help="Highest price at which to order, in credits.")
    ] = None,
    key: Annotated[
        str, typer.Option(help="Key that you choose. A second order with the same key is not accepted.")
    ] = "",
    yes: Yes = False,
    tenant: TenantOption = None,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Order quota. The command shows the price and asks for confirmation. With --yes, the command does not ask.

    \b
    Examples:
      borgctl quota buy --band production --cpu 200 --ram 1Ti --days 30
      borgctl quota buy --like web --from 2027-01-01 --until 2027-03-31 --renew
      borgctl quota buy --band batch --cpu 500 --days 7 --at-most 100 --yes
    """
    most = credits_given("at-most", at_most) if at_most is not None else None
    body = wanted.body(session, tenant, cell)
    quote = session.client.post("/api/v1/quota/quotes/", body, dry_run=dry_run)
    if not session.json:
        _show_price(quote)
    if most is not None and quote["price"] > most:
        raise CommandFailed(
            "too-dear",
            f"the price is {credits_of(quote['price'])} credits, more than the {credits_of(most)} of --at-most, so "
            "nothing was ordered; order less, or raise --at-most",
            document={
                "code": "too-dear",
                "detail": "the price is higher than --at-most, so nothing was ordered; order less, or raise --at-most",
                "figures": {"quote": quote},
            },
        )
    if not (yes or dry_run):
        output.sure(f"Order it for {credits_of(quote['price'])} credits?")
    order = {**body, "starts_at": quote["starts_at"], "renew": renew, "note": note}
    if key:
        order["key"] = key
    if not dry_run:
        order["quote"] = quote["id"]
    answer = session.client.post("/api/v1/quota/orders/", order, dry_run=dry_run)
    if dry_run:
        return session.say(answer, "Dry run: nothing was ordered.")
    return session.say(answer, f"Order {answer['id']} is {_STATES.get(answer['state'], answer['state'])}.")


@quota.command("calendar")
def calendar_days(
    session: Context,
    band: BandOption = None,
    begin: From = None,
    days: Annotated[int, typer.Option(min=1, max=366, help="Number of days to show.")] = 14,
    resource: Annotated[
        list[str] | None, typer.Option(help="Show only this resource. Repeat the option for more resources.")
    ] = None,
    tenant: TenantOption = None,
    cell: CellOption = None,
) -> None:
    """For each day, show how much quota of a band can be bought for the whole day. Days are in the tenant's time zone.

    Example: borgctl quota calendar --band production --days 30
    """
    first = periods.day("from", begin) if begin is not None else None
    owner = tenant or session.profile.tenant
    home = session.time_zone(owner) if owner else "UTC"
    rows = session.client.get(
        "/api/v1/quota/calendar/", cell=session.cell(cell), band=_band(band), first=first, days=days, time_zone=home
    )
    if session.json:
        return output.as_json(rows)
    names = resource or [name for name in _SOLD if any(row["limit"].get(name) for row in rows)]
    return output.table(
        ("DAY", *(name.upper() for name in names)),
        [(row["date"], *(quantity(name, row["left"].get(name, 0)) for name in names)) for row in rows],
        empty="No days.",
    )


@quota.command()
def usage(
    session: Context,
    band: BandOption = None,
    days: Annotated[int, typer.Option(min=1, max=366, help="Number of days to look back.")] = 14,
    tenant: TenantOption = None,
    cell: CellOption = None,
) -> None:
    """Compare your quota with what your jobs requested and used (§2.5).

    SUGGESTED: the quota that you need if your jobs request as much as in this period. LEANER: the quota that you need
    if you set the limits of your jobs to their usage plus 25 %.

    Example: borgctl quota usage --band production --days 30
    """
    answer = session.client.get(
        "/api/v1/quota/usage/", tenant=session.tenant(tenant), cell=session.cell(cell), band=_band(band), days=days
    )
    if session.json:
        return output.as_json(answer)
    if not answer["hours"]:
        return output.say("Your tenant had no jobs in this cell and band in that time.")
    return output.table(
        ("RESOURCE", "GRANTED", "MAX REQUESTED", "USED P50", "USED P95", "MAX USED", "SUGGESTED", "LEANER"),
        [
            (row["name"], *(quantity(row["name"], row[field]) for field in _USE))
            for row in answer["resources"]
            if any(row[field] for field in _USE)
        ],
        empty="No usage data for that time.",
    )


def amounts_shown(amounts: dict[str, int]) -> str:
    return output.figures(amounts) or "nothing"


def parts_table(parts: Sequence[dict[str, Any]]) -> None:
    """Print a table with the parts of a price, one line for each resource."""
    output.table(
        ("RESOURCE", "QUANTITY", "HOURS", "BASE", "BAND", "SCARCITY", "CREDITS"),
        [
            (
                one["resource"],
                quantity(one["resource"], one["quantity"]),
                _number(one["hours"]),
                credits_of(one["base"]),
                f"x {_number(one['band_milli'], 1000)}",
                f"x {_number(one['scarcity_milli'], 1000)}",
                credits_of(one["amount"]),
            )
            for one in parts
        ],
        empty="It is free.",
    )


def _show_price(quote: dict[str, Any]) -> None:
    output.say(
        f"{amounts_shown(quote['amounts'])} at {quote['band']} in {quote['cell']} for {quote['tenant']}, "
        f"{output.when(quote['starts_at'])} to {output.when(quote['ends_at'])}:"
    )
    parts_table(quote["parts"])
    output.say(f"Price: {credits_of(quote['price'])} credits, held until {output.when(quote['valid_until'])}.")


def exact(name: str, value: int) -> str | int:
    """Return a quantity of the resource `name` in the form that the API reads. For CPU cores and accelerators, `value`
    counts thousandths, and the result has the suffix `m`.
    """
    return f"{value}m" if name in ("cpu", "accelerators") else value


def _band(given: str | None) -> str:
    if not given:
        raise bad_usage("no band is given: use --band; `borgctl quota bands` lists all bands", band="not given")
    return given


def credits_given(name: str, text: str) -> int:
    """Convert an amount in credits to micro-credits. Raises `CommandFailed` if `text` is not an amount. `name`: the
    name of the option, for the error message.
    """
    try:
        return money.parse(text)
    except money.AmountError as error:
        raise bad_usage(f"the value of --{name} is wrong: {error}", **{name: "not an amount"}) from error


def _number(text: object, by: int = 1) -> str:
    """Format the number `text` divided by `by`. `text`: a whole number, or a fraction such as `1441/2`."""
    above, _, below = str(text).partition("/")
    return format_number(int(above) / int(below or 1) / by, 6)


_SOLD = ("cpu", "ram", "disk", "disk_bandwidth", "accelerators")
_UNITS = {"cpu": "core", "ram": "GiB", "disk": "GiB", "disk_bandwidth": "GiB/s", "accelerators": "device"}
_USE = ("granted", "asked", "used_p50", "used_p95", "used_max", "suggested", "leaner")
_STATES = {"pending": "waiting for approval", "approved": "approved; it starts at the ordered time", "active": "active"}


def _oversold(band: dict[str, Any]) -> str:
    if band["prod"]:
        return "the capacity"
    return f"{format_number(band['oversell_milli'] / 1000)} times the capacity"
