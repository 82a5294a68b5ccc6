"""Tests of documents: the settings, commands, make targets and metrics that they name exist in the program."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from django.core.management import get_commands

from borglet.runtimes.base import task_command
from portal.cli.main import app
from portal.settings import checks
from portal.settings.environment import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
# These settings are read by `borgctl` (some of them also as `--option`) and by `make up`.
OF_CLIENTS = {"BORG_PROFILE", "BORG_TENANT", "BORG_TOKEN", "BORG_URL", "BORG_CELL", "BORG_CLIENT"}
# Variables of the command that `borgctl lock acquire --exec` runs.
OF_COMMANDS = {"BORG_LOCK", "BORG_LOCK_TOKEN"}
OF_MAKE_UP = {"BORG_HOME"}
# `deploy/ha/prepare.py` writes these for the engines of a control host.
OF_CONTROL_HOSTS = {
    *("BORG_HA_NAME", "BORG_HA_ADDRESS", "BORG_HA_LISTEN", "BORG_HA_HOST_1", "BORG_HA_HOST_2", "BORG_HA_HOST_3"),
    *("BORG_HA_BACKUPS", "BORG_HA_BACKUPS_KEEP"),
}


def documents() -> Iterator[Path]:
    """Return the paths of all documents that describe the present version. The change log is left out."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "deploy", "examples"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return (ROOT / name for name in listed.stdout.split() if name != "CHANGELOG.md")


def named(pattern: str, *, within: str = "") -> dict[str, str]:
    """Return each match of a pattern in documents below `within`, with the path of a document that contains it."""
    found = {}
    for path in documents():
        if path.is_relative_to(ROOT / within):
            for name in re.findall(pattern, path.read_text()):
                found[name] = str(path.relative_to(ROOT))
    return found


def code_of(*packages: str) -> str:
    return "\n".join(path.read_text() for each in packages for path in sorted((ROOT / each).rglob("*.py")))


def runbook() -> str:
    return (ROOT / "deploy" / "README.md").read_text()


def test_every_setting_that_a_document_names_exists() -> None:
    options = re.findall(r'option\(\s*(?:\w+,\s*)?"--([a-z-]+)"', (ROOT / "borglet" / "__main__.py").read_text())
    machines = {"BORGLET_" + option.upper().replace("-", "_") for option in options} | {"BORGLET_ATTRIBUTES"}
    tasks = set(re.findall(r'"(BORG_[A-Z_]+)"', Path(task_command.__file__).read_text())) | {"BORG_ALLOC_ENDED"}
    known = set(SETTINGS) | machines | tasks | OF_CLIENTS | OF_COMMANDS | OF_MAKE_UP | OF_CONTROL_HOSTS
    mentioned = named(r"\bBORG(?:LET)?_[A-Z0-9_]*[A-Z0-9]\b")
    assert len(mentioned) > 60
    assert {name: where for name, where in mentioned.items() if name not in known} == {}


def test_every_command_that_a_document_names_exists() -> None:
    managed = named(r"manage\.py ([a-z_]+)")
    assert managed.keys() <= get_commands().keys(), managed
    commands = typer.main.get_command(app)
    unknown = {}
    for line, where in named(r"\bborgctl(?: --profile \w+)? ([a-z][a-z-]*(?: [a-z][a-z-]*)?)").items():
        first, _, second = line.partition(" ")
        command = commands.commands.get(first)  # type: ignore[attr-defined]
        if command is None or (second and hasattr(command, "commands") and second not in command.commands):
            unknown[line] = where
    assert unknown == {}


def test_every_target_of_make_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    mentioned = named(r"(?:`|\$ )make ([a-z-]+)")
    assert {target: where for target, where in mentioned.items() if target not in targets} == {}


def test_every_figure_that_the_runbook_alerts_on_exists() -> None:
    code = code_of("portal", "quota", "scheduling", "naming")
    resolver = "borg_resolver_"
    for name in named(r"\bborg_[a-z0-9_]*[a-z0-9]\b", within="deploy"):
        # Prometheus' library adds these endings to the names of counters and histograms.
        assert name.removeprefix(resolver).removesuffix("_bucket").removesuffix("_total") in code, name


@pytest.mark.parametrize(
    ("setting", "form"),
    [
        ("BORG_DATABASE_URL", "postgresql://borg@db1:5432,db2:5432/borg"),
        ("BORG_REDIS_URL", "redis+sentinel://redis1:26379,redis2:26379/borg"),
    ],
)
def test_the_runbook_shows_lists_of_hosts_that_settings_accept(setting: str, form: str) -> None:
    check = {"BORG_DATABASE_URL": checks.database, "BORG_REDIS_URL": checks.redis}[setting]
    assert check(form) == ""
    assert f"`{setting}={form}`" in runbook()


def test_the_runbook_says_when_rows_of_the_journal_are_removed() -> None:
    code = code_of("portal", "quota", "scheduling")
    assert re.search(r"(DELETE FROM|TRUNCATE) +scheduling_event\b", code) is None
    assert "The journal (`scheduling_event`) is dropped only when it is archived" in " ".join(runbook().split())


def test_alerts_use_metrics_that_exist_and_say_what_to_do() -> None:
    # The runbook names the metrics of resolvers without their common prefix.
    documented = (ROOT / "scheduling" / "README.md").read_text() + runbook()
    for path in (ROOT / "deploy" / "prometheus").glob("*.rules.yml"):
        rules = path.read_text()
        # A histogram has its buckets under a name of their own.
        used = {name.removesuffix("_bucket") for name in re.findall(r"\bborg_\w+", rules)}
        assert used
        assert [name for name in used if f"`{name.removeprefix('borg_resolver_')}`" not in documented] == []
        assert rules.count("- alert:") == rules.count("description:")
        assert rules.count("- alert:") + rules.count("- record:") == rules.count("expr:")


def test_the_help_and_the_file_of_settings_of_a_borglet_name_no_other_options() -> None:
    """Each setting in `borglet.env` is an option of `python -m borglet` in capitals, with the prefix `BORGLET_`."""
    lines = (ROOT / "deploy" / "systemd" / "borglet.env").read_text().splitlines()
    explained = {match[1] for line in lines if (match := re.match(r"#?(BORGLET_[A-Z_]+)=", line))}
    options = set(re.findall(r'"--([a-z-]+)"', (ROOT / "borglet" / "__main__.py").read_text()))
    assert {name.removeprefix("BORGLET_").lower().replace("_", "-") for name in explained} <= options
