"""Commands for notifications in the inbox, and for channels. A channel sends notifications to an e-mail address or a
webhook.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import Commands, Context, DryRun, TenantOption
from portal.cli.paths import part

notices = Commands(help="Your inbox of notifications, and channels, which deliver notifications elsewhere.")

_NOTICES = "/api/v1/notices/"
_CHANNELS = f"{_NOTICES}channels/"
Channel = Annotated[int, typer.Argument(metavar="CHANNEL", min=1, help="Number of the channel.")]


@notices.command("list")
def notices_list(
    session: Context,
    unread: Annotated[bool, typer.Option("--unread", help="List only unread notifications.")] = False,
    kind: Annotated[str | None, typer.Option(help="List only notifications whose kind begins with this text.")] = None,
    level: Annotated[
        str | None, typer.Option(help="List only notifications of this level or higher: info, warning or urgent.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="List only this tenant's notifications.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of notifications to list.")] = 20,
    read: Annotated[bool, typer.Option("--read", help="Also mark all notifications of the inbox as read.")] = False,
) -> None:
    """List your notifications, newest first.

    Example: borgctl notices list --unread --read
    """
    query = {"kind": kind, "level": level, "tenant": tenant, "unread": unread}
    rows = list(session.client.pages(_NOTICES, at_most=limit, **query))
    if read and rows:
        session.client.post(f"{_NOTICES}read/", {"up_to": rows[0]["id"], **({"tenant": tenant} if tenant else {})})
    return session.table(
        rows,
        {
            "NOTICE": "id",
            "TIME": lambda row: output.when(row["created_at"]),
            "TENANT": lambda row: row["tenant"] or "(SREs)",
            "LEVEL": "level",
            "KIND": "kind",
            "NEW": lambda row: "new" if row["unread"] else "",
            "SUBJECT": "subject",
        },
        empty="No notifications.",
    )


@notices.command()
def kinds(session: Context) -> None:
    """List all kinds of notifications."""
    return session.table(session.client.get(f"{_NOTICES}kinds/"), {"KIND": "name", "ABOUT": "about"}, empty="No kinds.")


@notices.command()
def channels(session: Context) -> None:
    """List the channels that send notifications, and the state of each channel."""
    return session.table(
        session.client.pages(_CHANNELS),
        {
            "CHANNEL": "id",
            "TENANT": lambda row: row["tenant"] or "(SREs)",
            "KIND": "kind",
            "TO": "target",
            "ABOUT": lambda row: ", ".join(row["kinds"]) or "anything",
            "MIN LEVEL": "level",
            "STATE": _state,
            "ERROR": "error",
        },
        empty="No channels: notifications are only in the inbox. Add a channel with `borgctl notices add`.",
    )


@notices.command()
def add(
    session: Context,
    target: Annotated[str, typer.Argument(metavar="TO", help="E-mail address, or the https://… address of a webhook.")],
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Send only notifications whose kind begins with this text. Repeat for more kinds."),
    ] = None,
    level: Annotated[
        str, typer.Option(help="Send only notifications of this level or higher: info, warning or urgent.")
    ] = "info",
    tenant: TenantOption = None,
    sre: Annotated[bool, typer.Option("--sre", help="Add a channel for the SREs instead of a tenant.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Add a channel, which sends a tenant's notifications to an address. To see the secrets that sign the messages to a
    webhook, use `borgctl notices secret`.

    \b
    Examples:
      borgctl notices add team@example.com --kind order --kind budget
      borgctl notices add https://hooks.example.com/borg --level warning
    """
    body: dict[str, Any] = {
        "tenant": None if sre else session.tenant(tenant),
        "kind": "webhook" if "://" in target else "email",
        "target": target,
        "kinds": kind or [],
        "level": level,
    }
    answer = session.client.post(_CHANNELS, body, dry_run=dry_run)
    if dry_run:
        return session.say(answer, "Dry run: no channel was added.")
    return session.say(answer, f"Channel {answer['id']} is added. Test it with `borgctl notices test {answer['id']}`.")


@notices.command()
def test(session: Context, channel: Channel) -> None:
    """Send a test notification through a channel. If the channel is paused, end the pause. `borgctl notices deliveries`
    shows whether the notification arrived.
    """
    answer = session.client.post(f"{_CHANNELS}{part(channel)}/test/")
    return session.say(answer, "A test notification is on its way.")


@notices.command()
def deliveries(
    session: Context,
    channel: Channel,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of deliveries to list.")] = 20,
) -> None:
    """List the notifications of a channel with the result of each delivery, newest first."""
    return session.table(
        session.client.pages(f"{_CHANNELS}{part(channel)}/deliveries/", at_most=limit),
        {
            "NOTICE": "notice",
            "KIND": "kind",
            "STATE": "state",
            "ATTEMPTS": "attempts",
            "SENT": lambda row: output.when(row["sent_at"]),
            "NEXT": lambda row: output.when(row["next_at"]) if row["state"] == "waiting" else "",
            "ERROR": "error",
            "SUBJECT": "subject",
        },
        empty="No deliveries yet.",
    )


@notices.command()
def secret(
    session: Context,
    channel: Channel,
    rotate: Annotated[bool, typer.Option("--rotate", help="Create a new secret for the channel.")] = False,
    overlap_hours: Annotated[
        int | None, typer.Option(min=0, help="With --rotate: hours for which the old secret stays valid. Default: 24.")
    ] = None,
) -> None:
    """Show the secrets with which the portal now signs the messages to a webhook, newest first. For owners."""
    path = f"{_CHANNELS}{part(channel)}/secret/"
    body = {"overlap_hours": overlap_hours} if overlap_hours is not None else {}
    answer = session.client.post(path, body) if rotate else session.client.get(path)
    if session.json:
        return output.as_json(answer)
    for one in answer["secrets"]:
        output.say(one)
    return None


@notices.command()
def remove(session: Context, channel: Channel, dry_run: DryRun = False) -> None:
    """Remove a channel. Its notifications stay in the inbox."""
    session.delete(f"{_CHANNELS}{part(channel)}/", f"Channel {channel}", dry_run=dry_run)


def _state(row: dict[str, Any]) -> str:
    if not row["enabled"]:
        return "off"
    return "paused" if row["paused_at"] else "failing" if row["failing_since"] else "on"
