"""Contracts of `deploy/`: systemd, Compose and Helm run the same processes with the same commands and settings."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from portal.settings.environment import SETTINGS, complaints
from tests.contracts.test_documents import OF_CONTROL_HOSTS
from tests.deployment import units

_HA = units.ROOT / "deploy" / "ha"
_PROGRAMS = "/opt/borg/.venv/bin/"


def _plain(command: list[str]) -> list[str]:
    """Return a command without the folder of Python programs, which are in the PATH of a container."""
    return [part.removeprefix(_PROGRAMS) for part in command]


def _units() -> Mapping[str, list[str]]:
    """Return the command of each unit of a control host, by the name of its container. Cells are named `dev`."""
    return {
        unit.name.removeprefix("borg-").rstrip("@"): [part.replace("%i", "dev") for part in _plain(unit.command)]
        for unit in units.all_units()
    }


def _services(path: Path) -> Mapping[str, list[str]]:
    return {
        name: one["command"] for name, one in yaml.safe_load(path.read_text())["services"].items() if "command" in one
    }


def _chart() -> Mapping[str, list[str]]:
    """Return the commands in the templates of the chart, which only Helm can render."""
    borg = (_HA / "chart" / "templates" / "borg.yaml").read_text()
    engines = (_HA / "chart" / "templates" / "engines.yaml").read_text()
    found = {
        name: re.findall(r'"([^"]+)"', parts)
        for name, parts in re.findall(r'^  "([\w-]+)" \(list ([^)]*)\)', borg, re.M)
    }
    (master,) = re.findall(r'"master-%s" \.\) \(list ([^)]*) \.\)', borg)
    found["master"] = [*re.findall(r'"([^"]+)"', master), "dev"]
    for name, command in re.findall(r'^  "(\w+)" "(?:exec )?([^"]*)"', engines, re.M):
        found[name] = command.split()
    return found


@pytest.mark.parametrize("form", ["compose", "chart"])
def test_containers_run_the_commands_of_the_units(form: str) -> None:
    found = dict(_services(_HA / "compose.yaml") if form == "compose" else _chart())
    wanted = dict(_units())
    # A unit has a timer, and a container a loop.
    loop = " ".join(found.pop("backup"))
    assert re.findall(r"while sleep \d+; do (.*); done", loop) == [" ".join(wanted.pop("backup"))]
    if form == "chart":
        del wanted["haproxy"]  # services of Kubernetes take its place
    assert found == wanted


def test_compose_on_one_host_runs_the_same_processes_of_borg() -> None:
    found, wanted = _services(units.ROOT / "deploy" / "compose" / "compose.yaml"), _units()
    processes = ("web", "link", "worker", "master", "beat", "resolver")
    assert {name: found[name] for name in processes} == {name: wanted[name] for name in processes}


def _prepare(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(_HA / "prepare.py"), "--out", str(out), *arguments]
    return subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)


def test_the_settings_of_control_hosts_are_valid_and_their_secrets_survive_new_certificates(tmp_path: Path) -> None:
    given = ("--url", "https://borg.example.org", "c1=192.0.2.1", "c2=192.0.2.2", "c3=192.0.2.3")
    assert _prepare(tmp_path / "out", *given).returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    variables = units.environment_file(tmp_path / "out" / "borg.env")
    assert list(complaints(variables)) == []
    assert set(SETTINGS) < set(variables)
    host = units.environment_file(tmp_path / "out" / "host.c1.env")
    assert {name for name in host if name.startswith("BORG_")} == OF_CONTROL_HOSTS
    other = (tmp_path / "out" / "authority" / "ca.pem").read_bytes()
    (tmp_path / "out" / "tls" / "portal.crt").write_bytes(other)
    assert _prepare(tmp_path / "out", *given).returncode == 0
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"host.crt", "host.key", "borg.crt", "borg.key", "portal.crt"}, (
        "a portal.crt of another authority stays"
    )


def test_hosts_that_cannot_be_prepared_are_named(tmp_path: Path) -> None:
    done = _prepare(
        tmp_path / "out", "--url", "http://borg.example.org", "c1=192.0.2.1", "c2=192.0.2.2", "c3=192.0.2.3"
    )
    assert "is not of the form https://HOST" in done.stderr
    done = _prepare(tmp_path / "out", "--url", "https://borg.example.org", "c1=192.0.2.1", "c2=192.0.2.1", "c3=")
    assert "three names and three addresses" in done.stderr
    assert not (tmp_path / "out").exists()
