"""Tests of borgctl's profiles: finding, reading and writing them, and the errors for invalid files."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from portal.cli import profiles
from portal.cli.failure import CommandFailed
from portal.cli.profiles import Profile

TWO = """
url = "http://p:1/"
cell = "dev"
default_profile = "demo"
[profiles.admin]
token = "a"
[profiles.demo]
token = "d"
tenant = "demo"
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BORG_HOME", "BORG_URL", "BORG_TOKEN", "BORG_CELL", "BORG_TENANT", "BORG_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BORG_CLIENT", str(tmp_path / "client.toml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "client.toml"


def test_the_default_profile_takes_what_the_file_says_for_all(file: Path) -> None:
    file.write_text(TWO)
    assert profiles.load() == Profile("demo", "http://p:1", "d", "dev", "demo")
    assert profiles.load("admin") == Profile("admin", "http://p:1", "a", "dev", "")


def test_the_environment_wins(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(TWO)
    monkeypatch.setenv("BORG_PROFILE", "admin")
    monkeypatch.setenv("BORG_TENANT", "other")
    monkeypatch.setenv("BORG_TOKEN", "t")
    assert profiles.load() == Profile("admin", "http://p:1", "t", "dev", "other")
    file.unlink()
    monkeypatch.delenv("BORG_PROFILE")
    monkeypatch.setenv("BORG_URL", "http://q:2")
    assert profiles.load() == Profile("default", "http://q:2", "t", "", "other")


def test_the_file_is_looked_for_in_the_home_then_here_then_with_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BORG_CLIENT")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    assert profiles.path() == Path("/config/borg/client.toml")
    (tmp_path / ".borg").mkdir()
    (tmp_path / ".borg" / "client.toml").write_text("")
    assert profiles.path() == Path(".borg/client.toml")
    monkeypatch.setenv("BORG_HOME", "/home/of/borg")
    assert profiles.path() == Path("/home/of/borg/client.toml")


def test_no_profile_says_which_there_are_and_how_to_get_one(file: Path) -> None:
    file.write_text(TWO)
    with pytest.raises(
        CommandFailed, match=r"profile 'x' is not in .*\(profiles there: admin, demo\).*borgctl login --url"
    ):
        profiles.load("x")
    file.unlink()
    with pytest.raises(CommandFailed, match="there: none"):
        profiles.load()


@pytest.mark.parametrize(
    "text, told",
    [
        (b"url = \n", "line 1"),
        (b"\xff", "utf-8"),
        (b'profiles = "x"', "is not a table"),
        (b"[profiles]\ndemo = 1", "is not a table"),
        (b"[profiles.demo]\ntoken = 1", "profiles.demo.token is not a string"),
        (b"default_profile = 3", "default_profile is not a string"),
    ],
)
def test_a_damaged_file_is_named_with_the_place(file: Path, text: bytes, told: str) -> None:
    file.write_bytes(text)
    with pytest.raises(CommandFailed, match=told) as caught:
        profiles.load()
    assert str(file) in caught.value.detail


def test_a_saved_profile_is_the_default_and_private_and_the_others_stay(file: Path) -> None:
    file.write_text(TWO)
    file.chmod(0o644)
    mine = Profile('an "odd"\n\x7fname', "https://q", "tök\\en", "", "t")
    assert profiles.save(mine) == file
    assert profiles.load() == mine  # without the file's cell, which belongs to another portal
    assert profiles.load("admin") == Profile("admin", "http://p:1", "a", "dev", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert set(tomllib.loads(file.read_text())["profiles"]) == {"admin", "demo", mine.name}
    assert list(file.parent.iterdir()) == [file]


def test_a_profile_that_can_not_be_written_is_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("")
    monkeypatch.setenv("BORG_CLIENT", str(file / "below" / "client.toml"))
    with pytest.raises(CommandFailed, match=r"client\.toml"):
        profiles.save(Profile("a", "http://p"))


def test_inside_a_task_its_own_identity_is_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    token = tmp_path / "token"
    monkeypatch.setenv("BORG_API_URL", "https://p/")
    monkeypatch.setenv("BORG_IDENTITY_FILE", str(token))
    monkeypatch.setenv("BORG_CELL", "cc")
    monkeypatch.setenv("BORG_TENANT", "ubar")
    with pytest.raises(CommandFailed, match=r"cannot read this task's identity.*try again") as caught:
        profiles.load()
    assert caught.value.passing
    token.write_text("eyJ.a.b\n")
    assert profiles.load() == Profile("task", "https://p", "eyJ.a.b", "cc", "ubar")
    file.write_text(TWO)  # a file of profiles that a task brings has priority
    assert profiles.load().name == "demo"
