"""Commands for locks: small texts that one holder at a time owns."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGINT
from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import CellOption, Commands, Context, DryRun, TenantOption, Yes
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.locked_command import LockedCommand, Signalled, Signals
from portal.cli.paths import part

lock = Commands(
    help="Locks of a tenant in a cell, for example to elect a leader: acquire, release, set, get, watch.\n\n"
    "Each acquisition has a fencing token, which is higher than all earlier ones. Each change of the content has a "
    "sequence number."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the lock, such as shop/leader.")]
Sequence = Annotated[
    int | None, typer.Option("--if-sequence", min=0, help="Only if the lock has this sequence number; 0: a new lock.")
]
Token = Annotated[int | None, typer.Option("--token", min=0, help="Only while the lock is held with this token.")]
_MOST_BYTES = 64 * 1024
# The longest wait of one request. The command repeats it.
_WAIT_S = 30.0
_RELEASE_S = 5.0
_LOOK_S = 0.2
_KEEP_S = 2.0
_AGAIN_S = 1.0


@lock.command("list")
def lock_list(
    session: Context,
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="The beginning of the names.")] = "",
    cell: CellOption = None,
    tenant: TenantOption = None,
) -> None:
    """List locks, their holders and their numbers."""
    return session.table(
        session.client.pages(_path(session, cell, tenant), prefix=prefix or None),
        {
            "LOCK": "name",
            "HOLDER": lambda row: row["holder"] or "–",
            "TOKEN": "token",
            "SEQUENCE": "sequence",
            "CHANGED": lambda row: output.when(row["changed_at"]),
            "BY": "changed_by",
        },
        empty="No locks. Create one with `borgctl lock set NAME TEXT`.",
    )


@lock.command()
def show(session: Context, name: Name, cell: CellOption = None, tenant: TenantOption = None) -> None:
    """Show a lock: its holder, its numbers and its content."""
    row = session.client.get(_path(session, cell, tenant, "files", name))
    if session.json:
        return output.as_json(row)
    output.say(_line(row))
    return output.write(row["content"] + "\n" if row["content"] else "")


@lock.command()
def get(session: Context, name: Name, cell: CellOption = None, tenant: TenantOption = None) -> None:
    """Print the content of a lock, and nothing else."""
    row = session.client.get(_path(session, cell, tenant, "files", name))
    return output.as_json(row) if session.json else output.write(row["content"])


@lock.command("set")
def lock_set(
    session: Context,
    name: Name,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The content.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the content from this file; - for standard input.")
    ] = None,
    if_sequence: Sequence = None,
    token: Token = None,
    cell: CellOption = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Write the content of a lock, and create it if it does not exist. You need not hold the lock."""
    body = {"content": _content(text, file), "if_sequence": if_sequence, "token": token}
    row = session.client.put(_path(session, cell, tenant, "files", name), body, dry_run=dry_run)
    return session.say(row, f"Lock {name} {output.would_be(dry_run)} at sequence number {row['sequence']}.")


@lock.command()
def watch(
    session: Context,
    name: Name,
    after: Annotated[
        int | None,
        typer.Option(
            min=0, help="Wait for a change after this sequence number. Default: print the lock as it is now first."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End after the first change.")] = False,
    cell: CellOption = None,
    tenant: TenantOption = None,
) -> None:
    """Print a lock each time its content changes, until Ctrl-C."""
    path = _path(session, cell, tenant, "files", name)
    try:
        while True:
            query = {} if after is None else {"after": after, "wait_s": _WAIT_S}
            row = session.client.get(path, **query)
            if row["sequence"] == after:
                continue
            after = row["sequence"]
            if session.json:
                output.as_json_line(row)
            else:
                output.say(_line(row))
                output.write(row["content"] + "\n" if row["content"] else "", flush=True)
            if once:
                return
    except KeyboardInterrupt:
        return


@lock.command()
def acquire(
    session: Context,
    name: Name,
    command: Annotated[
        str | None,
        typer.Option("--exec", metavar="COMMAND", help="Run this command with the lock, and then release the lock."),
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the lock. Default: do not wait.")] = 0.0,
    lease: Annotated[
        float, typer.Option(min=5, max=3600, help="Seconds until the lock is free if no one renews it.")
    ] = 15.0,
    content: Annotated[str | None, typer.Option(help="Write this text into the lock.")] = None,
    renew: Annotated[str | None, typer.Option("--session", help="Acquire it for this session.")] = None,
    cell: CellOption = None,
    tenant: TenantOption = None,
) -> None:
    """Acquire a lock. With --exec, renew it while the command runs; its status is that of borgctl.

    The command has the variables BORG_LOCK and BORG_LOCK_TOKEN. If the lock is lost, or borgctl is stopped, the
    process group of the command gets SIGTERM, and SIGKILL after 10 s. In the foreground of a terminal, only its shell
    gets them, and the lock stays held until its lease ends.
    """
    path = _path(session, cell, tenant, "acquire", name)
    body = {"lease_s": lease, "content": content, "session": renew}
    row = _acquired(session, path, body, wait)
    if command is None:
        return session.say(
            row, f"Lock {name} is held with token {row['token']} by session {row['session']} for {row['left_s']:.0f} s."
        )
    sessions = f"{_path(session, cell, tenant)}sessions/{row['session']}/"
    status = _run(session, command, name, row, sessions)
    raise typer.Exit(status)


@lock.command()
def release(
    session: Context,
    name: Name,
    holder: Annotated[str, typer.Option("--session", help="The session that holds it, from `borgctl lock acquire`.")],
    cell: CellOption = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Release a lock of one of your sessions."""
    answer = session.client.post(_path(session, cell, tenant, "release", name), {"session": holder}, dry_run=dry_run)
    return session.say(answer, f"Lock {name} {output.would_be(dry_run)} released.")


@lock.command()
def evict(
    session: Context,
    name: Name,
    yes: Yes = False,
    cell: CellOption = None,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """End the session that holds a lock, so that others can acquire all its locks. Only for owners."""
    if not (yes or dry_run):
        output.sure(f"End the session that holds {name}? For some seconds, its holder may still act as the holder.")
    answer = session.client.post(_path(session, cell, tenant, "evict", name), dry_run=dry_run)
    return session.say(answer, f"The session that held lock {name} {output.would_be(dry_run)} ended.")


@lock.command()
def delete(
    session: Context, name: Name, cell: CellOption = None, tenant: TenantOption = None, dry_run: DryRun = False
) -> None:
    """Delete a lock that is free."""
    return session.delete(_path(session, cell, tenant, "files", name), f"Lock {name}", "deleted", dry_run=dry_run)


def _acquired(session: Context, path: str, body: dict[str, Any], wait_s: float) -> dict[str, Any]:
    """Acquire a lock within `wait_s` seconds, and return it."""
    deadline = time.monotonic() + wait_s
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        try:
            answer: dict[str, Any] = session.client.submit(path, body, wait_s=round(min(left_s, _WAIT_S), 3))
            return answer
        except CommandFailed as failed:
            if failed.code != "lock-held" or time.monotonic() >= deadline:
                raise


def _run(session: Context, command: str, name: str, row: dict[str, Any], sessions: str) -> int:
    """Run a command while the lock is held. Return its status."""
    lease = _Lease(session, sessions, time.monotonic() + max(2.0, row["left_s"]))
    running: LockedCommand | None = None
    with Signals() as signals:
        try:
            with signals.raised():
                # The request that acquired the lock may have waited, so this renewal shows when the lease ends.
                lease.renew()
            running = LockedCommand(command, {"BORG_LOCK": name, "BORG_LOCK_TOKEN": str(row["token"])})
            while (status := running.status(within_s=_LOOK_S)) is None:
                with signals.raised():
                    lease.renew_if_due()
        except Signalled as signalled:
            interrupted = signalled.number == SIGINT
            lease.end_if(running is None or running.stop(by_itself=interrupted, meanwhile=lease.keep))
            raise typer.Exit(_status(-signalled.number)) from signalled
        except CommandFailed:
            lease.end_if(running is None or running.stop())
            raise
        lease.end()
    return _status(status)


class _Lease:
    """The lease of the session that holds the lock. `until`: when it ends, on the monotonic clock."""

    def __init__(self, session: Context, path: str, until: float) -> None:
        self._session, self._path, self.until = session, path, until
        self._renew_at = 0.0
        self._lost = False

    def renew(self, *, within_s: float = 60.0) -> None:
        """Renew the lease. Raises `CommandFailed` if it has ended, or may have ended."""
        asked_at = time.monotonic()
        self._session.client.until = min(self.until - 1.0, asked_at + within_s)
        try:
            lease_s = float(self._session.client.post(self._path)["lease_s"])
        except CommandFailed as failed:
            if not failed.passing:
                raise
            if time.monotonic() < self.until - 1.0:
                self._renew_at = time.monotonic() + _AGAIN_S
                return
            detail = f"the lease could not be renewed, so the command was stopped: {failed.detail}"
            raise CommandFailed("lock-lost", detail) from failed
        self.until, self._renew_at = asked_at + lease_s, asked_at + lease_s / 3

    def renew_if_due(self) -> None:
        if time.monotonic() >= self._renew_at:
            self.renew()

    def keep(self) -> None:
        """Renew the lease if this is due, while the command is being stopped. After a failure, do nothing any more."""
        if not self._lost and time.monotonic() >= self._renew_at:
            try:
                self.renew(within_s=_KEEP_S)
            except CommandFailed:
                self._lost = True

    def end(self) -> None:
        """End the session, which releases its locks."""
        self._session.client.until = max(self.until, time.monotonic() + _RELEASE_S)
        self._session.client.delete(self._path)

    def end_if(self, stopped: bool) -> None:
        """End the session after the command was stopped. If processes of it may still run, leave the session, so that
        its lease runs out.
        """
        if not stopped:
            output.remark("Processes of the command may still run, so the lock stays held until its lease ends.")
            return
        self._session.client.until = time.monotonic() + _RELEASE_S
        with suppress(CommandFailed):  # the lock may be lost already
            self._session.client.delete(self._path)


def _status(code: int) -> int:
    return code if code >= 0 else 128 - code


def _content(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise bad_usage("give the content either as TEXT or with --file", text="missing, or given twice")
    if text is not None:
        return text
    try:
        given = sys.stdin.buffer.read(_MOST_BYTES + 1) if str(file) == "-" else Path(str(file)).read_bytes()
        return given.decode()
    except OSError as error:
        raise bad_usage(f"cannot read {file}: {error.strerror}; give another file", file="cannot be read") from error
    except UnicodeDecodeError as error:
        raise bad_usage(f"{file} is not UTF-8; encode it, for example with base64", file="not text") from error


def _line(row: dict[str, Any]) -> str:
    held = f"held by {row['holder']}" if row["held"] else "free"
    return f"{row['name']}  {held}, token {row['token']}, sequence number {row['sequence']}"


def _path(session: Context, cell: str | None, tenant: str | None, *parts: str) -> str:
    """Return the path of the locks of a tenant, or of one lock: `files`, `acquire` and so on, and its name."""
    path = f"{session.cell_path(cell)}locks/{part(session.tenant(tenant))}/"
    return path + "".join(f"{'/'.join(part(word) for word in one.split('/'))}/" for one in parts)
