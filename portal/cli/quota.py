"""Quota in the shop: what one has, what there is, what it costs, and buying it (§2.5)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from portal.cli import context, output, periods
from portal.cli.client import part
from portal.cli.context import CellOption, Context, DryRun
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.output import credits_of, quantity
from quota.vocabulary import money
from quota.vocabulary.resources import format_number

quota = typer.Typer(
    help="Buy quota, and see what you have, what you pay and what is left.\n\n"
    "Quantities are written as in job files: --cpu 200 or 500m, --ram 64Gi, --disk 2Ti."
)

TenantOption = Annotated[str | None, typer.Option("--tenant", help="Another tenant than the profile's.")]
BandOption = Annotated[
    str | None, typer.Option("--band", help="production, batch, …; `quota bands` lists them.")
]
Cpu = Annotated[str | None, typer.Option(help="Cores: 200, or 500m.")]
Ram = Annotated[str | None, typer.Option(help="Bytes: 64Gi.")]
Disk = Annotated[str | None, typer.Option(help="Bytes: 2Ti.")]
DiskBandwidth = Annotated[str | None, typer.Option("--disk-bandwidth", help="Bytes a second: 200M.")]
Accelerators = Annotated[str | None, typer.Option(help="Whole ones or thousandths: 2, or 500m.")]
Like = Annotated[
    str | None, typer.Option(metavar="JOB", help="As much as this job asks for; its cell and band too.")
]
From = Annotated[str | None, typer.Option("--from", help="Day or moment; now, when left out.")]
Until = Annotated[str | None, typer.Option("--until", help="The last day, or a moment.")]
Days = Annotated[
    int | None, typer.Option("--days", min=1, max=36_500, help="Instead of --until: for so many days.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


@quota.command("list")
def quota_list(ctx: typer.Context) -> None:
    """Granted and in use, by cell and band."""
    ours = context.of(ctx)
    rows = ours.client.get("/api/v1/quota/")
    if ours.json:
        return output.as_json(rows)
    return output.table(
        ("TENANT", "CELL", "BAND", "RESOURCE", "IN USE", "GRANTED"),
        [
            (row["tenant"], row["cell"], row["band"], name, quantity(name, row["used"][name]), quantity(name, most))
            for row in rows
            for name, most in row["granted"].items()
            if most or row["used"][name]
        ],
        empty="No quota. Priority 0 is free; for more, see `borgctl quota buy --help`.",
    )  # fmt: skip


@quota.command()
def bands(ctx: typer.Context) -> None:
    """The bands of priorities, and their part of the base price."""
    ours = context.of(ctx)
    rows = list(ours.client.pages("/api/v1/quota/bands/"))
    if ours.json:
        return output.as_json(rows)
    return output.table(
        ("BAND", "PRIORITIES", "PROD", "PRICE", "SOLD UP TO"),
        [
            (
                row["name"], f"{row['low']}-{row['high']}", "yes" if row["prod"] else "no",
                f"x {format_number(row['price_milli'] / 1000)}",
                _oversold(row),
            )
            for row in rows
        ],
        empty="No band.",
    )  # fmt: skip


@quota.command()
def prices(ctx: typer.Context, cell: CellOption = None) -> None:
    """The prices of a cell now: credits for one unit and hour, before the band and scarcity."""
    ours = context.of(ctx)
    rows = list(ours.client.pages("/api/v1/quota/prices/", cell=ours.cell(cell), in_force="1"))
    if ours.json:
        return output.as_json(rows)
    return output.table(
        ("CELL", "VERSION", "RESOURCE", "UNIT", "BOUGHT", "USED", "SINCE"),
        [
            (
                row["cell"], row["version"], name, _UNITS.get(name, "1"), credits_of(row["base"].get(name, 0)),
                credits_of(row["usage"].get(name, 0)), output.when(row["valid_from"]),
            )
            for row in rows
            for name in dict.fromkeys([*row["base"], *row["usage"]])
        ],
        empty="Everything is free in this cell.",
    )  # fmt: skip


@quota.command()
def price(
    ctx: typer.Context,
    band: BandOption = None,
    cpu: Cpu = None,
    ram: Ram = None,
    disk: Disk = None,
    disk_bandwidth: DiskBandwidth = None,
    accelerators: Accelerators = None,
    like: Like = None,
    begin: From = None,
    until: Until = None,
    days: Days = None,
    tenant: TenantOption = None,
    cell: CellOption = None,
) -> None:
    """What something would cost, with the parts of its price. Nothing is ordered.

    Example: borgctl quota price --band production --cpu 200 --ram 1Ti --days 30
    """
    ours = context.of(ctx)
    sizes = sizes_given(cpu, ram, disk, disk_bandwidth, accelerators)
    wanted = _wanted(ours, tenant, cell, band, sizes, like, begin, until, days)
    answer = ours.client.post("/api/v1/quota/quotes/", wanted, dry_run="1")
    if ours.json:
        return output.as_json(answer)
    return _show_price(answer)


@quota.command()
def buy(
    ctx: typer.Context,
    band: BandOption = None,
    cpu: Cpu = None,
    ram: Ram = None,
    disk: Disk = None,
    disk_bandwidth: DiskBandwidth = None,
    accelerators: Accelerators = None,
    like: Like = None,
    begin: From = None,
    until: Until = None,
    days: Days = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Order the same again at its end, each time.")
    ] = False,
    note: Annotated[str, typer.Option(help="What for; whoever approves reads it.")] = "",
    at_most: Annotated[
        str | None, typer.Option("--at-most", metavar="CREDITS", help="Only when it costs no more.")
    ] = None,
    key: Annotated[
        str, typer.Option(help="A name of your own: the same again orders once, however often it is run.")
    ] = "",
    yes: Yes = False,
    tenant: TenantOption = None,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Order quota. The price is shown and held before you are asked; --yes buys without asking.

    \b
    Examples:
      borgctl quota buy --band production --cpu 200 --ram 1Ti --days 30
      borgctl quota buy --like web --from 2027-01-01 --until 2027-03-31 --renew
      borgctl quota buy --band batch --cpu 500 --days 7 --at-most 100 --yes
    """
    ours = context.of(ctx)
    most = credits_given("at-most", at_most) if at_most is not None else None
    sizes = sizes_given(cpu, ram, disk, disk_bandwidth, accelerators)
    wanted = _wanted(ours, tenant, cell, band, sizes, like, begin, until, days)
    dry = {"dry_run": "1"} if dry_run else {}
    quote = ours.client.post("/api/v1/quota/quotes/", wanted, **dry)
    if not ours.json:
        _show_price(quote)
    if most is not None and quote["price"] > most:
        raise CommandFailed(
            "too-dear",
            f"it costs {credits_of(quote['price'])} credits, more than {credits_of(most)}: nothing was ordered",
            document={"code": "too-dear", "detail": "dearer than --at-most", "figures": {"quote": quote}},
        )
    if not (yes or dry_run):
        sure(f"Order it for {credits_of(quote['price'])} credits?")
    order = {**wanted, "starts_at": quote["starts_at"], "renew": renew, "note": note}
    if key:
        order["key"] = key
    if not dry_run:
        order["quote"] = quote["id"]
    answer = ours.client.post("/api/v1/quota/orders/", order, **dry)
    if ours.json:
        return output.as_json(answer)
    if dry_run:
        return output.say("It would be ordered so; nothing was.")
    return output.say(f"Order {answer['id']} is {_STATES.get(answer['state'], answer['state'])}.")


@quota.command("calendar")
def calendar_days(
    ctx: typer.Context,
    band: BandOption = None,
    begin: From = None,
    days: Annotated[int, typer.Option(min=1, max=366, help="For so many days.")] = 14,
    resource: Annotated[
        list[str] | None, typer.Option("--resource", help="Only this resource; repeat for more.")
    ] = None,
    tenant: TenantOption = None,
    cell: CellOption = None,
) -> None:
    """What a cell has left to sell at a band, the least on each day of yours.

    Example: borgctl quota calendar --band production --days 30
    """
    ours = context.of(ctx)
    first = periods.day("from", begin) if begin is not None else None
    owner = tenant or ours.profile.tenant
    home = time_zone_of(ours, owner) if owner else "UTC"
    rows = ours.client.get(
        "/api/v1/quota/calendar/",
        cell=ours.cell(cell),
        band=_band(band),
        first=first,
        days=days,
        time_zone=home,
    )
    if ours.json:
        return output.as_json(rows)
    names = resource or [name for name in _SOLD if any(row["limit"].get(name) for row in rows)]
    return output.table(
        ("DAY", *(name.upper() for name in names)),
        [(row["date"], *(quantity(name, row["left"].get(name, 0)) for name in names)) for row in rows],
        empty="No day.",
    )


@quota.command()
def usage(
    ctx: typer.Context,
    band: BandOption = None,
    days: Annotated[int, typer.Option(min=1, max=366, help="Of the last so many days.")] = 14,
    tenant: TenantOption = None,
    cell: CellOption = None,
) -> None:
    """What your jobs really asked for and used of what you own (§2.5).

    TO OWN: when they go on asking as they did. LEANER: when their limits were what they use, and a quarter more.

    Example: borgctl quota usage --band production --days 30
    """
    ours = context.of(ctx)
    answer = ours.client.get(
        "/api/v1/quota/usage/", tenant=whose(ours, tenant), cell=ours.cell(cell), band=_band(band), days=days
    )
    if ours.json:
        return output.as_json(answer)
    if not answer["hours"]:
        return output.say("No job of yours lived there in that time.")
    return output.table(
        ("RESOURCE", "GRANTED", "ASKED AT MOST", "USED P50", "USED P95", "USED AT MOST", "TO OWN", "LEANER"),
        [
            (row["name"], *(quantity(row["name"], row[field]) for field in _USE))
            for row in answer["resources"]
            if any(row[field] for field in _USE)
        ],
        empty="Nothing is known of that time.",
    )


def sure(question: str) -> None:
    """Asks on standard error, so that standard output stays the answer's. Raises `CommandFailed` for a no."""
    if not typer.confirm(question, err=True):
        raise CommandFailed("aborted", "nothing was changed")


def whose(ours: Context, given: str | None) -> str:
    tenant = given or ours.profile.tenant
    if not tenant:
        raise bad_usage("whose? Give --tenant, or set `tenant` in the profile", tenant="not given")
    return tenant


def time_zone_of(ours: Context, tenant: str) -> str:
    """Whose days `--from` and `--until` mean."""
    return ours.client.get(f"/api/v1/tenants/{part(tenant)}/").get("time_zone") or "UTC"


def amounts_shown(amounts: dict[str, int]) -> str:
    return output.figures(amounts) or "nothing"


def parts_table(parts: Sequence[dict[str, Any]]) -> None:
    """How a price came about, a line a resource."""
    output.table(
        ("RESOURCE", "QUANTITY", "HOURS", "BASE", "BAND", "SCARCITY", "CREDITS"),
        [
            (
                one["resource"], quantity(one["resource"], one["quantity"]), _number(one["hours"]),
                credits_of(one["base"]), f"x {_number(one['band_milli'], 1000)}",
                f"x {_number(one['scarcity_milli'], 1000)}", credits_of(one["amount"]),
            )
            for one in parts
        ],
        empty="It is free.",
    )  # fmt: skip


def _show_price(quote: dict[str, Any]) -> None:
    output.say(
        f"{amounts_shown(quote['amounts'])} at {quote['band']} in {quote['cell']} for {quote['tenant']}, "
        f"{output.when(quote['starts_at'])} to {output.when(quote['ends_at'])}:"
    )
    parts_table(quote["parts"])
    output.say(
        f"Price: {credits_of(quote['price'])} credits, held until {output.when(quote['valid_until'])}."
    )


def _wanted(
    ours: Context,
    tenant: str | None,
    cell: str | None,
    band: str | None,
    sizes: dict[str, str],
    like: str | None,
    begin: str | None,
    until: str | None,
    days: int | None,
) -> dict[str, Any]:
    """The body of a quote. What `--like` says, the other options may say otherwise. Raises `CommandFailed`."""
    amounts: dict[str, Any] = {}
    if like is not None:
        job = ours.client.get(ours.job(like).path)
        amounts = {
            name: exact(name, value) for name, value in job["requested"].items() if name in _SOLD and value
        }
        cell, band, tenant = cell or job["cell"], band or job["band"], tenant or job["tenant"]
    amounts |= sizes
    if not amounts:
        raise bad_usage("how much? Give --cpu, --ram, --disk …, or --like JOB", amounts="none given")
    owner = whose(ours, tenant)
    where, at = ours.cell(cell), _band(band)
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    chosen = periods.period(begin, until, days, time_zone=time_zone_of(ours, owner), now=now)
    return {"tenant": owner, "cell": where, "band": at, "amounts": amounts, **chosen.body()}


def sizes_given(*given: str | None) -> dict[str, str]:
    return {name: text for name, text in zip(_SOLD, given, strict=True) if text is not None}


def exact(name: str, value: int) -> str | int:
    """As the API reads quantities: cores and accelerators in thousandths."""
    return f"{value}m" if name in ("cpu", "accelerators") else value


def _band(given: str | None) -> str:
    if not given:
        raise bad_usage("which band? Give --band; `borgctl quota bands` lists them", band="not given")
    return given


def credits_given(name: str, text: str) -> int:
    try:
        return money.parse(text)
    except money.AmountError as error:
        raise bad_usage(f"--{name}: {error}", **{name: "no amount"}) from error


def _number(text: object, by: int = 1) -> str:
    """A whole number or a fraction such as `1441/2`, over `by`, for people."""
    above, _, below = str(text).partition("/")
    return format_number(int(above) / int(below or 1) / by, 6)


_SOLD = ("cpu", "ram", "disk", "disk_bandwidth", "accelerators")
_UNITS = {"cpu": "core", "ram": "GiB", "disk": "GiB", "disk_bandwidth": "GiB/s", "accelerators": "one"}
_USE = ("granted", "asked", "used_p50", "used_p95", "used_max", "suggested", "leaner")
_STATES = {
    "pending": "waiting for approval", "approved": "approved; it begins at its time", "active": "active",
}  # fmt: skip


def _oversold(band: dict[str, Any]) -> str:
    if band["prod"]:
        return "what there is"
    return f"{format_number(band['oversell_milli'] / 1000)} times what there is"
