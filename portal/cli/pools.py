"""Commands for machine pools, and for attributes that SREs set on machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from portal.cli import completions, output
from portal.cli.cells import machine
from portal.cli.context import CellOption, Commands, Confirm, Context, DryRun, OptionGroup, Yes
from portal.cli.drains import MachineSelector, machines_matching
from portal.cli.failure import bad_usage
from portal.cli.paths import part

pool = Commands(help="Machine pools: write, change, list, show and delete them, and put machines into them.")

Name = Annotated[str, typer.Argument(metavar="POOL", help="Name of the pool.", autocompletion=completions.pools)]
Description = Annotated[str | None, typer.Option(help="Description, shown to other people.")]
Members = Annotated[str | None, typer.Option("--members", metavar="SELECTOR", help="Machines that match belong to it.")]
Tenants = Annotated[
    list[str] | None, typer.Option("--tenant", help='A tenant of the pool. Give it once per tenant, or "" for none.')
]
Dedicated = Annotated[
    bool | None, typer.Option("--dedicated/--shared", help="Whether only tasks of these tenants run there.")
]
Use = Annotated[str | None, typer.Option(help="Whether tasks of these tenants may, prefer to or must run there.")]
Others = Annotated[
    str | None,
    typer.Option(
        help="What running tasks of other tenants do: stay until they end, or leave within their disruption budgets."
    ),
]
Machines = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MACHINE]...", help="Host names of the machines.", autocompletion=completions.machines),
]
Rack = Annotated[str | None, typer.Option(help="All machines of this rack.")]
Reason = Annotated[str, typer.Option(help="Reason, recorded in the journal.")]
PowerDomain = Annotated[str | None, typer.Option(help="All machines of this power domain.")]
_SHOWN = 10
_USES = {
    "may": "tasks of these tenants run there or elsewhere",
    "prefer": "tasks of these tenants run outside the pool only if no machine of the pool has room without preemption",
    "must": "tasks of these tenants must run there",
}


@dataclass(kw_only=True)
class PoolOptions(OptionGroup):
    """The options with which a pool is written."""

    description: Description = None
    members: Members = None
    tenants: Tenants = None
    dedicated: Dedicated = None
    use: Use = None
    others: Others = None
    confirm: Confirm = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of a request for the options that were given."""
        given = {
            "description": self.description,
            "selector": self.members,
            "tenants": [one for one in self.tenants if one] if self.tenants else None,
            "dedicated": self.dedicated,
            "use": self.use,
            "others": self.others,
            "confirm": self.confirm,
        }
        return {name: value for name, value in given.items() if value is not None}


@pool.command("add")
def pool_add(
    session: Context, name: Name, *, options: PoolOptions, cell: CellOption = None, dry_run: DryRun = False
) -> None:
    """Write a machine pool. With --dry-run, show which running tasks it affects.

    A dedicated pool takes only tasks of its tenants. Tasks of other tenants that run there stay until they end, or
    leave within the disruption budgets of their jobs.
    """
    body = {"name": name, **options.fields()}
    answer = session.client.post(f"{session.cell_path(cell)}pools/", body, dry_run=dry_run)
    return _answer(session, answer, dry_run)


@pool.command("change")
def pool_change(
    session: Context, name: Name, *, options: PoolOptions, cell: CellOption = None, dry_run: DryRun = False
) -> None:
    """Change a machine pool. With --dry-run, show which running tasks the change affects."""
    body = options.fields()
    if not body:
        raise bad_usage("nothing to change: give an option such as --tenant", tenant="give something to change")
    return _answer(session, session.client.patch(_path(session, cell, name), body, dry_run=dry_run), dry_run)


@pool.command("list")
def pool_list(session: Context, cell: CellOption = None) -> None:
    """List the machine pools of a cell. Tenants see the pools that name them."""
    return session.table(
        session.client.pages(f"{session.cell_path(cell)}pools/"),
        {
            "POOL": "name",
            "MACHINES": lambda row: f"{row['up']} of {row['machines']} up",
            "TENANTS": lambda row: ",".join(row["tenants"]),
            "DEDICATED": lambda row: "yes" if row["dedicated"] else "",
            "USE": "use",
            "TASKS": lambda row: "" if row["tasks"] is None else row["tasks"],
            "OF OTHERS": lambda row: row["foreign"] or "",
            "DESCRIPTION": "description",
        },
        empty="No machine pool.",
    )


@pool.command("show")
def pool_show(session: Context, name: Name, cell: CellOption = None) -> None:
    """Show a machine pool: its machines and tenants, and the running tasks of other tenants there."""
    return _answer(session, session.client.get(_path(session, cell, name)), dry_run=False)


@pool.command("delete")
def pool_delete(session: Context, name: Name, cell: CellOption = None, dry_run: DryRun = False) -> None:
    """Delete a machine pool. Its machines stay, and all tenants may use them."""
    session.client.delete(_path(session, cell, name), dry_run=dry_run)
    return session.say({"name": name}, f"Machine pool {name} {output.would_be(dry_run)} deleted.")


@pool.command("assign")
def pool_assign(
    session: Context,
    name: Name,
    hostnames: Machines = None,
    rack: Rack = None,
    power_domain: PowerDomain = None,
    selector: MachineSelector = None,
    reason: Reason = "",
    confirm: Confirm = None,
    cell: CellOption = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Put machines into a pool, whatever its selector says."""
    chosen = _chosen(session, cell, hostnames, rack, power_domain, selector, "Assign", sure=yes or dry_run)
    body = {**chosen, "pool": name, "reason": reason, "confirm": confirm}
    return _changed(session, cell, "pool", body, dry_run)


@pool.command("release")
def pool_release(
    session: Context,
    hostnames: Machines = None,
    rack: Rack = None,
    power_domain: PowerDomain = None,
    selector: MachineSelector = None,
    reason: Reason = "",
    confirm: Confirm = None,
    cell: CellOption = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Take back the assignment of machines to a pool. The selectors of pools decide about them again."""
    chosen = _chosen(session, cell, hostnames, rack, power_domain, selector, "Release", sure=yes or dry_run)
    return _changed(session, cell, "pool", {**chosen, "pool": "", "reason": reason, "confirm": confirm}, dry_run)


@machine.command("attributes")
def machine_attributes(
    session: Context,
    hostnames: Machines = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set this attribute. May be repeated.")
    ] = None,
    removed: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Remove this attribute. May be repeated.")
    ] = None,
    rack: Rack = None,
    power_domain: PowerDomain = None,
    selector: MachineSelector = None,
    reason: Reason = "",
    confirm: Confirm = None,
    cell: CellOption = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Set or remove attributes of machines, beside those that the machines report. Constraints of jobs and selectors
    use them. An attribute that you set replaces a reported one of the same name until you remove it.
    """
    given = {}
    for text in values or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise bad_usage(f"--set {text!r} has no '='; write it as NAME=VALUE", set="has no '='")
        given[key] = value
    chosen = _chosen(session, cell, hostnames, rack, power_domain, selector, "Change", sure=yes or dry_run)
    body = {**chosen, "set": given, "unset": removed or [], "reason": reason, "confirm": confirm}
    return _changed(session, cell, "attributes", body, dry_run)


def _chosen(
    session: Context,
    cell: str | None,
    hostnames: list[str] | None,
    rack: str | None,
    power_domain: str | None,
    selector: str | None,
    verb: str,
    *,
    sure: bool,
) -> dict[str, Any]:
    """Return the part of a request that chooses machines. Raises `CommandFailed` unless they are chosen in one way."""
    if sum((bool(hostnames), bool(rack), bool(power_domain), selector is not None)) != 1:
        raise bad_usage(
            "the machines are missing or chosen twice: give names, --rack, --power-domain or --selector",
            machine="give names, --rack, --power-domain or --selector",
        )
    if selector is not None:
        return {"machines": machines_matching(session, cell, selector, verb, sure=sure)}
    given = {"machines": hostnames, "rack": rack, "power_domain": power_domain}
    return {name: value for name, value in given.items() if value}


def _changed(session: Context, cell: str | None, action: str, body: dict[str, Any], dry_run: bool) -> None:
    answer = session.client.post(f"{session.cell_path(cell)}machines:{action}", body, dry_run=dry_run)
    names = answer["changed"]
    shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    verb = "Would change" if dry_run else "Changed"
    text = f"{verb} {len(names)} of {output.number(answer['chosen'], 'machine')}"
    return session.say(answer, f"{text}: {shown}." if names else f"{text}.")


def _path(session: Context, cell: str | None, name: str) -> str:
    return f"{session.cell_path(cell)}pools/{part(name)}/"


def _answer(session: Context, row: dict[str, Any], dry_run: bool) -> None:
    if session.json:
        return output.as_json(row)
    output.say(f"Machine pool {row['name']}" + (f": {row['description']}" if row["description"] else ""))
    preview = row["preview"] or {}
    output.details(
        (
            ("machines", f"{output.number(row['machines'], 'machine')}, {row['up']} up"),
            ("selector", row["selector"]),
            ("tenants", ", ".join(row["tenants"])),
            ("dedicated", "yes, only to these tenants" if row["dedicated"] else "no"),
            ("use", _USES.get(row["use"], row["use"]) if row["tenants"] else ""),
            ("others", f"running tasks of other tenants {row['others']}" if row["dedicated"] else ""),
            ("tasks", f"{row['tasks']}, of which {row['foreign']} are of other tenants" if preview else ""),
            ("outside", f"{preview['outside']} tasks of its tenants run elsewhere" if preview.get("outside") else ""),
        )
    )
    jobs = preview.get("foreign", [])
    for job in jobs[:_SHOWN]:
        output.say(f"  {job['job']}: {output.number(job['tasks'], 'task')}, {job['may']} may be down at once")
    if preview and preview["foreign_jobs"] > len(jobs[:_SHOWN]):
        output.say(f"  … and {output.number(preview['foreign_jobs'] - len(jobs[:_SHOWN]), 'more job')}")
    if dry_run:
        output.say("This is a preview. Without --dry-run, the pool is written.")
    return None
