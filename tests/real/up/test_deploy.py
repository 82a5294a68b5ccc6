"""Tests that the files in `deploy/` agree with the code."""

import configparser
import re
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml

from portal.settings.environment import SETTINGS
from portal.up.environment import machine_environment
from portal.up.home import Home
from portal.up.options import Options
from portal.up.processes import machines, servers, spares
from serving.processes import STOP_S

_ROOT = Path(__file__).parents[3]
_DEPLOY = _ROOT / "deploy"
# These differ between a laptop's start and a host's.
_OTHER_DEFAULTS = {"BORG_HOME": "/var/lib/borg"}


def test_every_setting_is_explained_with_its_default() -> None:
    lines = (_DEPLOY / "borg.env").read_text().splitlines()
    explained = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert explained == {name: setting.default for name, setting in SETTINGS.items()} | _OTHER_DEFAULTS
    for number, line in enumerate(lines):
        if re.match(r"BORG_\w+=", line):
            above = next(text for text in reversed(lines[:number]) if not text.startswith("BORG_"))
            assert above.startswith("# "), f"{line} has no explanation above it"


def _units() -> list[Path]:
    return sorted((_DEPLOY / "systemd").glob("*.service"))


def _read(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return parser


def _kept_by_make_up(tmp_path: Path) -> dict[str, str]:
    """Return the command line of each process of `make up`, by name of the process."""
    options = Options.read({"BORG_HOME": str(tmp_path)})
    home = Home(tmp_path)
    specs = [
        *servers(options, home, {}),
        *spares(options, home, {}),
        *machines(options, home, machine_environment(options, {}), {}),
    ]
    return {spec.name: " ".join(spec.argv) for spec in specs}


def test_each_process_of_make_up_has_a_unit_that_runs_the_same_program(tmp_path: Path) -> None:
    kept = _kept_by_make_up(tmp_path)
    units = {unit.stem.removeprefix("borg-").rstrip("@"): unit for unit in _units()}
    assert set(units) == set(kept) - {"master-batch"}, "borg-master@CELL.batch is of the unit of masters"
    for name, unit in units.items():
        program = next(
            part
            for part in ("portal.web", "scheduling.link", "scheduling.master", "naming.server", "celery", "borglet")
            if re.search(rf"[/ ]{part}\b", kept[name])
        )
        assert program in _read(unit)["Service"]["ExecStart"]


@pytest.mark.parametrize("unit", _units(), ids=lambda unit: unit.stem)
def test_a_unit_is_restarted_for_ever_and_hardened(unit: Path) -> None:
    read = _read(unit)
    service = read["Service"]
    assert service["Restart"] == "always"
    assert read["Unit"]["StartLimitIntervalSec"] == "0"
    if unit.stem == "borg-borglet":
        assert service["KillMode"] == "process", "stopping the Borglet must leave its tasks alone"
        assert service["Delegate"] == "yes"
    else:
        assert service["User"] == "borg"
        assert service["ProtectSystem"] == "strict"
        assert service["NoNewPrivileges"] == "yes"


def test_compose_runs_every_process_above_the_machines(tmp_path: Path) -> None:
    services = yaml.safe_load((_DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    assert set(services) == (set(_kept_by_make_up(tmp_path)) - {"borglet"}) | {"postgres", "redis", "migrate"}
    known = set(SETTINGS)
    for name, service in services.items():
        given = (
            {key for key in service["environment"] if key.startswith("BORG_")} if "environment" in service else set()
        )
        assert given <= known, name


def test_in_compose_a_resolver_is_asked_where_it_is_and_who_waits_holds_up_no_stop() -> None:
    read = yaml.safe_load((_DEPLOY / "compose" / "compose.yaml").read_text())
    services = read["services"]
    address = services["resolver"]["networks"]["default"]["ipv4_address"]
    assert ip_address(address) in ip_network(read["networks"]["default"]["ipam"]["config"][0]["subnet"])
    own = f"{address}@{services['resolver']['environment']['BORG_DNS_PORT']}"
    for process in ("web", "resolver"):
        assert services[process]["environment"]["BORG_DNS_RESOLVERS"] == f"${{BORG_DNS_RESOLVERS:-{own}}}"
    # Docker kills after 10 s, but a request may wait for a name for 60 s. So the parent kills its workers earlier.
    assert "portal.web" in services["web"]["command"]
    assert STOP_S < 10
