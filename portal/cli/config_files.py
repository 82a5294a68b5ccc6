"""Commands for the config files of a tenant."""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import completions, output
from portal.cli.context import Commands, Context, DryRun, JobReference, TenantOption, Yes
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.output import would_be
from portal.cli.paths import part
from portal.cli.tenants import path_of

config = Commands(
    help="Config files of a tenant, which jobs get as files with versions: put, list, show, history, diff, rollback,"
    " delete.\n\nA file is text of at most 128 KiB. It is not secret: all members of the tenant can read it."
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the config file.", autocompletion=completions.configs)
]
Comment = Annotated[str, typer.Option("--comment", "-m", help="Why this version was written.")]
NoRestart = Annotated[
    bool, typer.Option("--no-restart", help="Do not restart the jobs whose file says on_change: restart.")
]
IfVersion = Annotated[
    int | None,
    typer.Option("--if-version", help="Write only if the newest version has this number; 0: only a new file."),
]
KIND = "ConfigFile"
_MOST_BYTES = 128 * 1024
# Fields of a file of kind `ConfigFile`, apart from its content.
_HEADER = ("apiVersion", "kind", "name", "tenant")
_CONTENT = ("content", "labels", "comment", "plain")


@dataclass(frozen=True)
class ConfigReference(JobReference):
    """The full name of a config file. It has no cell, because it belongs to all cells."""

    @property
    def path(self) -> str:
        return _path(self.tenant, self.name)

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


def content_of(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the request that writes a config file. `spec`: a file of kind `ConfigFile`. Raises `CommandFailed`, which
    names the unknown fields.
    """
    unknown = sorted(set(spec) - {*_HEADER, *_CONTENT})
    if unknown:
        known = ", ".join((*_HEADER, *_CONTENT))
        detail = f"{', '.join(unknown)}: a config file has no such field; its fields are {known}"
        raise CommandFailed("invalid-spec", detail, fields=dict.fromkeys(unknown, "unknown field"))
    if not isinstance(spec.get("content"), str):
        detail = "content: is missing or is not text; write the text of the file, or importstr 'NAME' in Jsonnet"
        raise CommandFailed("invalid-spec", detail, fields={"content": detail})
    return {name: spec[name] for name in _CONTENT if name in spec}


@config.command("put")
def put(
    session: Context,
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; - for standard input.")],
    comment: Comment = "",
    if_version: IfVersion = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Confirm that lines which look like secrets are not secret.")
    ] = False,
    no_restart: NoRestart = False,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Write a file, which becomes the newest version.

    Running tasks that use the newest version get it within seconds. Jobs whose file says `on_change: restart` are
    restarted step by step; if one of them cannot be restarted now, nothing changes.
    """
    body = {"content_base64": base64.b64encode(_content(file)).decode(), "comment": comment, "plain": plain}
    owner = session.tenant(tenant)
    answer = session.client.put(_path(owner, name), body | _change(if_version, no_restart), dry_run=dry_run)
    return session.say(answer, _written(answer, owner, name, dry_run=dry_run))


@config.command("list")
def config_list(session: Context, tenant: TenantOption = None) -> None:
    """List the config files of a tenant with their newest versions."""
    return session.table(
        session.client.pages(_path(session.tenant(tenant))),
        {
            "FILE": "name",
            "VERSION": "version",
            "WRITTEN": lambda row: output.when(row["created_at"]),
            "BY": "created_by",
            "BYTES": "size_bytes",
            "COMMENT": "comment",
        },
        empty="No config files. Write one with `borgctl config put NAME FILE`.",
    )


@config.command()
def show(
    session: Context,
    name: Name,
    version: Annotated[int | None, typer.Option("--version", help="This version. Default: the newest.")] = None,
    tenant: TenantOption = None,
) -> None:
    """Print the content of a config file."""
    given = {"version": version} if version is not None else {}
    answer = session.client.get(f"{_path(session.tenant(tenant), name)}content/", **given)
    if session.json:
        return output.as_json(answer)
    return output.write(answer["content"])


@config.command()
def history(session: Context, name: Name, tenant: TenantOption = None) -> None:
    """Show the versions of a config file, what uses it, and which version running tasks have."""
    answer = session.client.get(_path(session.tenant(tenant), name))
    if session.json:
        return output.as_json(answer)
    output.say(f"{answer['tenant']}/{answer['name']}  version {answer['newest_version']}")
    used = ", ".join(f"{use['cell']}/{use['job']} ({', '.join(use['versions'])})" for use in answer["used_by"])
    output.say(f"  used by {used}" if used else "  no live job, cron job or workflow uses it")
    for version in sorted({row["version"] for row in answer["tasks"]}):
        having = sorted(
            {f"{row['cell']}/{row['job']}/{row['index']}" for row in answer["tasks"] if row["version"] == version}
        )
        more = f" and {len(having) - 10} more" if len(having) > 10 else ""
        output.say(f"  version {version} is in {', '.join(having[:10])}{more}")
    return output.table(
        ["VERSION", "WRITTEN", "BY", "BYTES", "COMMENT"],
        [
            (row["version"], output.when(row["created_at"]), row["created_by"], row["size_bytes"], row["comment"])
            for row in answer["versions"]
        ],
        empty="No versions.",
    )


@config.command()
def diff(
    session: Context,
    name: Name,
    before: Annotated[int | None, typer.Argument(metavar="[BEFORE]", help="Default: the one before AFTER.")] = None,
    after: Annotated[int | None, typer.Argument(metavar="[AFTER]", help="Default: the newest.")] = None,
    tenant: TenantOption = None,
) -> None:
    """Show the difference of two versions of a config file."""
    given = {"against": before, "version": after}
    path = f"{_path(session.tenant(tenant), name)}diff/"
    answer = session.client.get(path, **{key: value for key, value in given.items() if value is not None})
    if session.json:
        return output.as_json(answer)
    same = f"Versions {answer['before']} and {answer['after']} are equal."
    for line in "\n".join(answer["lines"] or [same]).split("\n"):
        output.write("\t".join(output.printable(part) for part in line.split("\t")) + "\n")
    return None


@config.command()
def rollback(
    session: Context,
    name: Name,
    version: Annotated[
        int | None, typer.Argument(metavar="[VERSION]", help="Default: the one before the newest.")
    ] = None,
    comment: Comment = "",
    if_version: IfVersion = None,
    no_restart: NoRestart = False,
    tenant: TenantOption = None,
    dry_run: DryRun = False,
) -> None:
    """Write an old version again, as the newest one. It reaches tasks as a new file does."""
    owner = session.tenant(tenant)
    body = {"comment": comment, **({"version": version} if version is not None else {})}
    path = f"{_path(owner, name)}rollback/"
    answer = session.client.post(path, body | _change(if_version, no_restart), dry_run=dry_run)
    return session.say(answer, _written(answer, owner, name, dry_run=dry_run))


@config.command()
def delete(
    session: Context, name: Name, yes: Yes = False, tenant: TenantOption = None, dry_run: DryRun = False
) -> None:
    """Delete a config file with all versions. Live jobs, cron jobs and workflows must not use it."""
    owner = session.tenant(tenant)
    if not (yes or dry_run):
        output.sure(f"Delete config file {name} of {owner} with all versions?")
    session.client.delete(_path(owner, name), dry_run=dry_run)
    return session.say({"removed": not dry_run}, f"Config file {name} of {owner} {would_be(dry_run)} deleted.")


def _content(file: Path) -> bytes:
    """Return the content to write. Raises `CommandFailed` if it cannot be read or is too long."""
    if str(file) == "-":
        content = sys.stdin.buffer.read(_MOST_BYTES + 1) if sys.stdin is not None else b""
    else:
        try:
            with file.open("rb") as opened:
                content = opened.read(_MOST_BYTES + 1)
        except OSError as error:
            raise bad_usage(
                f"cannot read {file}: {error.strerror}; give another file", file="cannot be read"
            ) from error
    if len(content) > _MOST_BYTES:
        detail = f"{file} has more than {_MOST_BYTES} bytes; put larger files into a package"
        raise bad_usage(detail, file="too large")
    return content


def _change(if_version: int | None, no_restart: bool) -> dict[str, Any]:
    return {"restart": not no_restart, **({"if_version": if_version} if if_version is not None else {})}


def _written(answer: dict[str, Any], owner: str, name: str, *, dry_run: bool) -> str:
    used = f" Jobs, cron jobs and workflows that use it: {len(answer['used_by'])}." if answer["used_by"] else ""
    restarted = f" These jobs restart: {', '.join(answer['restarted'])}." if answer["restarted"] else ""
    return f"Config file {name} of {owner} {would_be(dry_run)} version {answer['newest_version']}.{used}{restarted}"


def _path(tenant: str, name: str = "") -> str:
    return f"{path_of(tenant)}configs/{f'{part(name)}/' if name else ''}"
