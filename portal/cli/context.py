"""Parts that all commands use: the profile (address and token of a portal), the HTTP client, and the parsing of job
names.
"""

from __future__ import annotations

import datetime as dt
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from portal.cli import completions, output, periods, profiles, screen
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.paths import part

if TYPE_CHECKING:
    from portal.cli.client import Client

DryRun = Annotated[bool, typer.Option("--dry-run", help="Check the request without changing anything.")]
CellOption = Annotated[
    str | None, typer.Option(help="Cell. Default: the profile's cell.", autocompletion=completions.cells)
]
TenantOption = Annotated[
    str | None, typer.Option(help="Tenant. Default: the profile's tenant.", autocompletion=completions.tenants)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Confirm = Annotated[int | None, typer.Option(min=0, help="Confirm that the command may stop this number of tasks.")]
IfRevision = Annotated[
    str | None,
    typer.Option(
        metavar="REVISION", help="Change nothing unless the job still has this revision, which `plan` prints."
    ),
]
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Name of the job: cell/tenant/job, tenant/job or job.", autocompletion=completions.jobs
    ),
]

_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# The name that a cell gets when it is deleted. No DNS label has a dot.
_DELETED_CELL = re.compile(r"[a-z][-a-z0-9]{0,62}\.deleted-[0-9]{1,19}")
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)
Column = str | Callable[[Any], Any]
NamedColumn = tuple[str, Column]
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass
class Context:
    """The profile (address and token of a portal) and the HTTP client of a command. They are loaded when they are first
    used, because `--help` needs no profile.
    """

    profile_name: str | None = None
    json: bool = False

    @cached_property
    def profile(self) -> profiles.Profile:
        return profiles.load(self.profile_name)

    @cached_property
    def client(self) -> Client:
        return client_of(self.profile)

    def say(self, answer: Any, text: str) -> None:
        """Print `answer` (the API's answer) as JSON if `--json` is given. Otherwise, print the sentence `text`."""
        return output.as_json(answer) if self.json else output.say(text)

    def delete(self, path: str, what: str, outcome: str = "removed", *, dry_run: bool) -> None:
        """Delete the object at an API path. Then print a message such as "Channel 7 is removed". `what`: the object in
        this message. `outcome`: the participle in this message.
        """
        self.client.delete(path, dry_run=dry_run)
        return self.say({"removed": not dry_run}, f"{what} {output.would_be(dry_run)} {outcome}.")

    def table(self, rows: Iterable[Any], columns: Mapping[str, Column] | Sequence[NamedColumn], *, empty: str) -> None:
        """Print the rows as JSON if `--json` is given. Otherwise, print a table.

        `columns`: for each column its title, and the key of its value in a row, or a function that computes the value
        from the row. `empty`: the text to print if there are no rows.
        """
        if self.json:
            return output.as_json(list(rows))
        pairs = list(columns.items()) if isinstance(columns, Mapping) else columns
        cells = [[row[of] if isinstance(of, str) else of(row) for _, of in pairs] for row in rows]
        return output.table([head for head, _ in pairs], cells, empty=empty)

    def cell_path(self, given: str | None = None) -> str:
        """Return the API path of the cell `given`, or of the profile's cell if `given` is None. Raises `CommandFailed`
        if the profile has no cell either.
        """
        return f"/api/v1/cells/{part(self.cell(given))}/"

    def cell(self, given: str | None = None) -> str:
        """Return the cell `given`, or the profile's cell if `given` is None. Raises `CommandFailed` if the profile has
        no cell either.
        """
        cell = given or self.profile.cell
        if not cell:
            raise CommandFailed("no-cell", "no cell is given: use --cell, or set `cell` in the profile.", status=2)
        return cell if _DELETED_CELL.fullmatch(cell) else label(cell, "cell")

    def tenant(self, given: str | None = None) -> str:
        """Return the tenant `given`, or the profile's tenant if `given` is None. Raises `CommandFailed` if the profile
        has no tenant either.
        """
        tenant = given or self.profile.tenant
        if not tenant:
            raise bad_usage("no tenant is given: use --tenant, or set `tenant` in the profile", tenant="not given")
        return tenant

    def time_zone(self, tenant: str) -> str:
        """Return the time zone of a tenant. The options `--from` and `--until` use this time zone for days."""
        return self.client.get(f"/api/v1/tenants/{part(tenant)}/").get("time_zone") or "UTC"

    def end(self, field: str, until: str | None, tenant: str | None) -> dict[str, str]:
        """Return a dictionary with the key `field` and the time of the option `--until`. Return an empty dictionary if
        the option is not given.

        If the option gives a day, the day is in the time zone of the tenant, or in UTC if `tenant` is None.
        """
        if until is None:
            return {}
        home = self.time_zone(tenant) if tenant else "UTC"
        return {field: periods.end("until", until, time_zone=home).isoformat()}

    def job(self, name: str) -> JobReference:
        """Return the job that `cell/tenant/job`, `tenant/job` or `job` names. Missing parts come from the profile.

        Raises `CommandFailed` if a part is missing or not valid.
        """
        segments = name.strip("/").split("/")
        if not 1 <= len(segments) <= 3 or not all(segments):
            raise bad_usage(f"{name!r} is not a job name: write cell/tenant/job, or just job", job="not a job name")
        cell = segments[-3] if len(segments) == 3 else self.cell()
        tenant = segments[-2] if len(segments) >= 2 else self.profile.tenant
        if not tenant:
            raise CommandFailed("no-tenant", f"no tenant is given for job {name!r}: write tenant/job.", status=2)
        return JobReference(label(cell, "cell"), label(tenant, "tenant"), label(segments[-1], "job"))

    def task(self, name: str) -> tuple[JobReference, int]:
        """Return the job and the task index of the name `JOB/N`. Raises `CommandFailed` if the name has no index or the
        name of the job is not valid.
        """
        job, index = split_index(name)
        if index is None:
            raise bad_usage(
                f"{name!r} is not a task: write job/0, or cell/tenant/job/0", task="write job/0, or cell/tenant/job/0"
            )
        return self.job(job), index


@dataclass(frozen=True)
class JobReference:
    """The full name of a job: its cell, its tenant and its own name."""

    cell: str
    tenant: str
    name: str

    @property
    def path(self) -> str:
        return f"/api/v1/cells/{part(self.cell)}/jobs/{part(self.tenant)}/{part(self.name)}/"

    def __str__(self) -> str:
        return f"{self.cell}/{self.tenant}/{self.name}"


def client_of(profile: profiles.Profile) -> Client:
    """Return an HTTP client for the portal whose address and token the profile contains."""
    # Importing httpx takes a third of the start time, so commands that send no request do without it.
    from portal.cli.client import Client

    return Client(profile)


def iso_time(given: str) -> str:
    """Convert the time in an option to ISO 8601. `given`: a duration such as `2h`, which means two hours ago, or a
    time. A time without a time zone is in the time zone of this machine.

    Raises `ValueError` or `OverflowError` if `given` is neither a duration nor a time.
    """
    if (ago_s := periods.duration_s(given)) is not None:
        return (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago_s)).isoformat()
    at = dt.datetime.fromisoformat(given)
    return (at if at.tzinfo else at.astimezone()).isoformat()


def split_index(name: str) -> tuple[str, int | None]:
    """Split `job/7` into `job` and 7. If the name does not end with a slash and a number, return the name and None."""
    job, slash, index = name.rpartition("/")
    return (job, int(index)) if slash and job and _INDEX.fullmatch(index) else (name, None)


class OptionGroup:
    """The base class of dataclasses that declare several options of a command. Each field is one option."""


_WATCH = inspect.Parameter(
    "watch",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--watch", "-w", help="Show it again every 2 s, until you press Ctrl-C.")],
)


class Commands(typer.Typer):
    """A group of commands. The first parameter of a command's function is a `Context` instead of typer's context.

    A parameter whose type is a subclass of `OptionGroup` stands for all options of that class.
    """

    def command(self, name: str | None = None, *, watch: bool = False, **settings: Any) -> Callable[[_F], _F]:
        """Register a command. `watch`: the command only reads, so it gets an option `--watch`, which repeats it."""
        register = super().command(name, **settings)

        def decorate(function: _F) -> _F:
            @wraps(function)
            def run(ctx: typer.Context, **values: Any) -> Any:
                show = partial(_call, function, {"session": ctx.obj, **values})
                return screen.watch(show, json_wanted=ctx.obj.json) if watch and values.pop(_WATCH.name) else show()

            parameters = [*_parameters(function), *([_WATCH] if watch else [])]
            setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010
            register(run)
            return function

        return decorate


def _parameters(function: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Yield the parameters that typer needs: typer's context, and one parameter for each argument and option."""
    for each in inspect.signature(function, eval_str=True).parameters.values():
        if _is_group(each):
            yield from _parameters(each.annotation)
        elif each.annotation is Context:
            yield inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        else:
            yield each.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _call(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call the function of a command, or create an `OptionGroup`. `values`: the values of the command's options by
    name. An argument whose type is an `OptionGroup` is created from `values` first.
    """
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return function(
        **{each.name: _call(each.annotation, values) if _is_group(each) else values[each.name] for each in parameters}
    )


def _is_group(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.annotation, type) and issubclass(parameter.annotation, OptionGroup)


def label(text: str, what: str) -> str:
    """Return `text` if it is a DNS label. Raises `CommandFailed` otherwise. `what`: the kind of name, for the error
    message.
    """
    if _LABEL.fullmatch(text):
        return text
    rule = "use lower-case letters, digits and hyphens, starting with a letter, at most 63 characters"
    raise bad_usage(f"{text!r} is not a valid {what} name: {rule}", **{what: "not a DNS label"})
