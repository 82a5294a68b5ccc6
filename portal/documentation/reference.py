"""The pages of the reference, generated from the code, so that they cannot contradict it.

Each function returns one page as Markdown. `PAGES` lists them.
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
from naming.figures import ServerCounters
from naming.metrics import Figured
from portal.cli.main import app
from portal.documentation.markdown import code, first_sentence, page, table
from portal.settings.environment import SETTINGS
from quota import metrics as quota_metrics
from scheduling.api.jobfile import schema
from scheduling.core.vocabulary import events as journal_events
from scheduling.core.vocabulary.job_health import JobHealth
from scheduling.core.vocabulary.reasons import ReasonCode
from scheduling.core.vocabulary.states import EvictionCause, JobState, TaskState
from scheduling.link.shard.metrics import ShardMetrics
from scheduling.master import metrics as master_metrics

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("portal", "naming", "scheduling", "quota")
_METHODS = ("get", "post", "put", "patch", "delete")
# Classes of errors by the HTTP status of their answer.
_STATUS_OF = {"Rejected": 422, "Conflict": 409}
_MODULE = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z])")
_COMMENT = re.compile(r'^    ([A-Z_]+) = "[^"]*"\s*#\s*(.+)$', re.MULTILINE)


def settings() -> str:
    """Settings of the server's processes and of a Borglet."""
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
        "Every process reads its settings from the environment. A start fails with one line per setting that is wrong.",
        "## Server",
        server,
        "## Borglet",
        "A setting and the option of `borglet run` with the same name have the same effect.",
        machine,
    )


def _borglet_options() -> Iterator[tuple[str, str, str]]:
    """Yield name, default and help of each option of `borglet run`."""
    verbs = next(each for each in build_parser()._actions if isinstance(each.choices, dict))
    assert isinstance(verbs.choices, dict)
    for action in verbs.choices["run"]._actions:
        name = next((option.removeprefix("--") for option in action.option_strings if option.startswith("--")), "")
        if name and name != "help":
            yield name, "" if action.default in (None, False) else str(action.default), action.help or ""


def metrics() -> str:
    """Metrics of the web processes, of link shards and of resolvers."""
    parts = []
    for title, where, families in (
        ("Cells", "At `/metrics` of each web process.", _declared(inspect.getsource(master_metrics))),
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
    return page("Metrics", "Prometheus reads these metrics. The runbook says which of them to alert on.", *parts)


def _collected(families: Iterator[Metric]) -> Iterator[tuple[str, str, str, list[str]]]:
    for family in families:
        ending = "_total" if family.type == "counter" else ""
        yield (family.name + ending, family.type, family.documentation, list(getattr(family, "_labelnames", ())))


def _declared(source: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield name, type, text and labels of the metrics that `source` declares.

    The collectors of cells and of the market read the database, so their code is read and not run.
    """
    module = ast.parse(source)
    constants = {
        target.id: node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        kind = (
            node.func.id.removesuffix("MetricFamily")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            else ""
        )
        if kind not in ("Gauge", "Counter", "Histogram") or not isinstance(node, ast.Call):
            continue
        name, text = (ast.literal_eval(argument) for argument in node.args[:2])
        given = (
            node.args[2] if len(node.args) > 2 else next((k.value for k in node.keywords if k.arg == "labels"), None)
        )
        given = constants.get(given.id, given) if isinstance(given, ast.Name) else given
        ending = "_total" if kind == "Counter" and not name.endswith("_total") else ""
        yield name + ending, kind.lower(), text, list(ast.literal_eval(given)) if given is not None else []


def events() -> str:
    """Events of a cell's journal."""
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
    """States, causes and reasons."""
    parts = []
    for title, about, members in (
        ("Why a task is pending", "A machine is counted under the first reason that rules it out.", ReasonCode),
        ("Why a task was evicted", "The cause of `task.evicted` (Figure 3 of the paper).", EvictionCause),
        ("States of a task", "", TaskState),
        ("States of a job", "", JobState),
        ("Health of a job", "The first that applies.", JobHealth),
    ):
        comments = dict(_COMMENT.findall(inspect.getsource(members)))
        rows = [[code(member.value), comments.get(member.name, "")] for member in members]
        parts += [f"## {title}", about, table(["code", "meaning"], rows)]
    return page("States and reasons", "The values that REST, `borgctl` and the pages show.", *parts)


def errors() -> str:
    """Error codes of REST."""
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
    """Yield code, HTTP status and detail of each `Rejected(…)` that `module` makes with a literal code."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) < 2:
            continue
        given = node.args[0]
        if node.func.id in _STATUS_OF and isinstance(given, ast.Constant) and isinstance(given.value, str):
            status = next((k.value for k in node.keywords if k.arg == "status"), None)
            number = status.value if isinstance(status, ast.Constant) and isinstance(status.value, int) else None
            yield given.value, number or _STATUS_OF[node.func.id], _text_of(node.args[1])


def _text_of(node: ast.expr) -> str:
    """Return the text that an expression makes, with … for each part that is computed."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text_of(node.left) + _text_of(node.right)
    return "…"


def borgctl() -> str:
    """All commands of `borgctl`."""
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
    """All addresses of REST."""
    known: dict[str, list[list[str]]] = {}
    for path, item in SchemaGenerator().get_schema(public=True)["paths"].items():  # type: ignore[no-untyped-call]
        for method in _METHODS:
            if method in item:
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
    """All fields of a job file."""
    return page(
        "Job file",
        "A job file is Jsonnet, YAML or JSON. The minimum is a name and a task with a command. "
        "A field that is not listed here is rejected.",
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
