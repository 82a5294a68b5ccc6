"""The command-line program borgctl. Its exit status is 0 for success, 1 for a failure and 2 for wrong usage."""

from __future__ import annotations

import copy
import io
import itertools
import os
import sys
from typing import Annotated, Any

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from portal.cli import (
    apply,
    autoscaling,
    brakes,
    capabilities,
    cells,
    checkpoints,
    config_files,
    cron,
    cures,
    drains,
    experiments,
    faux,
    job_actions,
    jobs,
    locks,
    maintenance,
    money,
    notices,
    orders,
    output,
    packages,
    pages,
    pools,
    promises,
    quota,
    repacking,
    resolve,
    secrets,
    service_accounts,
    services,
    sessions,
    sites,
    sql,
    tasks,
    templates,
    tenants,
    tokens,
    top,
    waiting,
    workflows,
)
from portal.cli.context import Context
from portal.cli.failure import BAD_USAGE, CommandFailed, bad_usage

app = typer.Typer(
    name="borgctl",
    help="Work with a Borg cell: jobs, machines, names, quota, tenants.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (
    jobs.app,
    apply.app,
    job_actions.app,
    cures.app,
    tasks.app,
    waiting.app,
    top.app,
    pages.app,
    resolve.app,
    cells.app,
    promises.promise_app,
    drains.app,
    tokens.app,
    sql.app,
    experiments.app,
):
    app.registered_commands += part.registered_commands
for part in (orders.app, money.app, promises.app):
    quota.quota.registered_commands += part.registered_commands
tenants.tenant.add_typer(service_accounts.account, name="service-account", no_args_is_help=True)
tenants.tenant.add_typer(capabilities.capability, name="capability", no_args_is_help=True)
for group, name in (
    (sites.site, "site"),
    (sites.cluster, "cluster"),
    (cells.cell, "cell"),
    (cells.machine, "machine"),
    (quota.quota, "quota"),
    (tenants.tenant, "tenant"),
    (notices.notices, "notices"),
    (brakes.brake, "brake"),
    (maintenance.maintenance, "maintenance"),
    (pools.pool, "pool"),
    (repacking.repack, "repack"),
    (brakes.quarantine, "quarantine"),
    (tokens.tokens, "tokens"),
    (sessions.sessions, "sessions"),
    (packages.package, "package"),
    (checkpoints.checkpoint, "checkpoint"),
    (faux.faux, "faux"),
    (cron.cron, "cron"),
    (templates.template, "template"),
    (autoscaling.autoscale, "autoscale"),
    (workflows.workflow, "workflow"),
    (services.service, "service"),
    (secrets.secret, "secret"),
    (config_files.config, "config"),
    (locks.lock, "lock"),
):
    app.add_typer(group, name=name, no_args_is_help=True)

# borgctl accepts `--json` and `--profile` anywhere on the line, because people add them at the end.
_GLOBAL_FLAGS = ("--json",)
_GLOBAL_OPTIONS = ("--profile",)

# The base class of the parser's errors. typer exports only its subclass BadParameter.
_WrongUsage: type[Exception] = typer.BadParameter.__mro__[2]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        output.say(f"borgctl {version('borg-portal')}")
        raise typer.Exit


@app.callback()
def _global(
    ctx: typer.Context,
    profile: Annotated[
        str | None, typer.Option(help="Profile in client.toml. Default: the one that `default_profile` names.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the API's answer as JSON.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version of borgctl.")
    ] = False,
) -> None:
    ctx.obj = Context(profile_name=profile, json=json)


def main(arguments: list[str] | None = None) -> None:
    """Run a borgctl command and exit with its status. If `arguments` is None, the command comes from the command
    line.
    """
    if sys.stdout is None:  # the parent process closed standard output
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - stays open until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    given = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            front, rest = globals_first(given)
            status = _run(narrowed(app, rest), [*front, *rest])
        except CommandFailed as failed:
            output.complain(failed, json_wanted="--json" in itertools.takewhile(lambda a: a != "--", given))
            status = failed.status
        output.write("", flush=True)
    except output.ReaderGone:
        status = _give_up_output(0)
    except CommandFailed as failed:
        status = _give_up_output(failed.status)
        output.complain(failed, json_wanted=False)
    sys.exit(status)


def globals_first(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into two lists: the global options with their values, and all other arguments. After `--`, no
    argument is a global option.

    Raises `CommandFailed` if a global option has no value.
    """
    front: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            rest += ["--", *remaining]
        elif argument in _GLOBAL_FLAGS or argument.startswith(tuple(f"{o}=" for o in _GLOBAL_OPTIONS)):
            front.append(argument)
        elif argument in _GLOBAL_OPTIONS:
            value = next(remaining, None)
            if value is None:
                raise bad_usage(f"{argument} has no value; write the name of a profile after it")
            front += [argument, value]
        else:
            rest.append(argument)
    return front, rest


def narrowed(program: typer.Typer, words: list[str]) -> typer.Typer:
    """Return the program with only the command that the words name, or the whole program if they name none. typer reads
    the signatures of all commands that a program has, which takes 0.13 s of CPU for all of borgctl.
    """
    if not words:
        return program
    commands = [one for one in program.registered_commands if _name(one) == words[0]]
    groups = [copy.copy(one) for one in program.registered_groups if one.name == words[0]]
    for group in groups:
        assert group.typer_instance is not None
        group.typer_instance = narrowed(group.typer_instance, words[1:])
    if not commands and not groups:
        return program
    one = copy.copy(program)
    one.registered_commands, one.registered_groups = commands, groups
    return one


def _name(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.name or get_command_name(command.callback.__name__)


def _run(program: typer.Typer, arguments: list[str]) -> int:
    """Run one command of the program and return its exit status. Raises `CommandFailed` if the command fails. Raises
    `output.ReaderGone` if the program that reads the output has closed the pipe.
    """
    try:
        ended: Any = program(args=arguments, prog_name="borgctl", standalone_mode=False)
    except _WrongUsage as error:
        return _explain_usage(error)
    except typer.Abort as error:
        raise CommandFailed("aborted", "no answer was given, so nothing was changed; repeat the command") from error
    return ended if isinstance(ended, int) else 0


def _explain_usage(error: Any) -> int:
    """If the user gave no command, show the help and return the exit status. For any other wrong usage, raise
    `CommandFailed`.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return BAD_USAGE
    message = error.format_message()
    command = error.ctx.command_path if getattr(error, "ctx", None) else "borgctl"
    stop = "" if message.endswith((".", "?")) else "."
    raise CommandFailed("bad-usage", f"{message}{stop} See `{command} --help`.", status=BAD_USAGE) from error


def _give_up_output(status: int) -> int:
    """Redirect standard output to /dev/null, so that Python can flush it without an error at exit. Return `status`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status
