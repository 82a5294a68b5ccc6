"""Job files: Jsonnet, YAML or JSON, by their ending; `-` reads any of the three from standard input."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from portal.cli.failure import BAD_USAGE, Failed

LIBRARY = Path(__file__).parent
STDIN = "<stdin>"

_DEEPEST = 64
# As Jsonnet may begin, and YAML with block mappings does not.
_JSONNET_STARTS = ("{", "(", "//", "/*", "local ", "import ", "assert ")


def read(name: str) -> dict[str, Any]:
    """The job in the file. Raises `Failed` that names the file, and the line where there is one."""
    if name == "-":
        return _checked(_any(_text(STDIN, sys.stdin.buffer.read() if sys.stdin else b"")), STDIN)
    file = Path(name)
    try:
        text = _text(name, file.read_bytes())
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
        raise Failed("no-file", f"{name}: {reason}", fields={"FILE": reason}, status=BAD_USAGE) from error
    if file.suffix in (".yaml", ".yml"):
        return _checked(_yaml(name, text), name)
    if file.suffix == ".json":
        return _checked(_json(name, text), name)
    return _checked(_jsonnet(name, text), name)


def _text(name: str, data: bytes) -> str:
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
    except (RecursionError, ValueError) as error:  # a number of thousands of digits
        raise _bad(name, f"{name}: no JSON of a job: {error}") from error


def _yaml(name: str, text: str) -> Any:
    from portal.cli import plainyaml

    try:
        return plainyaml.load(text)
    except plainyaml.NotPlain as error:
        place = f"{name}:{error.line}:{error.column}" if error.line else name
        raise _bad(name, f"{place}: no YAML of a job: {error}") from error


def _jsonnet(name: str, text: str) -> Any:
    import _jsonnet

    folder = Path(name).parent if name != STDIN else Path.cwd()

    def find(base: str, wanted: str) -> tuple[str, bytes]:
        for place in (Path(base) if base else folder, folder, LIBRARY):
            candidate = place / wanted
            if candidate.is_file():
                return str(candidate), candidate.read_bytes()
        raise RuntimeError("it is neither beside the job file nor in the library")

    try:
        return json.loads(_jsonnet.evaluate_snippet(name, text, import_callback=find))
    except RuntimeError as error:  # of which RecursionError is one
        told = str(error).strip().splitlines() or ["is nested too deeply"]
        kind, _, reason = told[0].partition(": ")
        # An error while it is worked out tells its place in the lines below: the first is the innermost.
        where = f"{told[1].split()[0]}: " if len(told) > 1 and ":" in told[1].split()[0] else ""
        told_short = f"{where}{reason}" if kind.endswith("ERROR") else told[0]
        prefix = "" if name in told_short else f"{name}: "
        raise _bad(name, f"{prefix}{told_short} (no Jsonnet of a job)") from error


def _bad(name: str, detail: str) -> Failed:
    return Failed("bad-file", detail, fields={"FILE": f"{name} can't be read"})


def _checked(job: Any, name: str) -> dict[str, Any]:
    if not isinstance(job, dict):
        raise _bad(name, f"{name} holds no job: a job is an object with `name` and `task`")
    if _depth(job) > _DEEPEST:
        raise _bad(name, f"{name}: is nested too deeply to be a job")
    return job


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= _DEEPEST:
        depth += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return depth
