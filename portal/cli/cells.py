"""Commands for cells and their machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from portal.cli import completions, output
from portal.cli.context import CellOption, Commands, Context, DryRun, OptionGroup
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.output import quantity, would_be
from portal.cli.paths import part
from portal.cli.quota import Sizes

app = Commands()
cell = Commands(help="One cell: create, settings, set, move, delete.")
machine = Commands(help="One machine: show, drain, undrain, grow, rotate, revoke, join-token.")

Hostname = Annotated[
    str, typer.Argument(metavar="MACHINE", help="Host name of the machine.", autocompletion=completions.machines)
]


@dataclass(kw_only=True)
class MachineAction(OptionGroup):
    """The options of a command that changes one machine."""

    hostname: Hostname
    reason: Annotated[str, typer.Option(help="Reason for the action, recorded in the journal.")] = ""
    cell: CellOption = None
    dry_run: DryRun = False

    def post(self, session: Context, verb: str, message: str) -> None:
        """Send the action `verb` for the machine to the portal, and print `message`. In the message, {host} is replaced
        by the host name, {state} by the new state of the machine, and {would} by "is", or by "would be" in a dry run.
        """
        path = machine_path(session, self.cell, self.hostname, verb)
        answer = session.client.post(path, {"reason": self.reason}, dry_run=self.dry_run)
        would = would_be(self.dry_run)
        return session.say(answer, message.format(host=self.hostname, would=would, state=answer["state"]))


@dataclass(kw_only=True)
class ExplainedAction(MachineAction):
    """The options of a command that changes one machine and needs a reason."""

    reason: Annotated[str, typer.Option(help="Reason for the action, shown to other people.")] = field()


@app.command(watch=True)
def cells(
    session: Context,
    deleted: Annotated[bool, typer.Option("--deleted", help="List the deleted cells instead. For SREs.")] = False,
) -> None:
    """List all cells."""
    if deleted:
        return session.table(
            session.client.pages("/api/v1/cells/", deleted=True),
            {
                "CELL": "deleted_name",
                "READ AS": "name",
                "DELETED": lambda row: output.when(row["deleted_at"]),
                "REVISION": "revision",
            },
            empty="No deleted cells.",
        )
    return session.table(
        session.client.pages("/api/v1/cells/"),
        {"CELL": "name", "CLUSTER": "cluster", "SITE": "site", "REVISION": "revision"},
        empty="No cells.",
    )


@cell.command("create")
def cell_create(
    session: Context,
    name: Annotated[str, typer.Argument(help="Name of the cell: lower-case letters, digits and hyphens.")],
    cluster: Annotated[
        str, typer.Option(help="Name of the cluster that the cell belongs to. It is created if it does not exist.")
    ] = "",
    site: Annotated[
        str, typer.Option(help="Name of the site where the machines are. It is created if it does not exist.")
    ] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting; may be given several times.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Create an empty cell. For SREs.

    Example: borgctl cell create prod --cluster zrh-1 --site zurich --set scorer=best-fit
    """
    body = {"name": name, "cluster": cluster, "site": site, "settings": _settings(settings or [])}
    answer = session.client.post("/api/v1/cells/", body, dry_run=dry_run)
    text = f"Cell {name} {would_be(dry_run)} created."
    if not dry_run:
        text += f" Start its master with `systemctl enable --now borg-master@{name}`."
    return session.say(answer, text)


@cell.command("settings")
def cell_settings(session: Context, cell: CellOption = None) -> None:
    """Show all settings of a cell. For SREs."""
    answer = session.client.get(f"{session.cell_path(cell)}settings/")
    if session.json:
        return output.as_json(answer)
    stored = answer["stored"]
    rows = [
        {"name": name, "value": json.dumps(value), "set": "" if name in stored else "default"}
        for name, value in answer["in_force"].items()
    ]
    return session.table(rows, {"SETTING": "name", "VALUE": "value", "": "set"}, empty="No settings.")


@cell.command("set")
def cell_set(
    session: Context,
    settings: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE…", help="Settings. NAME= without a value sets the default.")
    ],
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Change settings of a cell. For SREs.

    Example: borgctl cell set --cell prod reclamation=aggressive stop_share=0.2
    """
    path = f"{session.cell_path(cell)}settings/"
    answer = session.client.patch(path, {"settings": _settings(settings)}, dry_run=dry_run)
    in_force = answer["in_force"]
    shown = ", ".join(f"{name}={json.dumps(in_force[name])}" for name in _settings(settings))
    lines = [f"The settings {'would be' if dry_run else 'are'} now {shown}."]
    if "cpu_factors" in _settings(settings):
        lines += map(_platform, answer["platforms"])
    return session.say(answer, "\n".join(lines))


def _platform(row: dict[str, Any]) -> str:
    """Return a line about the machines of one platform and their CPU factor."""
    name = f"platform {row['platform']}" if row["platform"] else "no platform"
    if not row["machines"]:
        return f"  {name}, factor {row['cpu_factor']:g}: no machine has this platform"
    own, cpu = (quantity("cpu", row[field]) for field in ("machine_cpu", "cpu"))
    machines = output.number(row["machines"], "machine")
    return f"  {name}, factor {row['cpu_factor']:g}: {machines}; {own} cores count as {cpu}"


@cell.command("move")
def cell_move(
    session: Context,
    name: Annotated[str, typer.Argument(help="Name of the cell.")],
    cluster: Annotated[
        str, typer.Option(help='Name of the cluster that has the machines of the cell, or "" for none.')
    ],
    dry_run: DryRun = False,
) -> None:
    """Record that a cell belongs to another cluster. Its machines and tasks do not change. For SREs.

    Example: borgctl cell move prod --cluster zrh-2
    """
    answer = session.client.patch(session.cell_path(name), {"cluster": cluster}, dry_run=dry_run)
    where = f"in cluster {cluster}" if cluster else "in no cluster"
    return session.say(answer, f"Cell {name} {'would be' if dry_run else 'is now'} {where}.")


@cell.command("delete")
def cell_delete(
    session: Context,
    name: Annotated[str, typer.Argument(help="Name of the cell.")],
    yes: Annotated[
        str, typer.Option("--yes", metavar="NAME", help="Do not ask. Give the name of the cell again.")
    ] = "",
    dry_run: DryRun = False,
) -> None:
    """Delete a cell that has no live jobs, no machines that are up, and no sold quota. For SREs.

    The command shows what would be lost, and asks for the name of the cell. SREs can still read the history.

    Example: borgctl cell delete prod
    """
    path = session.cell_path(name)
    found = session.client.get(f"{path}deletion/")
    if not session.json:
        output.details(_losses(found), width=14, indent="")
    confirm = yes
    if dry_run or found["problems"]:
        confirm = yes or name  # nothing is asked, because nothing is deleted
    elif not yes:
        confirm = typer.prompt(f"To delete cell {name}, type its name", err=True)
    answer = session.client.delete(path, confirm=confirm, dry_run=dry_run)
    text = f"Cell {name} {would_be(dry_run)} deleted."
    if not dry_run:
        text += f" Read its history with `--cell {answer['name']}`. Stop its master with"
        text += f" `systemctl disable --now borg-master@{name}`."
    return session.say(answer, text)


def _losses(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what the deletion of a cell would end, as pairs of a name and a text."""
    held, machines = found["quota"], found["machines"]
    yield "cell", found["cell"]
    yield "live jobs", f"{found['jobs']}, and {output.number(found['alloc_sets'], 'alloc set')}"
    yield "live tasks", str(found["tasks"])
    yield "machines", ", ".join(f"{number} {state}" for state, number in machines.items())
    yield "sold quota", f"{output.number(held['grants'], 'grant')}, {output.number(held['orders'], 'waiting order')}"
    yield "tenants", ", ".join(found["tenants"]) or "none"
    yield "packages", str(found["packages"])
    yield "cron jobs", str(found.get("cron_jobs", 0))  # older portals send none
    yield "templates", str(found.get("templates", 0))
    yield "workflows", str(found.get("workflows", 0))
    yield "capabilities", str(found["capabilities"])
    yield "DNS names", f"{found['dns_names']} in {found['dns_zone']}"
    size = output.quantity("ram", found["archive_bytes"])
    yield (
        "history",
        f"{output.number(found['jobs_ended'], 'ended job')}, {found['archive_files']} archived files ({size})",
    )


def _settings(given: Sequence[str]) -> dict[str, Any]:
    """Return the settings in arguments such as `scorer=best-fit`. A value that is not JSON is text."""
    found: dict[str, Any] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not name or not equals:
            raise bad_usage(f"{one!r} is not a setting; write NAME=VALUE", settings="not NAME=VALUE")
        try:
            found[name] = json.loads(text) if text else None
        except json.JSONDecodeError:
            found[name] = text
    return found


@app.command(watch=True)
def machines(
    session: Context,
    state: Annotated[
        str | None, typer.Option(help="Show only machines in this state: up, draining, down or removed.")
    ] = None,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector",
            "-l",
            help="List only machines whose attributes match, for example 'flash=true,rack in (r1,r2)'. hostname, "
            "platform, rack and power_domain are attributes too.",
        ),
    ] = None,
    cell: CellOption = None,
) -> None:
    """List the machines of a cell."""
    return session.table(
        selected_machines(session, cell, selector, state=state),
        {
            "MACHINE": "hostname",
            "STATE": "state",
            "TASKS": "tasks_running",
            "ADDRESS": "address",
            "RACK": "rack",
            "PLATFORM": "platform",
            "CPU": lambda row: quantity("cpu", row["capacity"]["cpu"]),
            "RAM": lambda row: quantity("ram", row["capacity"]["ram"]),
            "REASON": "reason",
        },
        empty="No machines." if state or selector else "No machines. Add one with `borgctl machine join-token`.",
    )


def selected_machines(
    session: Context, cell: str | None, selector: str | None, *, state: str | None = None
) -> Iterator[dict[str, Any]]:
    """Return the machines of a cell whose attributes match a selector. Raises `CommandFailed` if the portal is too old
    to know selectors of machines, and would return all machines.
    """
    path = f"{session.cell_path(cell)}machines/"
    if selector is not None:
        try:
            session.client.get(path, selector="(", limit=1)
        except CommandFailed as failed:
            if failed.code != "invalid":
                raise
        else:
            detail = "this portal is too old for selectors of machines; update it, or name the machines"
            raise CommandFailed("too-old", detail, fields={"selector": detail})
    return session.client.pages(path, state=state, selector=selector)


@machine.command("show", watch=True)
def machine_show(session: Context, hostname: Hostname, cell: CellOption = None) -> None:
    """Show all details of a machine."""
    answer = session.client.get(machine_path(session, cell, hostname))
    if session.json:
        return output.as_json(answer)
    shown = {
        **answer,
        "capacity": _capacity(answer),
        "attributes": ", ".join(f"{name}={value}" for name, value in answer["attributes"].items()),
        "quarantined": ", ".join(" ".join(map(str, task.values())) for task in answer["quarantined"]),
        "joined_at": output.when(answer["joined_at"]),
    }
    for name in ("machine_cpu", "cpu_factor"):  # the capacity names them if they matter
        shown.pop(name, None)
    return output.details(shown.items(), width=14, indent="")


@machine.command("grow")
def machine_grow(session: Context, hostname: Hostname, sizes: Sizes, cell: CellOption = None) -> None:
    """Let the cell use more of a machine's capacity, up to the given amounts. The attribute capacity.claimed of the
    machine shows the capacity that the machine reported. CPU is in cores of the machine, without the CPU factor of
    its platform.
    """
    capacity = sizes.given()
    if not capacity:
        raise bad_usage(
            "no capacity is given: use --cpu, --ram, --disk, --disk-bandwidth or --accelerators", capacity="not given"
        )
    answer = session.client.post(machine_path(session, cell, hostname, "grow"), {"capacity": capacity})
    return session.say(answer, f"{hostname} now has the capacity {_capacity(answer)}.")


def _capacity(machine: dict[str, Any]) -> str:
    """Return the capacity of a machine, with its own cores if they are not normalised ones."""
    text, factor = output.figures(machine["capacity"]), machine.get("cpu_factor", 1)  # older portals have no factor
    if factor == 1:
        return text
    own = quantity("cpu", machine["machine_cpu"])
    return f"{text} (cpu of the machine: {own}; the factor of its platform is {factor:g})"


@machine.command("rotate")
def machine_rotate(session: Context, action: MachineAction) -> None:
    """Send a new secret to a machine when it polls the next time. The old secret becomes invalid as soon as the machine
    uses the new secret.
    """
    action.post(session, "rotate", "{host} {would} given a new secret.")


@machine.command("revoke")
def machine_revoke(session: Context, action: ExplainedAction) -> None:
    """Disconnect a machine immediately. Its secret becomes invalid, and the cell places the machine's tasks
    elsewhere.
    """
    action.post(session, "revoke", "{host} {would} disconnected. It can join again with a new token.")


@machine.command("join-token")
def machine_join_token(
    session: Context,
    uses: Annotated[int, typer.Option(min=1, help="Number of machines that can join with the token.")] = 1,
    ttl: Annotated[int, typer.Option(min=1, help="Seconds until the token expires.")] = 3600,
    cell: CellOption = None,
) -> None:
    """Issue a token with which machines join the cell. The token is shown only once."""
    answer = session.client.post(f"{session.cell_path(cell)}join-tokens/", {"uses": uses, "ttl_s": ttl})
    return session.say(answer, answer["token"])


def machine_path(session: Context, cell: str | None, hostname: str, verb: str = "") -> str:
    """Return the API path of a machine, or of the action `verb` on the machine. Raises `CommandFailed` if `hostname` is
    not a host name.
    """
    if hostname in ("", ".", "..") or "/" in hostname:  # such a name would lead to another path of the API
        raise bad_usage(f"{hostname!r} is not a host name; see `borgctl machines`", machine="not a host name")
    return f"{session.cell_path(cell)}machines/{part(hostname)}{f':{verb}' if verb else '/'}"
