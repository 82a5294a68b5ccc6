"""Tests of the alert rules in `deploy/prometheus`, which Prometheus' own tool `promtool` reads and evaluates.

Tests of the guide `docs/guides/alarms.md`: each alert, message of the console and error in a log has an entry.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance import runbook

ROOT = Path(__file__).resolve().parents[2]
CONSOLE = ROOT / "portal" / "console" / "attention.py"
SERVERS = ("portal", "quota", "scheduling", "naming", "serving")


def promtool(*arguments: object) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_all_rules() -> None:
    promtool("check", "rules", *sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yml")))


@pytest.mark.parametrize("name", ["archive_alerts.yml", "cells_alerts.yml", "statistics_alerts.yml"])
def test_alerts_are_raised_and_only_then(name: str) -> None:
    promtool("test", "rules", Path(__file__).with_name(name))


def alerts() -> list[str]:
    rules = [path.read_text() for path in sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yml"))]
    return re.findall(r"- alert: (\w+)", "\n".join(rules))


def messages(path: Path) -> set[str]:
    """Return the texts of the messages that the console shows to SREs: the translated sentences, with the singular of
    each `ngettext`. Titles of links do not end with a full stop.
    """
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    texts = (call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id in ("ngettext", "_"))
    return {text.value for text in texts if isinstance(text, ast.Constant) and str(text.value).endswith(".")}


def errors_in_logs() -> Iterator[str]:
    """Yield the text of each log line of level `error` of the server processes."""
    for path in (path for package in SERVERS for path in sorted((ROOT / package).rglob("*.py"))):
        if "up" in path.relative_to(ROOT).parts:  # `make up` prints to the terminal of a person
            continue
        code = path.read_text()
        for node in ast.walk(ast.parse(code)) if "log." in code else ():
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log"), attr="error" | "exception" | "critical"),
                    args=[ast.Constant(value=str(text)), *_],
                ):
                    yield text


def in_tables(section: str) -> set[str]:
    """Return the code in the first column of the tables of a section of the guide."""
    text = runbook.ALARMS.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    return {code for row in rows for code in re.findall(r"(?:`` ?(.+?) ?``|`([^`]+)`)", row) for code in code if code}


def test_each_alert_has_an_entry_and_each_entry_an_alert() -> None:
    assert len(alerts()) > 25
    assert sorted(alerts()) == sorted(runbook.entries())


def test_each_entry_says_what_users_notice_how_to_look_what_to_do_and_when_it_is_over() -> None:
    for name, text in runbook.entries().items():
        assert re.findall(r"^\*\*(\w+)\*\*", text, re.MULTILINE) in (
            ["Users", "Look", "Do", "Over"],
            ["Users", "Look", "Over"],
        ), name
        assert re.search(r"^1\. ", text, re.MULTILINE) or "as for [" in text, f"{name} has no numbered step"


def test_each_command_of_an_entry_is_run_by_a_test_or_named_with_a_reason() -> None:
    text = runbook.ALARMS.read_text()
    typed = {command.line for command in runbook.commands(text)}
    mentioned = runbook.mentioned(text) - typed
    assert sorted(mentioned) == sorted({*runbook.ELSEWHERE, *runbook.NOWHERE})
    for command, (path, content) in runbook.ELSEWHERE.items():
        assert content in (ROOT / path).read_text(), command


def test_each_message_of_the_console_is_explained() -> None:
    assert in_tables("Messages of the console") == messages(CONSOLE)


def test_each_error_in_a_log_is_explained() -> None:
    explained = in_tables("Errors in logs")
    assert explained - {"error", "event"} == set(errors_in_logs())
