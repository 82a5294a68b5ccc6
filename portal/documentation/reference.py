"""Generates the pages of the reference from the code, so that the pages always agree with the code.

Each function in `PAGES` returns one page as Markdown.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import click
import msgspec
import typer
from drf_spectacular.generators import SchemaGenerator
from prometheus_client.core import Metric

from borglet.__main__ import build_parser
from naming.counters import ServerCounters
from naming.metrics import Figured
from portal.cli.main import app
from portal.documentation.markdown import code, first_sentence, page, table
from portal.http import metrics as request_metrics
from portal.settings.environment import SETTINGS
from quota import metrics as quota_metrics
from scheduling.api.job_file_schema import schema
from scheduling.core.vocabulary import events as journal_events
from scheduling.core.vocabulary.job_health import JobHealth
from scheduling.core.vocabulary.reasons import ReasonCode
from scheduling.core.vocabulary.states import EvictionCause, JobState, TaskState
from scheduling.link.shard.metrics import ShardMetrics
from scheduling.master import metrics as master_metrics

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("portal", "naming", "scheduling", "quota")
_METHODS = ("get", "post", "put", "patch", "delete")
# The HTTP status of the answer, by the name of the error class.
_STATUS_OF = {"Rejected": 422, "Conflict": 409, "Outage": 503}
_MODULE = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z])")
_COMMENT = re.compile(r'^    ([A-Z_]+) = "[^"]*"\s*#\s*(.+)$', re.MULTILINE)


def settings() -> str:
    """Return the documentation page about the settings of the server and of a Borglet."""
    server = table(
        ["setting", "default", "meaning"],
        ([code(name), code(each.default), each.about] for name, each in SETTINGS.items()),
    )
    machine = table(
        ["setting", "option", "default", "meaning"],
        (
            [code(f"BORGLET_{name.upper().replace('-', '_')}"), code(f"--{name}"), code(default), text]
            for name, default, text in _borglet_options()
        ),
    )
    return page(
        "Settings",
        "Every process reads its settings from environment variables. If a setting is not valid, the process prints "
        "one line per such setting and ends.",
        "## Server",
        server,
        "## Borglet",
        "A setting and the option of `borglet run` with the same name have the same effect.",
        machine,
    )


def _borglet_options() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the default value and the help text of each option of `borglet run`."""
    verbs = next(each.choices for each in build_parser()._actions if isinstance(each.choices, dict))
    for action in verbs["run"]._actions:
        for option in action.option_strings:
            if option.startswith("--") and option != "--help":
                default = "" if action.default in (None, False) else str(action.default)
                yield option.removeprefix("--"), default, action.help or ""


_SUMMED = (
    "At `/metrics` of each web process. If `PROMETHEUS_MULTIPROC_DIR` is set, the values are sums over all processes "
    "of the host. Otherwise, they are those of the process that answers."
)


def metrics() -> str:
    """Return the documentation page about the metrics of web processes, link shards and resolvers."""
    parts = []
    for title, where, families in (
        ("Cells", "At `/metrics` of each web process.", _declared(inspect.getsource(master_metrics))),
        ("Requests", _SUMMED, _declared(inspect.getsource(request_metrics))),
        ("Quota market", "At `/metrics` of each web process.", _declared(inspect.getsource(quota_metrics))),
        ("Link shards", "At `/metrics` of each link shard.", _collected(ShardMetrics(lambda: 0).collect())),
        (
            "Resolvers",
            "At `BORG_DNS_METRICS_PORT`, summed over the processes of a resolver.",
            _collected(Figured(ServerCounters(), [0], now=0.0).collect()),
        ),
    ):
        rows = ([code(name), kind, ", ".join(labels), text] for name, kind, text, labels in families)
        parts += [f"## {title}", where, table(["metric", "type", "labels", "meaning"], rows)]
    return page("Metrics", "Prometheus reads these metrics. The runbook lists the metrics to alert on.", *parts)


def _collected(families: Iterator[Metric]) -> Iterator[tuple[str, str, str, list[str]]]:
    for family in families:
        ending = "_total" if family.type == "counter" else ""
        yield (family.name + ending, family.type, family.documentation, list(getattr(family, "_labelnames", ())))


def _declared(source: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield the name, type, help text and labels of each metric that the Python code `source` defines.

    This function only parses the code. If the code ran, it would query the database.
    """
    constants: dict[str, ast.expr] = {}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assign(targets=[ast.Name(constant)], value=value):
                constants[constant] = value
            case ast.Call(func=ast.Name(function), args=[ast.Constant(str(name)), ast.Constant(str(text)), *rest]):
                kind = function.removesuffix("MetricFamily")
                if kind not in ("Gauge", "Counter", "Histogram"):
                    continue
                given = [*rest, *(keyword.value for keyword in node.keywords if keyword.arg == "labels")]
                labels = [constants[one.id] if isinstance(one, ast.Name) else one for one in given[:1]]
                ending = "_total" if kind == "Counter" and not name.endswith("_total") else ""
                yield name + ending, kind.lower(), text, list(ast.literal_eval(labels[0])) if labels else []


def events() -> str:
    """Return the documentation page about the kinds of events in a journal."""
    parts = []
    for struct in get_args(journal_events.Event):
        fields = [
            [code(field.name), code(_type_name(field.type)), _default(field)]
            for field in msgspec.structs.fields(struct)
        ]
        about = inspect.cleandoc(struct.__doc__ or "")
        parts += [f"## {struct.__struct_config__.tag}", about, table(["field", "type", "default"], fields)]
    return page(
        "Events",
        "Each cell has one journal. An event has a revision, a time, an actor, a cause, and the fields below. "
        "`borgctl events`, the pages of jobs and machines, and `GET /api/v1/cells/CELL/events/` show them.",
        *parts,
    )


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return "" if made in ("", (), {}) or isinstance(made, msgspec.Struct) else code(str(made))


def _type_name(kind: Any) -> str:
    name = str(kind) if isinstance(kind, UnionType) or get_args(kind) else getattr(kind, "__name__", str(kind))
    return _MODULE.sub("", name)


def reasons() -> str:
    """Return the documentation page about the states of jobs and tasks, and about the causes and reasons that users
    see.
    """
    parts = []
    for title, about, members in (
        ("Why a task is pending", "Each machine counts under the first reason that rules it out.", ReasonCode),
        ("Why a task was evicted", "The cause of `task.evicted` (Figure 3 of the paper).", EvictionCause),
        ("States of a task", "", TaskState),
        ("States of a job", "", JobState),
        ("Health of a job", "The first health in this list that applies.", JobHealth),
    ):
        comments = dict(_COMMENT.findall(inspect.getsource(members)))
        rows = [[code(member.value), comments.get(member.name, "")] for member in members]
        parts += [f"## {title}", about, table(["code", "meaning"], rows)]
    return page("States and reasons", "The values that REST, `borgctl` and the pages show.", *parts)


def errors() -> str:
    """Return the documentation page about the error codes of the REST interface."""
    found: dict[str, tuple[int, str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name, status, detail in _rejections(ast.parse(path.read_text())):
                found.setdefault(name, (status, detail))
    return page(
        "Error codes",
        "A rejected request changes nothing. Its answer is a problem document (RFC 9457) with a stable "
        "`code`, a `detail` for people, and often `fields` and `figures`. `…` stands for a part that varies.",
        table(["code", "status", "an example"], ([code(n), str(s), text] for n, (s, text) in sorted(found.items()))),
    )


def _rejections(module: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield the error code, the HTTP status and the message of each `Rejected(…)` and `Outage(…)` in `module`. Codes
    that are computed are omitted.
    """
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Name(name), args=[ast.Constant(str(code)), detail, *_]) if name in _STATUS_OF:
                statuses = [keyword.value for keyword in node.keywords if keyword.arg == "status"]
                found = [one.value for one in statuses if isinstance(one, ast.Constant) and isinstance(one.value, int)]
                yield code, found[0] if found else _STATUS_OF[name], _text_of(detail)


def _text_of(node: ast.expr) -> str:
    """Return the text that the string expression `node` produces. An ellipsis (…) stands for each part that is computed
    at run time.
    """
    match node:
        case ast.Constant(value):
            return str(value)
        case ast.JoinedStr(parts):
            return "".join(map(_text_of, parts))
        case ast.BinOp(left, _, right):
            return _text_of(left) + _text_of(right)
    return "…"


def borgctl() -> str:
    """Return the documentation page about all commands of `borgctl`."""
    command = typer.main.get_command(app)
    parts = [part for path, each in _commands("borgctl", command) for part in _command(path, each)]  # type: ignore[arg-type]
    return page("borgctl", inspect.cleandoc(command.help or ""), *parts)


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    for name, each in sorted(getattr(command, "commands", {}).items()):
        if getattr(each, "commands", None):
            yield from _commands(f"{path} {name}", each)
        elif not each.hidden:
            yield f"{path} {name}", each


def _command(path: str, command: click.Command) -> Iterator[str]:
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]  # type: ignore[attr-defined]
    yield f"## {path}"
    yield inspect.cleandoc(command.help or "").replace("\b", "")
    usage = " ".join([path, *command.collect_usage_pieces(typer.Context(command))])  # type: ignore[arg-type]
    yield f"```console\n$ {usage}\n```"
    rows = [[code(", ".join([*each.opts, *each.secondary_opts])), each.help or ""] for each in options]
    if rows:
        yield table(["option", "meaning"], rows)


def rest() -> str:
    """Return the documentation page about all URLs of the REST interface."""
    known: dict[str, list[list[str]]] = {}
    for path, item in SchemaGenerator().get_schema(public=True)["paths"].items():  # type: ignore[no-untyped-call]
        for method in (each for each in _METHODS if each in item):
            about = item[method].get("summary") or first_sentence(item[method].get("description", ""))
            tag = (item[method].get("tags") or [""])[0]
            known.setdefault(tag, []).append([code(f"{method.upper()} {path}"), about])
    parts = [f"## {tag}\n\n" + table(["request", "meaning"], rows) for tag, rows in sorted(known.items())]
    return page(
        "REST",
        "The OpenAPI document at `/api/v1/schema/` has every field, type and answer. A token goes into the header "
        "`Authorization: Bearer …`.",
        *parts,
    )


def job_file() -> str:
    """Return the documentation page about all fields of a job file."""
    return page(
        "Job file",
        "A job file is Jsonnet, YAML or JSON. The minimum is a name and a task with a command. "
        "REST rejects a job file with a field that this list does not contain.",
        table(["field", "type", "default", "meaning"], _fields("", schema())),
    )


def _fields(prefix: str, node: dict[str, Any]) -> Iterator[list[str]]:
    required = node.get("required", ())
    for name, each in node.get("properties", {}).items():
        path = prefix + name
        default = "required" if name in required else _json(each.get("default"))
        yield [code(path), _json_type(each), default, each.get("description", "")]
        nested = next((part for part in (each, *each.get("anyOf", ())) if part.get("properties")), None)
        if nested is not None:
            yield from _fields(f"{path}.", nested)


def _json_type(node: dict[str, Any]) -> str:
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(_json_type(part) for part in node["anyOf"]))
    if "enum" in node:
        return ", ".join(code(str(value)) for value in node["enum"])
    kind = node.get("type", "object")
    if isinstance(kind, list):
        return " or ".join(kind)
    return f"list of {_json_type(node['items'])}" if kind == "array" and node.get("items") else str(kind)


def _json(value: object) -> str:
    return "" if value in (None, "", [], {}) or isinstance(value, dict) else code(msgspec.json.encode(value).decode())


PAGES: dict[str, Callable[[], str]] = {
    "job-file": job_file,
    "borgctl": borgctl,
    "rest": rest,
    "errors": errors,
    "reasons": reasons,
    "events": events,
    "settings": settings,
    "metrics": metrics,
}
