"""Job files in Jsonnet, YAML or JSON, chosen by the file extension; `-` reads any of them from standard input."""

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
MAX_BYTES = 4 * 2**20  # the limit of the server too

# Beginnings of Jsonnet that YAML block mappings do not have.
_JSONNET_STARTS = ("{", "(", "//", "/*", "local ", "import ", "assert ")


def read(name: str) -> dict[str, Any]:
    """Return the job in the file. Raises `CommandFailed` with the file's name, and the line if there is one."""
    if name == "-":
        return _checked(_any(_text(STDIN, _bytes(sys.stdin.buffer) if sys.stdin else b"")), STDIN)
    file = Path(name)
    try:
        with file.open("rb") as opened:
            text = _text(name, _bytes(opened))
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
        raise CommandFailed("no-file", f"{name}: {reason}", fields={"FILE": reason}, status=BAD_USAGE) from error
    if file.suffix in (".yaml", ".yml"):
        return _checked(_yaml(name, text), name)
    if file.suffix == ".json":
        return _checked(_json(name, text), name)
    return _checked(_jsonnet(name, text), name)


def _bytes(file: BinaryIO) -> bytes:
    """Read the file, or one byte more than the limit."""
    return file.read(MAX_BYTES + 1)


def _text(name: str, data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise _bad(name, f"{name}: has more than {MAX_BYTES} bytes, the limit for a job file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _bad(name, f"{name}:{line}: is not UTF-8") from error


def _any(text: str) -> Any:
    """Parse Jsonnet (which includes JSON) or YAML, chosen by how the text begins."""
    if text.lstrip().startswith(_JSONNET_STARTS):
        return _jsonnet(STDIN, text)
    return _yaml(STDIN, text)


def _json(name: str, text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise _bad(name, f"{name}: {key!r} appears twice in one object; keep one")
            found[key] = value
        return found

    def number(text: str) -> float:
        if not math.isfinite(value := float(text)):
            raise _bad(name, f"{name}: a job cannot contain the number {text}")
        return value

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=number, parse_float=number)
    except json.JSONDecodeError as error:
        raise _bad(name, f"{name}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise _bad(name, f"{name}: not a JSON job file: {TOO_DEEP}") from error
    except ValueError as error:  # a number with thousands of digits
        raise _bad(name, f"{name}: not a JSON job file: {error}") from error


def _yaml(name: str, text: str) -> Any:
    from portal.cli import plainyaml

    try:
        return plainyaml.load(text)
    except plainyaml.NotPlain as error:
        place = f"{name}:{error.line}:{error.column}" if error.line else name
        raise _bad(name, f"{place}: not a YAML job file: {error}") from error


def _jsonnet(name: str, text: str) -> Any:
    folder = Path(name).parent if name != STDIN else Path.cwd()
    try:
        return json.loads(jsonnet.evaluate(name, text, folder=folder))
    except RecursionError as error:
        raise _bad(name, f"{name}: not a Jsonnet job file: {TOO_DEEP}") from error
    except jsonnet.JsonnetError as error:
        lines = str(error).strip().splitlines() or ["it has no result"]
        kind, _, reason = lines[0].partition(": ")
        # The lines below an evaluation error are its places, the innermost first.
        where = f"{lines[1].split()[0]}: " if len(lines) > 1 and ":" in lines[1].split()[0] else ""
        summary = f"{where}{reason}" if kind.endswith("ERROR") else lines[0]
        prefix = "" if name in summary else f"{name}: "
        raise _bad(name, f"{prefix}{summary} (not a Jsonnet job file)") from error


def _bad(name: str, detail: str) -> CommandFailed:
    return CommandFailed("bad-file", detail, fields={"FILE": f"{name} cannot be read"})


def _checked(job: Any, name: str) -> dict[str, Any]:
    if not isinstance(job, dict):
        raise _bad(name, f"{name} does not contain a job: a job is an object with `name` and `task`")
    if too_deep(job):
        raise _bad(name, f"{name}: {TOO_DEEP}")
    return job
