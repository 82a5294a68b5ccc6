"""Reads job files in Jsonnet, YAML or JSON. The file extension decides the language. The file name `-` means standard
input; its first characters decide the language.
"""

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
MAX_BYTES = 4 * 2**20  # the server has the same limit

# A text that begins like this is Jsonnet, and no YAML block mapping begins like this.
_JSONNET_STARTS = ("{", "(", "//", "/*", "local ", "import ", "assert ")


def read(name: str) -> dict[str, Any]:
    """Return the job that the file `name` describes. Raises `CommandFailed` if the file cannot be read or is not valid.
    The message contains the file name and, if known, the line.
    """
    if name == "-":
        text = _text(STDIN, sys.stdin.buffer) if sys.stdin else ""
        parse = _jsonnet if text.lstrip().startswith(_JSONNET_STARTS) else _yaml
        return _checked(parse(STDIN, text), STDIN)
    file = Path(name)
    try:
        with file.open("rb") as opened:
            text = _text(name, opened)
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
        problem = f"cannot read {name}: {reason}; check the name of the file"
        raise CommandFailed("no-file", problem, fields={"FILE": reason}, status=BAD_USAGE) from error
    parse = {".yaml": _yaml, ".yml": _yaml, ".json": _json}.get(file.suffix, _jsonnet)
    return _checked(parse(name, text), name)


def _text(name: str, file: BinaryIO) -> str:
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _bad(name, f"{name}: the file has more than {MAX_BYTES} bytes, the limit of a job file; shorten it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _bad(name, f"{name}:{line}: the line is not UTF-8; save the file as UTF-8") from error


def _json(name: str, text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise _bad(name, f"{name}: {key!r} appears twice in one object; keep one of the two")
            found[key] = value
        return found

    def number(text: str) -> float:
        if not math.isfinite(value := float(text)):
            raise _bad(name, f"{name}: a job cannot contain the number {text}; use a finite number")
        return value

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=number, parse_float=number)
    except json.JSONDecodeError as error:
        raise _bad(
            name, f"{name}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}; correct the file there"
        ) from error
    except (RecursionError, ValueError) as error:  # for example, a number with thousands of digits
        reason = f"the job {TOO_DEEP}" if isinstance(error, RecursionError) else error
        raise _bad(name, f"{name}: not a JSON job file: {reason}; correct the file") from error


def _yaml(name: str, text: str) -> Any:
    from portal.cli import plainyaml

    try:
        return plainyaml.load(text)
    except plainyaml.NotPlain as error:
        place = f"{name}:{error.line}:{error.column}" if error.line else name
        raise _bad(name, f"{place}: not a YAML job file: {error}; correct the file") from error


def _jsonnet(name: str, text: str) -> Any:
    folder = Path(name).parent if name != STDIN else Path.cwd()
    try:
        return json.loads(jsonnet.evaluate(name, text, folder=folder))
    except RecursionError as error:
        raise _bad(name, f"{name}: not a Jsonnet job file: the job {TOO_DEEP}") from error
    except jsonnet.JsonnetError as error:
        lines = str(error).strip().splitlines() or ["the program has no result"]
        kind, _, reason = lines[0].partition(": ")
        # The lines after an evaluation error are its places, beginning with the innermost place.
        where = f"{lines[1].split()[0]}: " if len(lines) > 1 and ":" in lines[1].split()[0] else ""
        summary = f"{where}{reason}" if kind.endswith("ERROR") else lines[0]
        prefix = "" if name in summary else f"{name}: "
        raise _bad(name, f"{prefix}cannot evaluate the job file as Jsonnet: {summary}; correct the file") from error


def _bad(name: str, detail: str) -> CommandFailed:
    return CommandFailed("bad-file", detail, fields={"FILE": f"{name} cannot be read"})


def _checked(job: Any, name: str) -> dict[str, Any]:
    if not isinstance(job, dict):
        raise _bad(name, f"{name} does not contain a job: write an object with `name` and `task`")
    if too_deep(job):
        raise _bad(name, f"{name}: the job {TOO_DEEP}")
    return job
