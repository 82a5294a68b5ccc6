"""Tests of `borgctl` itself: global options at any place, exit status 2 for bad usage, and few imports at the start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from portal.cli.main import globals_first
from tests.borgctl import BORGCTL, run


def borgctl(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment}
    return run(words, env=env, cwd="/")


@pytest.mark.parametrize(
    "given, front, rest",
    [
        (["status", "--json"], ["--json"], ["status"]),
        (["status", "web", "--profile", "a"], ["--profile", "a"], ["status", "web"]),
        (["status", "--profile=a", "--json"], ["--profile=a", "--json"], ["status"]),
        (["kill", "--", "--json"], [], ["kill", "--", "--json"]),
        ([], [], []),
    ],
)
def test_global_options_are_moved_to_the_front(given: list[str], front: list[str], rest: list[str]) -> None:
    assert globals_first(given) == (front, rest)


@pytest.mark.parametrize(
    "words, told",
    [
        (["statu"], "No such command 'statu'"),
        (["status", "--nope"], "No such option"),
        (["wait"], "Missing argument 'JOB'. See `borgctl wait --help`."),
        (["wait", "web", "--for", "lunch"], "running', 'visible', 'done'"),
        (["wait", "web", "--timeout", "soon"], "--timeout"),
        (["kill", "web", "-t", "x"], "--task"),
        (["kill", "web", "-t", "-1"], "--task"),
        (["events", "--limit", "-1"], "--limit"),
        (["machine", "drain", "m1"], "--reason"),
        (["machine", "explode"], "No such command 'explode'"),
        (["status", "--profile"], "--profile has no value"),
        (["submit", "/nonexistent/file"], "/nonexistent/file"),
        (["logs", "web"], "'web' is not a task"),
        (["status", "We_b"], "is not a valid job name"),
        (["machine", "show", ".."], "not a host name"),
        (["tokens", "revoke", "../x"], "not the key of a token"),
        (["experiment", "shapes", "--output", "x"], "give either --data"),
    ],
)
def test_bad_usage_ends_with_2_and_says_what_is_wrong(words: list[str], told: str) -> None:
    environment = {"BORG_URL": "http://127.0.0.1:9", "BORG_CELL": "cc", "BORG_TENANT": "ubar"}
    done = borgctl(*words, **environment)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    in_json = borgctl(*words[:-1], "--json", words[-1], **environment)
    assert in_json.returncode == 2
    if words != ["status", "--profile"]:  # there it is the value of --profile
        assert json.loads(in_json.stdout)["code"] in ("bad-usage", "no-file")


@pytest.mark.parametrize("words", [[], ["machine"], ["quota"], ["tokens"]])
def test_nothing_asked_is_answered_with_help_and_2(words: list[str]) -> None:
    done = borgctl(*words)
    assert (done.returncode, "Commands:" in done.stdout + done.stderr) == (2, True)


def test_help_and_version_need_no_profile() -> None:
    for words in (["--help"], ["submit", "-h"], ["--version"]):
        done = subprocess.run(
            [BORGCTL, *words], env={"HOME": "/nonexistent"}, capture_output=True, text=True, timeout=30
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "url, told",
    [
        ("http://127.0.0.1:1", "cannot reach the portal at http://127.0.0.1:1: .*make up"),
        ("portal:8000", "is not the address of a portal"),
        ("http://[::1", "is not the address of a portal"),
        ("http://a:b", "is not the address of a portal"),
        ("ftp://a", "is not the address of a portal"),
    ],
)
def test_a_portal_that_is_not_there_or_none_is_reported_with_status_1(url: str, told: str) -> None:
    done = borgctl("cells", "--json", BORG_URL=url)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert re.search(told, document["detail"]), document
    assert "Traceback" not in done.stderr


def test_no_profile_and_a_token_of_nonsense_are_reported() -> None:
    assert borgctl("cells").returncode == 1
    done = borgctl("cells", BORG_URL="http://127.0.0.1:1", BORG_TOKEN="tök en")
    assert (done.returncode, "has invalid characters" in done.stderr) == (1, True)


def test_start_imports_no_large_library() -> None:
    program = (
        "import sys, portal.cli.main; "
        "print({'django', 'numpy', 'celery', 'httpx', 'rich', '_jsonnet', 'yaml'} & set(sys.modules) or 'none')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "none"
