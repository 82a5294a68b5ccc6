"""Job files: Jsonnet, YAML or JSON, by their ending; `-` reads any of the three from standard input."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, BinaryIO

from portal.cli import jsonnet
from portal.cli.failure import BAD_USAGE, CommandFailed
from scheduling.spec.nesting import TOO_DEEP, too_deep

STDIN = "<stdin>"
MAX_BYTES = 4 * 2**20  # of a file, as of what the server reads

# As Jsonnet may begin, and YAML with block mappings does not.
_JSONNET_STARTS = ("{", "(", "//", "/*", "local ", "import ", "assert ")


def read(name: str) -> dict[str, Any]:
    """The job in the file. Raises `CommandFailed` that names the file, and the line where there is one."""
    if name == "-":
        return _checked(_any(_text(STDIN, _bytes(sys.stdin.buffer) if sys.stdin else b"")), STDIN)
    file = Path(name)
    try:
        with file.open("rb") as opened:
            text = _text(name, _bytes(opened))
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
        raise CommandFailed(
            "no-file", f"{name}: {reason}", fields={"FILE": reason}, status=BAD_USAGE
        ) from error
    if file.suffix in (".yaml", ".yml"):
        return _checked(_yaml(name, text), name)
    if file.suffix == ".json":
        return _checked(_json(name, text), name)
    return _checked(_jsonnet(name, text), name)


def _bytes(file: BinaryIO) -> bytes:
    """The file, or one byte more than it may have."""
    return file.read(MAX_BYTES + 1)


def _text(name: str, data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise _bad(name, f"{name}: has more than {MAX_BYTES} bytes; a job file has at most so many")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _bad(name, f"{name}:{line}: is not UTF-8") from error


def _any(text: str) -> Any:
    """Jsonnet, of which JSON is a part, or else YAML; the complaint is about what it looks like."""
    if text.lstrip().startswith(_JSONNET_STARTS):
        return _jsonnet(STDIN, text)
    return _yaml(STDIN, text)


def _json(name: str, text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise _bad(name, f"{name}: {key!r} stands twice in one object; keep one")
            found[key] = value
        return found

    def number(text: str) -> float:
        if not math.isfinite(value := float(text)):
            raise _bad(name, f"{name}: {text} is no number of a job")
        return value

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=number, parse_float=number)
    except json.JSONDecodeError as error:
        raise _bad(name, f"{name}:{error.lineno}:{error.colno}: no JSON: {error.msg}") from error
    except RecursionError as error:
        raise _bad(name, f"{name}: no JSON of a job: {TOO_DEEP}") from error
    except ValueError as error:  # a number of thousands of digits
        raise _bad(name, f"{name}: no JSON of a job: {error}") from error


def _yaml(name: str, text: str) -> Any:
    from portal.cli import plainyaml

    try:
        return plainyaml.load(text)
    except plainyaml.NotPlain as error:
        place = f"{name}:{error.line}:{error.column}" if error.line else name
        raise _bad(name, f"{place}: no YAML of a job: {error}") from error


def _jsonnet(name: str, text: str) -> Any:
    folder = Path(name).parent if name != STDIN else Path.cwd()
    try:
        return json.loads(jsonnet.evaluate(name, text, folder=folder))
    except RecursionError as error:
        raise _bad(name, f"{name}: no Jsonnet of a job: {TOO_DEEP}") from error
    except jsonnet.JsonnetError as error:
        told = str(error).strip().splitlines() or ["it has no result"]
        kind, _, reason = told[0].partition(": ")
        # An error while it is worked out tells its place in the lines below: the first is the innermost.
        where = f"{told[1].split()[0]}: " if len(told) > 1 and ":" in told[1].split()[0] else ""
        told_short = f"{where}{reason}" if kind.endswith("ERROR") else told[0]
        prefix = "" if name in told_short else f"{name}: "
        raise _bad(name, f"{prefix}{told_short} (no Jsonnet of a job)") from error


def _bad(name: str, detail: str) -> CommandFailed:
    return CommandFailed("bad-file", detail, fields={"FILE": f"{name} can't be read"})


def _checked(job: Any, name: str) -> dict[str, Any]:
    if not isinstance(job, dict):
        raise _bad(name, f"{name} holds no job: a job is an object with `name` and `task`")
    if too_deep(job):
        raise _bad(name, f"{name}: {TOO_DEEP}")
    return job
