"""borgctl: what people and scripts do with a cell. Exit status 0 done, 1 refused or failed, 2 bad usage."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from portal.cli import cells, jobs, names, output, tokens
from portal.cli.context import Context
from portal.cli.failure import Failed

app = typer.Typer(
    name="borgctl",
    help="Work with a Borg cell: jobs, machines, names, quota.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for part in (jobs.app, cells.app, names.app, tokens.app):
    app.registered_commands += part.registered_commands
app.add_typer(cells.machine, name="machine")
app.add_typer(cells.quota, name="quota")
app.add_typer(tokens.tokens, name="tokens")

# `--json` and `--profile` may stand anywhere: people add them at the end.
_GLOBAL_FLAGS = ("--json",)
_GLOBAL_OPTIONS = ("--profile",)


@app.callback()
def _global(
    ctx: typer.Context,
    profile: Annotated[str | None, typer.Option(help="Profile of client.toml; else its default.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the API's JSON.")] = False,
) -> None:
    ctx.obj = Context(profile_name=profile, json=json)


def main(arguments: list[str] | None = None) -> None:
    given = _globals_first(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given, prog_name="borgctl")
    except Failed as failed:
        output.complain(failed, json_wanted="--json" in given)
        sys.exit(failed.status)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read us has what it wanted (`borgctl tasks | head`).
        sys.stderr.close()
        sys.exit(0)


def _globals_first(arguments: list[str]) -> list[str]:
    """The global options, wherever they stand before a `--`, moved to the front."""
    front: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            rest += ["--", *waiting]
        elif argument in _GLOBAL_FLAGS or argument.startswith(tuple(f"{o}=" for o in _GLOBAL_OPTIONS)):
            front.append(argument)
        elif argument in _GLOBAL_OPTIONS:
            front += [argument, *([value] if (value := next(waiting, None)) is not None else [])]
        else:
            rest.append(argument)
    return front + rest
