"""Job files: Jsonnet, YAML or JSON, by their ending; `-` reads any of the three from standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from portal.cli.failure import Failed

LIBRARY = Path(__file__).parent


def read(name: str) -> dict[str, Any]:
    """The job in the file. Raises `Failed` that names the file, and the line where there is one."""
    if name == "-":
        return _checked(_jsonnet("<stdin>", sys.stdin.read()), name)
    file = Path(name)
    try:
        text = file.read_text()
    except OSError as error:
        raise Failed(
            "no-file", f"{name}: {error.strerror}", fields={"FILE": str(error.strerror)}, status=2
        ) from error
    except UnicodeDecodeError as error:
        raise Failed("bad-file", f"{name} is no text file: {error}", fields={"FILE": "not UTF-8"}) from error
    if file.suffix in (".yaml", ".yml"):
        return _checked(_yaml(name, text), name)
    if file.suffix == ".json":
        return _checked(_json(name, text), name)
    return _checked(_jsonnet(name, text), name)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failed("bad-file", f"{name} is no JSON: {error}", fields={"FILE": str(error)}) from error


def _yaml(name: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Failed("bad-file", f"{name} is no YAML: {error}", fields={"FILE": str(error)}) from error


def _jsonnet(name: str, text: str) -> Any:
    import _jsonnet

    folder = Path(name).parent if name != "<stdin>" else Path.cwd()

    def find(base: str, wanted: str) -> tuple[str, bytes]:
        for place in (Path(base) if base else folder, folder, LIBRARY):
            candidate = place / wanted
            if candidate.is_file():
                return str(candidate), candidate.read_bytes()
        raise RuntimeError(f"{wanted} is neither beside the job file nor in the library")

    try:
        return json.loads(_jsonnet.evaluate_snippet(name, text, import_callback=find))
    except RuntimeError as error:
        reason = str(error).strip()
        raise Failed("bad-file", f"{name} is no Jsonnet: {reason}", fields={"FILE": reason}) from error


def _checked(job: Any, name: str) -> dict[str, Any]:
    if not isinstance(job, dict):
        raise Failed("bad-file", f"{name} holds no job: a job is an object with `name` and `task`")
    return job
