"""Commands for the secrets of a tenant. No command prints a value."""

from __future__ import annotations

import base64
import getpass
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import completions, output
from portal.cli.context import Commands, Context, DryRun, TenantOption, Yes
from portal.cli.failure import bad_usage
from portal.cli.output import would_be
from portal.cli.paths import part
from portal.cli.tenants import path_of

secret = Commands(
    help="Secrets of a tenant, which jobs get as files or variables: set, list, show, grant, revoke, delete.\n\n"
    "A value can be set, but never read back. Operators set values; owners also grant and delete."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the secret.", autocompletion=completions.secrets)]
Jobs = Annotated[
    str, typer.Argument(metavar="JOBS", help="Name of a job, or the beginning of names and *, such as 'shop-*'.")
]
OnlyCell = Annotated[str, typer.Option("--cell", help="Only jobs in this cell. Default: in all cells.")]
_MOST_BYTES = 64 * 1024


@secret.command("set")
def secret_set(
    session: Context,
    name: Name,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the value from this file; - for standard input.")
    ] = None,
    keep_newline: Annotated[
        bool, typer.Option("--keep-newline", help="Keep a line break at the end of standard input.")
    ] = False,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Set a value, which becomes the newest version. Without --file, the command asks for the value, or reads it from
    standard input.

    Running tasks that use the newest version as a file get it within seconds. Variables change at the next start:
    `borgctl restart JOB`.
    """
    value = _value(file, keep_newline=keep_newline)
    body = {"value_base64": base64.b64encode(value).decode()}
    owner = session.tenant(tenant)
    answer = session.client.put(_path(owner, name), body, dry_run=dry_run)
    jobs = len(answer["used_by"])
    used = f" Jobs, cron jobs and workflows that use it: {jobs}." if jobs else ""
    grants = "" if answer["grants"] else f" No job may use it yet: `borgctl secret grant {name} JOB`."
    return session.say(
        answer, f"Secret {name} of {owner} {would_be(dry_run)} version {answer['newest_version']}.{used}{grants}"
    )


@secret.command("list")
def secret_list(session: Context, tenant: TenantOption = None) -> None:
    """List the secrets of a tenant, without their values."""
    return session.table(
        session.client.pages(_path(session.tenant(tenant))),
        {
            "SECRET": "name",
            "VERSION": "newest_version",
            "SET": lambda row: output.when(row["versions"][0]["created_at"]) if row["versions"] else "–",
            "BY": lambda row: row["versions"][0]["created_by"] if row["versions"] else "–",
            "BYTES": lambda row: row["versions"][0]["size_bytes"] if row["versions"] else "–",
            "FINGERPRINT": lambda row: row["versions"][0]["fingerprint"] if row["versions"] else "–",
            "GRANTED TO": lambda row: ", ".join(_grant(grant) for grant in row["grants"]) or "no job",
        },
        empty="No secrets. Set one with `borgctl secret set NAME`.",
    )


@secret.command()
def show(session: Context, name: Name, tenant: TenantOption = None) -> None:
    """Show the versions and grants of a secret, and what uses it: live jobs, cron jobs and workflows."""
    answer = session.client.get(_path(session.tenant(tenant), name))
    if session.json:
        return output.as_json(answer)
    output.say(f"{answer['tenant']}/{answer['name']}  version {answer['newest_version']}")
    granted = ", ".join(_grant(grant) for grant in answer["grants"])
    output.say(f"  granted to {granted}" if granted else f"  granted to no job; `borgctl secret grant {name} JOB`")
    used = ", ".join(f"{use['cell']}/{use['job']}" for use in answer["used_by"])
    output.say(f"  used by {used}" if used else "  no live job, cron job or workflow uses it")
    return output.table(
        ["VERSION", "SET", "BY", "BYTES", "FINGERPRINT"],
        [
            (row["version"], output.when(row["created_at"]), row["created_by"], row["size_bytes"], row["fingerprint"])
            for row in answer["versions"]
        ],
        empty="No versions.",
    )


@secret.command()
def grant(
    session: Context, name: Name, jobs: Jobs, cell: OnlyCell = "", tenant: TenantOption = None, dry_run: DryRun = False
) -> None:
    """Let jobs of the tenant use a secret. Only for owners."""
    body = {"jobs": jobs, "cell": cell}
    answer = session.client.post(f"{_path(session.tenant(tenant), name)}grant/", body, dry_run=dry_run)
    return session.say(answer, f"Secret {name} {would_be(dry_run)} granted to {_grant(body)}.")


@secret.command()
def revoke(
    session: Context, name: Name, jobs: Jobs, cell: OnlyCell = "", tenant: TenantOption = None, dry_run: DryRun = False
) -> None:
    """Delete a grant. Running tasks keep the value that they have; new starts wait. Only for owners."""
    body = {"jobs": jobs, "cell": cell}
    answer = session.client.post(f"{_path(session.tenant(tenant), name)}revoke/", body, dry_run=dry_run)
    return session.say(answer, f"The grant of secret {name} to {_grant(body)} {would_be(dry_run)} revoked.")


@secret.command()
def delete(
    session: Context,
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it even if live jobs, cron jobs or workflows use it.")
    ] = False,
    yes: Yes = False,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Delete a secret with all versions and grants. Running tasks keep the value that they have. Only for owners."""
    owner = session.tenant(tenant)
    if not (yes or dry_run):
        output.sure(f"Delete secret {name} of {owner}? New starts of tasks that use it will wait.")
    session.client.delete(_path(owner, name), dry_run=dry_run, **({"force": "1"} if force else {}))
    return session.say({"removed": not dry_run}, f"Secret {name} of {owner} {would_be(dry_run)} deleted.")


def _value(file: Path | None, *, keep_newline: bool) -> bytes:
    """Return the value to set. Raises `CommandFailed` if it cannot be read, is empty or is too long."""
    if file is not None and str(file) != "-":
        try:
            value = file.read_bytes()
        except OSError as error:
            raise bad_usage(
                f"cannot read {file}: {error.strerror}; give another file", file="cannot be read"
            ) from error
    elif file is None and sys.stdin is not None and sys.stdin.isatty():
        value = getpass.getpass("Value: ").encode()
    else:
        value = sys.stdin.buffer.read(_MOST_BYTES + 2) if sys.stdin is not None else b""
        if not keep_newline:
            value = value.removesuffix(b"\n")
    if not value or len(value) > _MOST_BYTES:
        raise bad_usage(f"the value has {len(value)} bytes; give 1 to {_MOST_BYTES}", value="wrong size")
    return value


def _grant(row: dict[str, Any]) -> str:
    return f"{row['jobs']} in {row['cell']}" if row["cell"] else str(row["jobs"])


def _path(tenant: str, name: str = "") -> str:
    return f"{path_of(tenant)}secrets/{f'{part(name)}/' if name else ''}"
