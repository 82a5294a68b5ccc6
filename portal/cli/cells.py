"""Commands for cells and their machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from portal.cli import output
from portal.cli.context import CellOption, Commands, Context, DryRun, OptionGroup
from portal.cli.failure import bad_usage
from portal.cli.output import quantity, would_be
from portal.cli.paths import part
from portal.cli.quota import Sizes

app = Commands()
machine = Commands(help="One machine: show, drain, undrain, grow, rotate, revoke, join-token.")

Hostname = Annotated[str, typer.Argument(metavar="MACHINE", help="Host name of the machine.")]


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


@app.command()
def cells(session: Context) -> None:
    """List all cells."""
    return session.table(
        session.client.pages("/api/v1/cells/"),
        {"CELL": "name", "CLUSTER": "cluster", "SITE": "site", "REVISION": "revision"},
        empty="No cells.",
    )


@app.command()
def machines(
    session: Context,
    state: Annotated[
        str | None, typer.Option(help="Show only machines in this state: up, draining, down or removed.")
    ] = None,
    cell: CellOption = None,
) -> None:
    """List the machines of a cell."""
    return session.table(
        session.client.pages(f"{session.cell_path(cell)}machines/", state=state),
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
        empty="No machines." if state else "No machines. Add one with `borgctl machine join-token`.",
    )


@machine.command("show")
def machine_show(session: Context, hostname: Hostname, cell: CellOption = None) -> None:
    """Show all details of a machine."""
    answer = session.client.get(machine_path(session, cell, hostname))
    if session.json:
        return output.as_json(answer)
    shown = {
        **answer,
        "capacity": output.figures(answer["capacity"]),
        "attributes": ", ".join(f"{name}={value}" for name, value in answer["attributes"].items()),
        "quarantined": ", ".join(" ".join(map(str, task.values())) for task in answer["quarantined"]),
        "joined_at": output.when(answer["joined_at"]),
    }
    return output.details(shown.items(), width=14, indent="")


@machine.command("undrain")
def machine_undrain(session: Context, action: MachineAction) -> None:
    """Allow new tasks on a drained machine again."""
    action.post(session, "undrain", "{host} {would} {state}.")


@machine.command("grow")
def machine_grow(session: Context, hostname: Hostname, sizes: Sizes, cell: CellOption = None) -> None:
    """Let the cell use more of a machine's capacity, up to the given amounts. The attribute capacity.claimed of the
    machine shows the capacity that the machine reported.
    """
    capacity = sizes.given()
    if not capacity:
        raise bad_usage(
            "no capacity is given: use --cpu, --ram, --disk, --disk-bandwidth or --accelerators", capacity="not given"
        )
    answer = session.client.post(machine_path(session, cell, hostname, "grow"), {"capacity": capacity})
    return session.say(answer, f"{hostname} now has the capacity {output.figures(answer['capacity'])}.")


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
